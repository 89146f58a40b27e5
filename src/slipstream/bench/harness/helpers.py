"""What a rollout costs the run's own process when agents work in helper processes (`dispatch.processes`).

Input: how many helpers, rollouts and turns. Output: times on the cores. All is real but the two ends: the model, in
the run's own process, and the tool, in the helpers, answer from memory, and there is no sandbox. The dialogue is the
one of training, with tokens. What the run's own process takes for a rollout bounds how many it can have in a second,
however many helpers and cores there are: the engine and the learner's weights come on top of it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.agent.loop import ToolAgent
from slipstream.aio import collect_rarely
from slipstream.dialogue.base import CallContext, Dialogue, TurnLog
from slipstream.dialogue.token import TokenDialogue
from slipstream.dispatch.base import DispatchLimits
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.gate import OpenGate
from slipstream.dispatch.policies import Batch
from slipstream.graders.registry import find_grader
from slipstream.placement.processes import Order, open_processes
from slipstream.record import RunStore
from slipstream.render.families import surrogate
from slipstream.render.renderer import Renderer
from slipstream.rollout.attempt import AttemptDeps
from slipstream.sandbox.fake import FakeProvider
from slipstream.seams import Journal, TurnGate
from slipstream.tools import Effect, Toolset, tool
from slipstream.types import (
    AgentLimits,
    Brief,
    EngineLoad,
    Grading,
    Job,
    JobKey,
    Message,
    Role,
    Sampled,
    SampleParams,
    StopReason,
    Task,
    ToolCall,
)

_MODULE = "slipstream.bench.harness.helpers"
_TASK = "overhead"
_FAMILY = "qwen3"


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperCost:
    """What one load came to."""

    seconds: float
    cpu_seconds: float
    """Of the run's own process, all its threads."""


def in_a_child(*, processes: int, rollouts: int, turns: int) -> HelperCost:
    command = [sys.executable, "-m", _MODULE, str(processes), str(rollouts), str(turns)]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return HelperCost(**json.loads(child.stdout))


class AnsweringModel:
    """Calls the tool at every turn but the last, and then ends."""

    def __init__(self, num_turns: int) -> None:
        renderer = Renderer(_FAMILY, surrogate(_FAMILY))
        calls = [ToolCall(id=f"call_{turn}", name="look", arguments={"at": turn}) for turn in range(num_turns - 1)]
        calls.append(ToolCall(id="call_last", name="finish", arguments={"answer": "42"}))
        self._replies = [
            renderer.encode_reply(Message(role=Role.ASSISTANT, content="I look at the next thing.", calls=(call,)))
            for call in calls
        ]
        self._num_told: dict[str, int] = {}

    async def complete(
        self,
        prompt_ids: Sequence[int],
        params: SampleParams,
        *,
        session: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
    ) -> Sampled:
        await asyncio.sleep(0)
        turn = self._num_told.get(session, 0)
        self._num_told[session] = turn + 1
        ids = self._replies[turn]
        return Sampled.at_version(ids, [-0.1] * len(ids), version=0, stop=StopReason.STOP, num_cached=len(prompt_ids))

    def end_session(self, session: str) -> None:
        self._num_told.pop(session, None)

    def load(self) -> EngineLoad | None:
        return None

    async def aclose(self) -> None:
        """Nothing is held."""


@tool(effect=Effect.PURE)
async def look(at: int) -> str:
    """Look at a thing."""
    return f"At {at} there is a thing like any other, and it leads to the next."


@asynccontextmanager
async def open_attempt_deps(
    turns: int, *, model: Any, gate: TurnGate, journal: Journal
) -> AsyncIterator[tuple[AttemptDeps, Mapping[str, Task]]]:
    """In a helper: what an attempt works with."""
    renderer = Renderer(_FAMILY, surrogate(_FAMILY))
    toolset = Toolset([look, *Toolset.named(("finish",)).tools.values()])

    def make_dialogue(job: Job, attempt: int, task: Task, log: TurnLog) -> Dialogue:
        terms = CallContext(params=SampleParams(), max_context_tokens=100_000, gate=gate, key=job.key, attempt=attempt)
        return TokenDialogue(renderer, model, terms, log)

    task = Task(
        id=_TASK,
        brief=Brief(instruction="Look around.", system="You look.", limits=AgentLimits(turns=turns)),
        grading=Grading(kind="exact", spec={"expected": "42"}),
        sandbox=None,
    )
    yield (
        AttemptDeps(
            provider=FakeProvider(),
            journal=journal,
            make_dialogue=make_dialogue,
            make_runner=lambda task: ToolAgent(toolset),
            find_grader=find_grader,
        ),
        {_TASK: task},
    )


async def carry_out(folder: Path, *, processes: int, rollouts: int, turns: int) -> HelperCost:
    """So many rollouts of so many turns each in helper processes, up to 64 at once, recorded in `folder`."""
    jobs = [
        Job(key=JobKey(phase="bench", step=0, task_id=_TASK, sample=sample), seed=sample, weight=0)
        for sample in range(rollouts)
    ]
    order = Order(maker=f"{_MODULE}:open_attempt_deps", crews=(turns,) * processes)
    model, gate = AnsweringModel(turns), OpenGate()
    async with (
        RunStore.create(folder, config={}) as store,
        open_processes(order, model=model, gate=gate, grade_weight=lambda job, ended: 0) as placement,
    ):
        placement.journal = store
        start_s, cpu_s = time.perf_counter(), time.process_time()
        async with Dispatcher(
            placement, policy=Batch(), limits=DispatchLimits(run=64), journal=store, gate=gate
        ) as dispatcher:
            done = await dispatcher.collect(jobs)
        took = HelperCost(seconds=time.perf_counter() - start_s, cpu_seconds=time.process_time() - cpu_s)
    if not all(len(rollout.turns) == turns and rollout.verdict is not None for rollout in done):
        raise RuntimeError(f"a rollout did not come to {turns} turns and a verdict: {done[0].ending}")
    return took


def _main(arguments: Sequence[str]) -> None:
    processes, rollouts, turns = map(int, arguments)
    collect_rarely()  # as the command line does
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        took = asyncio.run(carry_out(Path(folder), processes=processes, rollouts=rollouts, turns=turns))
    sys.stdout.write(json.dumps({name: getattr(took, name) for name in HelperCost.__slots__}))


if __name__ == "__main__":
    _main(sys.argv[1:])
