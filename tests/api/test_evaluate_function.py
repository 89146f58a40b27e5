"""`evaluate` over objects: tools, graders, scripts, results."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from letter_tasks import Notebook, brief, count, grade, judged, solver, task

import slipstream as ss
from slipstream.tasks.jsonl import read_tasks, write_tasks

TASKS = [task("strawberry", "r"), task("banana", "a")]


def test_a_function_grades_with_what_the_agent_never_sees(tmp_path: Path) -> None:
    result = ss.evaluate(TASKS, model=solver, samples=3, runs=tmp_path)
    assert (result.mean_reward, result.num_rollouts) == (1.0, 6)
    for rollout in result.rollouts():
        told = [message.content for turn in rollout.turns for message in turn.messages]
        assert not any("expected" in text for text in told)
    assert [row["answer"] for row in result.run.rows()][::3] == ["3", "3"]
    assert ss.open_run(result.run_path).rows() == result.run.rows()
    (line,) = (result.run_path / "metrics.jsonl").read_text().splitlines()
    figures = json.loads(line)
    assert (figures["kind"], figures["reward/mean"], figures["rollouts"], figures["pass@1"]) == ("eval", 1.0, 6, 1.0)


def test_it_says_on_standard_error_how_far_it_is_unless_it_is_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[int] = []
    result = ss.evaluate(TASKS, model=solver, runs=tmp_path, on_progress=lambda progress: told.append(progress.total))
    said = capsys.readouterr()
    assert (said.out, set(told)) == ("", {2})
    assert said.err.splitlines()[0] == f"run: {result.run_path}"
    assert "2/2 done, 2 solved" in said.err
    ss.evaluate(TASKS, model=solver, runs=tmp_path, quiet=True)
    assert capsys.readouterr().err == ""


def test_wrong_answers_earn_nothing(tmp_path: Path) -> None:
    result = ss.evaluate(TASKS, model=ss.replies(ss.act("finish", answer="4")), runs=tmp_path)
    assert result.mean_reward == 0.0


def test_it_runs_beside_a_running_event_loop_and_can_be_awaited(tmp_path: Path) -> None:
    async def in_a_notebook() -> tuple[float | None, float | None]:
        awaited = await ss.evaluate_async(TASKS, model=solver, runs=tmp_path)
        called = ss.evaluate(TASKS, model=solver, runs=tmp_path)
        return awaited.mean_reward, called.mean_reward

    assert asyncio.run(in_a_notebook()) == (1.0, 1.0)


def test_a_rubric_weighs_its_parts_and_keeps_them_as_components(tmp_path: Path) -> None:
    rubric = ss.rubric(right=(3, grade), brief=brief)
    result = ss.evaluate([task("strawberry", "r", grader=rubric)], model=solver, runs=tmp_path)
    assert result.mean_reward == pytest.approx((3 * 1.0 + 1 * 0.5) / 4)
    (rollout,) = result.rollouts()
    assert rollout.verdict is not None
    assert rollout.verdict.components == {"right": 1.0, "brief": 0.5}


def test_a_grader_may_ask_the_model(tmp_path: Path) -> None:
    def script(scene: ss.ScriptedCall) -> object:
        return "yes" if scene.messages[0].content == "Is 3 right?" else solver(scene)

    result = ss.evaluate([task("strawberry", "r", grader=judged, extra=None)], model=script, runs=tmp_path)
    assert result.mean_reward == 1.0
    (rollout,) = result.rollouts()
    assert len(rollout.turns) == 2, "what a judge says is no part of the rollout"


def test_what_is_defined_inside_a_function_works_in_this_process(tmp_path: Path) -> None:
    @ss.tool
    async def shout(text: str) -> str:
        """Say it louder."""
        return text.upper()

    given = task("a", "a", tools=[shout, ss.finish], grader=lambda answer: answer == "HI", extra=None)
    replies = ss.replies(ss.act("shout", text="hi"), ss.act("finish", answer="HI"))
    result = ss.evaluate([given], model=replies, runs=tmp_path, settings={"dispatch.processes": 2})
    assert result.mean_reward == 1.0


def test_a_class_is_a_tool_with_state_for_each_rollout(tmp_path: Path) -> None:
    write = ss.act("notebook", line="x")
    result = ss.evaluate(
        [task("a", "a", tools=[Notebook, ss.finish], grader=last_told, extra=None)],
        model=ss.replies(write, write, ss.act("finish")),
        samples=2,
        runs=tmp_path,
    )
    assert result.mean_reward == 1.0


def test_resources_reach_the_tools_and_are_not_shown_to_the_model(tmp_path: Path) -> None:
    @ss.tool
    def look(ctx: ss.ToolContext) -> str:
        """Look."""
        return str(ctx.resources["number"])

    shown: list[str] = []

    def script(scene: ss.ScriptedCall) -> ss.Message:
        shown.append(str(scene))
        return ss.act("look") if len(shown) == 1 else ss.act("finish", answer=scene.messages[-1].content)

    given = task("a", "a", tools=[look, ss.finish], grader=ss.exact("42"), extra=None, resources={"number": 42})
    assert ss.evaluate([given], model=script, runs=tmp_path).mean_reward == 1.0
    assert "42" not in shown[0]


def last_told(messages: tuple[ss.Message, ...]) -> float:
    return float(messages[-2].content == "2 lines")


def test_tasks_survive_being_written_and_read(tmp_path: Path) -> None:
    spec = ss.SandboxSpec(setup=("true",), env={"A": "b"}, limits=ss.SandboxLimits(memory_mb=64))
    rich = ss.Task(
        id="rich",
        instruction="Do it.",
        system="You are careful.",
        tools=["bash", count],
        grader=ss.command("true", files={"hidden": "x"}),
        sandbox=spec,
        files={"text": "ä\n", "bytes": b"\xff\x00", "program": ss.File(data=b"#!", mode=0o755)},
        artifact=["out"],
        limits=ss.AgentLimits(turns=3),
    )
    write_tasks(tmp_path / "tasks.jsonl", [rich, *TASKS])
    assert read_tasks(tmp_path / "tasks.jsonl") == (rich, *TASKS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tools": [print]}, "@slipstream.tool"),
        ({"grader": 3}, "the grader is a int"),
        ({"grader": lambda anser: 1.0}, 'asks for "anser" (did you mean "answer"?)'),
        ({"grader": ss.exact("3")}, "extra is for graders that are functions"),
    ],
)
def test_a_wrong_task_is_refused_where_it_is_made(changes: Mapping[str, object], said: str) -> None:
    with pytest.raises(ss.ConfigError) as raised:
        task("strawberry", "r", **changes)
    assert said in str(raised.value)


def test_bad_input_leaves_no_run_behind(tmp_path: Path) -> None:
    with pytest.raises(ss.ConfigError, match="samples"):
        ss.evaluate(TASKS, model=solver, samples=0, runs=tmp_path)
    with pytest.raises(ss.ConfigError, match="no-such-model"):
        ss.evaluate(TASKS, model="no-such-model", runs=tmp_path)
    assert not list(tmp_path.iterdir())


def test_every_public_name_is_there() -> None:
    for name in ss.__all__:
        assert getattr(ss, name) is not None
    assert set(ss.__all__) <= set(dir(ss))
    with pytest.raises(AttributeError):
        ss.no_such_name  # noqa: B018
    assert sys.modules["slipstream"].evaluate is ss.evaluate
