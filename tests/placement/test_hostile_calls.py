"""Calls that a model may write so that something after it fails: what reads, checks or runs them, sends them to another
process, stores or exports them. Each is a call of the model's, answered as such, and the rollout counts.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from slipstream.config import to_json
from slipstream.evaluation import evaluate
from slipstream.export import ExportFormat, export_run, read_atif
from slipstream.graders.base import GradeContext
from slipstream.model.scripted import Line, Script, ScriptedCall, ScriptedChat, act
from slipstream.model.server import ModelServer
from slipstream.record import RunStore
from slipstream.settings import DispatchConfig, EvalConfig, ModelConfig, TasksConfig
from slipstream.types import (
    MAX_CALL_DEPTH,
    Artifact,
    Brief,
    CallProblem,
    Grading,
    Json,
    Rollout,
    Task,
    ToolCall,
    Trust,
    Verdict,
)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

HERE = str(Path(__file__).resolve())


def nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    return opening * depth + "1" + closing * depth


def bash(more: str) -> str:
    return f'{{"command": "true", {more}}}'


ARGUMENTS = {
    "lists 65 deep": bash(f'"x": {nested(65)}'),
    "lists 600 deep": bash(f'"x": {nested(600)}'),
    "lists 100,000 deep": bash(f'"x": {nested(100_000)}'),
    "objects 600 deep": bash(f'"x": {nested(600, chr(123) + chr(34) + "k" + chr(34) + ":", "}")}'),
    "a deep command": f'{{"command": {nested(600)}}}',
    "no number": bash('"timeout_s": NaN'),
    "an infinite number": bash('"timeout_s": -Infinity'),
    "a number beyond all": bash('"timeout_s": 1e999'),
    "a number as large as can be": bash('"timeout_s": 1e308'),
    "a number below zero": bash('"timeout_s": -1e308'),
    "a number of 4,000 digits": bash(f'"timeout_s": {"9" * 4000}'),
    "a number of 10,000 digits": bash(f'"timeout_s": {"9" * 10_000}'),
    "half a character": '{"command": "echo \\ud800 \\udfff"}',
    "half a character as a name": '{"\\ud800": "\\udcff"}',
    "a zero": '{"command": "echo \\u0000 \\u0000"}',
    "a name twice": '{"command": "true", "command": 1}',
    "many arguments": "{" + ", ".join(f'"x{n}": {n}' for n in range(2000)) + "}",
    "no object": "[1, 2]",
    "nothing": "null",
    "half of an object": '{"command": "tr',
}


class AnyGrader:
    needs_sandbox = False

    def check(self, spec: object) -> None: ...

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        return Verdict(reward=0.0)


def tasks() -> list[Task]:
    names = [name.replace(" ", "-") for name in ARGUMENTS]
    return [
        Task(
            id=name,
            brief=Brief(instruction=f"Do {name}.", tools=("bash", "finish")),
            grading=Grading(kind=f"{HERE}:AnyGrader"),
        )
        for name in names
    ]


def script() -> Script:
    written = {name.replace(" ", "-"): text for name, text in ARGUMENTS.items()}

    def line(scene: ScriptedCall) -> Line:
        name = scene.prompt_text.split("Do ")[1].split(".")[0]
        if scene.num_calls:
            return act("finish")
        return f'<tool_call>\n{{"name": "bash", "arguments": {written[name]}}}\n</tool_call>'

    return line


def config(model: ModelConfig) -> EvalConfig:
    return EvalConfig(
        name="hostile",
        tasks=TasksConfig(source=f"{HERE}:tasks"),
        model=model,
        dispatch=DispatchConfig(processes=1),
    )


async def carried_out(config: EvalConfig, folder: Path) -> dict[str, Rollout]:
    async with RunStore.create(folder, config=to_json(config)) as store:
        await evaluate(config, store)
    return {rollout.job.key.task_id: rollout for rollout in RunStore.read(folder).rollouts()}


def check_all(rollouts: dict[str, Rollout]) -> None:
    assert len(rollouts) == len(ARGUMENTS)
    for name, rollout in rollouts.items():
        told = (rollout.trust, rollout.attempt, [failure.message for failure in rollout.failures])
        assert told == (Trust.TRUSTED, 1, []), name
        assert len(rollout.turns) == 2, name


def test_no_call_that_a_model_writes_makes_its_rollout_untrusted(tmp_path: Path) -> None:
    scripted = ModelConfig(kind="scripted", script=f"{HERE}:script", max_tokens=4_096)
    check_all(asyncio.run(carried_out(config(scripted), tmp_path / "run")))
    for form in ExportFormat:
        export_run(RunStore.read(tmp_path / "run"), form, out=tmp_path / f"out-{form}")
    assert len(list(read_atif(tmp_path / f"out-{ExportFormat.ATIF}"))) == len(ARGUMENTS)


def test_nor_does_one_that_a_server_passes_on(tmp_path: Path) -> None:
    async def main() -> dict[str, Rollout]:
        async with ModelServer(chat=ScriptedChat(script())) as server:
            return await carried_out(config(ModelConfig(kind="chat", base_url=server.base_url)), tmp_path / "run")

    check_all(asyncio.run(main()))


@pytest.mark.parametrize(("depth", "problem"), [(MAX_CALL_DEPTH - 1, None), (MAX_CALL_DEPTH, CallProblem.TOO_DEEP)])
def test_how_deep_arguments_may_be(depth: int, problem: CallProblem | None) -> None:
    value: Json = json.loads(nested(depth))
    call = ToolCall(id="", name="x", arguments={"x": value}, raw="raw")
    assert (call.problem, call.raw, bool(call.arguments)) == (problem, "raw", problem is None)
