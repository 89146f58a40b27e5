"""An evaluation of several task sets: the tasks and figures of each, and settings that cannot be meant."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import slipstream as ss
from slipstream.cli.displays.reports import print_report
from slipstream.config import apply_overrides, from_json, overrides_between, to_json
from slipstream.errors import ConfigError
from slipstream.settings import EvalConfig, TasksConfig, TaskSetConfig
from slipstream.settings.header import code_named
from slipstream.wiring.task_sets import tasks_of, weights_of


def task(name: str, expected: str, turns: int) -> ss.Task:
    return ss.Task(
        id=name,
        instruction=f"Say {expected}.",
        tools=[ss.finish],
        grader=ss.exact(expected),
        limits=ss.AgentLimits(turns=turns, context_tokens=8_192, tool_seconds=60.0),
    )


RIGHT = [task("1", "yes", 2), task("2", "yes", 2)]
WRONG = [task("1", "no", 3)]


def always_yes(call: ss.ScriptedCall) -> ss.Message:
    return ss.act("finish", answer="yes")


def test_each_set_has_figures_of_its_own(tmp_path: Path) -> None:
    result = ss.evaluate({"right": RIGHT, "wrong": WRONG}, model=always_yes, samples=2, runs=tmp_path, quiet=True)
    assert sorted({rollout.job.key.task_id for rollout in result.rollouts()}) == ["right/1", "right/2", "wrong/1"]
    sets = result.report.sets
    assert (sets["right"].mean_reward, sets["right"].num_tasks, sets["right"].num_rollouts) == (1.0, 2, 4)
    assert (sets["wrong"].mean_reward, sets["wrong"].pass_at_k) == (0.0, {1: 0.0, 2: 0.0})
    (line,) = map(json.loads, (result.run_path / "metrics.jsonl").read_text().splitlines())
    assert (line["set/right/reward/mean"], line["set/wrong/reward/mean"]) == (1.0, 0.0)
    assert line["set/right/pass@2"] == 1.0 and line["reward/mean"] == pytest.approx(2 / 3)
    console = Console(record=True, width=160)
    print_report(console, result.report, result.run_path, 1.0)
    assert "set wrong" in console.export_text()


def mixture(tmp_path: Path) -> EvalConfig:
    for name, tasks in (("right", RIGHT), ("wrong", WRONG)):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(
                json.dumps({"id": each.id, "instruction": "x", "grading": {"kind": "exact", "expected": "x"}}) + "\n"
                for each in tasks
            )
        )
    sets = {name: TaskSetConfig(source=str(tmp_path / f"{name}.jsonl")) for name in ("right", "wrong")}
    return EvalConfig(name="mixture", tasks=TasksConfig(sets=sets))


def test_sets_are_settings_like_others(tmp_path: Path) -> None:
    config = mixture(tmp_path)
    changed = apply_overrides(
        config, ["tasks.sets.right.weight=3", "tasks.sets.wrong.num=1", "tasks.sets.more=x.jsonl"]
    )
    assert weights_of(changed.tasks) == {"right": 3.0, "wrong": 1.0, "more": 1.0}
    assert changed.tasks.sets["wrong"].num == 1 and changed.tasks.sets["more"].source == "x.jsonl"
    assert from_json(EvalConfig, to_json(changed)) == changed
    assert apply_overrides(config, overrides_between(config, changed)) == changed
    assert list(apply_overrides(changed, ["tasks.sets.wrong=null"]).tasks.sets) == ["right", "more"]
    assert apply_overrides(config, ["tasks=file.jsonl"]).tasks == TasksConfig(source="file.jsonl")
    assert code_named(changed)["tasks.sets.more.source"] == "x.jsonl"
    assert [each.id for each in tasks_of(config.tasks)] == ["right/1", "wrong/1", "right/2"]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["tasks.sets.right.wieght=2"], 'no setting "tasks.sets.right.wieght" .did you mean "weight"'),
        (['tasks.sets={"a": {"sauce": "x"}}'], 'no setting "tasks.sets.a.sauce" .did you mean "source"'),
        (["tasks.sets.right.weight=0"], "tasks.sets.right.weight=0.0: give a number above 0"),
        (["tasks.sets.right.weight=much"], "tasks.sets.right.weight=much"),
        (["tasks.num=1"], "with a mixture set it for each set, as tasks.sets.right.num"),
        (["tasks.sets.new.weight=2"], "the set new has no tasks: set tasks.sets.new.source"),
        (["tasks.sets.right=gone.jsonl"], "tasks.sets.right: there is no task file gone.jsonl"),
        (['tasks.sets={"a/b": {"source": "x.jsonl"}}'], 'names a set "a/b": use letters'),
    ],
)
def test_what_cannot_be_meant_is_named(tmp_path: Path, pairs: list[str], message: str) -> None:
    config = mixture(tmp_path)
    with pytest.raises(ConfigError, match=message):
        tasks_of(apply_overrides(config, pairs).tasks)


def test_a_source_beside_sets_is_refused(tmp_path: Path) -> None:
    config = mixture(tmp_path)
    both = replace(config, tasks=replace(config.tasks, source="x.jsonl"))
    with pytest.raises(ConfigError, match="source is set, and so are"):
        tasks_of(both.tasks)
