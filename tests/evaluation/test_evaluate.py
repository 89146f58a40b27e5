"""An evaluation from settings to report, over tasks that need no sandbox of their own to be graded."""

import asyncio
import json
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from slipstream.config import to_json
from slipstream.errors import ConfigError
from slipstream.evaluation import EvalProgress, evaluate, plan_evaluation, run_evaluation
from slipstream.model.scripted import ScriptedChat, act, replies
from slipstream.model.server import ModelServer
from slipstream.record import RunReader, RunStore
from slipstream.settings import EvalConfig, HardwareConfig, ModelConfig, TasksConfig
from slipstream.types import Message, Role, SpanKind

needs_sandboxes = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

MODULE = """
from slipstream.types import Brief, Grading, Message, Role, Task, ToolCall

def tasks(*, num=3):
    return [
        Task(
            id=f"t{index}",
            brief=Brief(instruction="Say yes.", tools=("finish",)),
            grading=Grading(kind="exact", spec={"expected": "yes" if index else "no"}),
        )
        for index in range(num)
    ]

def sayer():
    call = ToolCall(id="call", name="finish", arguments={"answer": "yes"})
    return lambda scene: Message(role=Role.ASSISTANT, calls=(call,))
"""


@pytest.fixture
def config(tmp_path: Path) -> EvalConfig:
    path = tmp_path / "mine.py"
    path.write_text(MODULE)
    return EvalConfig(
        name="x",
        tasks=TasksConfig(source=f"{path}:tasks", num=3),
        model=ModelConfig(kind="scripted", script=f"{path}:sayer"),
    )


@needs_sandboxes
def test_how_busy_the_processors_were_is_in_the_store_of_a_run(tmp_path: Path, config: EvalConfig) -> None:
    slow = """
import time
from slipstream.types import Message, Role, ToolCall

def sayer():
    def say(scene):
        time.sleep(0.05)  # longer than the clock tick in which processors are counted
        return Message(role=Role.ASSISTANT, calls=(ToolCall(id="c", name="finish", arguments={"answer": "yes"}),))
    return say
"""
    (tmp_path / "slow.py").write_text(slow)
    config = replace(
        config,
        model=replace(config.model, script=f"{tmp_path / 'slow.py'}:sayer"),
        hardware=HardwareConfig(every_s=0.02),
    )

    async def run(name: str, config: EvalConfig) -> RunReader:
        async with RunStore.create(tmp_path / name, config=to_json(config)) as store:
            await evaluate(config, store)
        return RunStore.read(tmp_path / name)

    sampled = [sample.cpu for sample in asyncio.run(run("run", config)).hardware() if sample.cpu is not None]
    assert sampled and all(0 <= cpu.percent <= 100 and cpu.cores > 0 for cpu in sampled)
    assert list(asyncio.run(run("off", replace(config, hardware=HardwareConfig(every_s=0)))).hardware()) == []


@needs_sandboxes
@pytest.mark.parametrize("process", ["shared", "own"])
@pytest.mark.parametrize("processes", [0, 1])
def test_what_the_engines_steps_took_is_in_the_store_of_a_run(
    tmp_path: Path, config: EvalConfig, processes: int, process: Literal["shared", "own"]
) -> None:
    from slipstream.hub.tiny import TinyShape
    from slipstream.recipes.quickstart.model import make_model

    shape = TinyShape(hidden=32, layers=1, heads=2, kv_heads=1, head=16, inner=32)
    engine = replace(config.model.engine, device="cpu", num_threads=1, num_slots=2, process=process)
    config = replace(
        config,
        model=ModelConfig(
            kind="local",
            folder=str(make_model(tmp_path / "model", seed=1, shape=shape)),
            family_args={"show_tools": False},
            max_tokens=8,
            context_tokens=256,
            engine=engine,
        ),
        dispatch=replace(config.dispatch, processes=processes),
    )

    async def run() -> None:
        async with RunStore.create(tmp_path / "run", config=to_json(config)) as store:
            await evaluate(config, store)

    asyncio.run(run())
    store = RunStore.read(tmp_path / "run")
    calls = [span for rollout in store.rollouts() for span in rollout.spans if span.kind is SpanKind.MODEL]
    work = [each for sample in store.hardware() for each in sample.work]
    assert calls and sum(each.num_rows for each in work) == sum(span.counts["sampled"] for span in calls)


def never() -> AbstractAsyncContextManager[RunStore]:
    raise AssertionError("the store is not to be opened")


@needs_sandboxes
def test_an_evaluation_goes_on_where_the_store_ends(tmp_path: Path, config: EvalConfig) -> None:
    steps: list[EvalProgress] = []

    async def main() -> None:
        async with RunStore.create(tmp_path / "run", config=to_json(config)) as store:
            first = await evaluate(config, store)
            assert first.num_rollouts == 3
            assert first.mean_reward == pytest.approx(2 / 3)
            more = replace(config, samples=2)
            second = await evaluate(more, store, on_progress=steps.append)
            assert second.num_rollouts == 6
            assert second.mean_reward == pytest.approx(2 / 3)
            assert second.pass_at_k == {1: pytest.approx(2 / 3), 2: pytest.approx(2 / 3)}

    asyncio.run(main())
    last = steps[-1]
    assert (last.total, last.before, last.view.done, last.num_solved, last.num_untrusted) == (6, 3, 3, 4, 0)


@needs_sandboxes
def test_a_finished_run_is_reported_without_a_model_or_a_store(tmp_path: Path, config: EvalConfig) -> None:
    async def main() -> None:
        async with RunStore.create(tmp_path / "run", config=to_json(config)) as store:
            first = await evaluate(config, store)
        dead = replace(config, model=ModelConfig(kind="chat", base_url="http://127.0.0.1:9/v1"))
        past = RunStore.read(tmp_path / "run")
        again = await run_evaluation(plan_evaluation(dead), never, past=past, on_progress=lambda progress: None)
        assert again == first

    asyncio.run(main())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (ModelConfig(kind="scripted", script="json:nothing"), 'json has no "nothing"'),
        (ModelConfig(kind="scripted", script="json:dumps"), "model.script json:dumps failed: TypeError"),
        (ModelConfig(kind="scripted", script="builtins:dict"), "gave a dict: return a function of a ScriptedCall"),
        (ModelConfig(kind="tokens"), "needs a model: set model.folder"),
        (ModelConfig(kind="chat", base_url="http://127.0.0.1:9/v1"), "start the server, or correct base_url"),
    ],
    ids=["no script", "a script that fails", "a script that is none", "no tokenizer", "no server"],
)
def test_a_model_that_cannot_be_had_is_found_out_before_a_run_is_made(
    config: EvalConfig, model: ModelConfig, said: str
) -> None:
    plan = plan_evaluation(replace(config, model=model))
    with pytest.raises(ConfigError, match=said):
        asyncio.run(run_evaluation(plan, never, past=None, on_progress=lambda progress: None))


def test_what_is_set_for_a_server_is_in_every_request(config: EvalConfig, tmp_path: Path) -> None:
    thoughtful = Message(role=Role.ASSISTANT, content="Hm.", thinking="Well.")

    async def main() -> None:
        async with ModelServer(chat=ScriptedChat(replies(thoughtful, act("finish", answer="no")))) as server:
            model = ModelConfig(
                kind="chat",
                base_url=server.base_url,
                extra_body={"reasoning_effort": "low"},
                extra_headers={"X-Team": "evals"},
                max_tokens_field="max_completion_tokens",
                max_tokens=500,
                resend_thinking=True,
            )
            fitted = replace(config, tasks=replace(config.tasks, num=1), model=model)
            async with RunStore.create(tmp_path / "run", config=to_json(fitted)) as store:
                await evaluate(fitted, store)
            asked = [request for request in server.log if request.path.endswith("/chat/completions")]
            assert len(asked) == 2
            for request in asked:
                assert request.headers["X-Team"] == "evals"
                assert isinstance(request.body, dict)
                assert request.body["reasoning_effort"] == "low"
                assert "max_completion_tokens" in request.body and "max_tokens" not in request.body
            assert "Well." in json.dumps(asked[1].body)

    asyncio.run(main())
