"""Measures what a rollout costs the run's own process when agents work in helper processes (`dispatch.processes`).

Everything is real but the two ends: the model in the run's own process and the tool in the helpers answer from memory,
and there is no sandbox. The dialogue is that of training, with tokens. The CPU time per rollout in the run's own
process limits the rollouts per second, however many helpers and cores there are; the engine and the learner come on
top.
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
from slipstream.bench.harness.scripted import TASK_ID, check_complete, make_jobs, make_replies, make_task, make_toolset
from slipstream.dialogue.base import CallContext, Dialogue, TurnLog
from slipstream.dialogue.token import TokenDialogue
from slipstream.dispatch.base import DispatchLimits
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.gate import OpenGate
from slipstream.dispatch.policies import Batch
from slipstream.graders.registry import find_grader
from slipstream.model.base import Completer
from slipstream.model.process import Hosted, Tell, open_model_process
from slipstream.placement.processes import HelperSpec, open_processes
from slipstream.record import RunStore
from slipstream.render.families import surrogate
from slipstream.render.renderer import Renderer
from slipstream.rollout.attempt import AttemptDeps
from slipstream.sandbox.fake import FakeProvider
from slipstream.seams import Journal, TurnGate
from slipstream.types import (
    EngineLoad,
    Job,
    Sampled,
    SampleParams,
    StopReason,
    Task,
)

_MODULE = "slipstream.bench.harness.helpers"
_FAMILY = "qwen3"


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperCost:
    """The cost of one load."""

    seconds: float
    cpu_seconds: float
    """CPU time of all threads of the run's own process."""


def in_a_child(*, processes: int, rollouts: int, turns: int, apart: bool = False) -> HelperCost:
    """`apart`: the model is in a process of its own."""
    command = [sys.executable, "-m", _MODULE, str(processes), str(rollouts), str(turns), str(int(apart))]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return HelperCost(**json.loads(child.stdout))


class AnsweringModel:
    """Calls the tool at every turn but the last, then finishes."""

    def __init__(self, num_turns: int) -> None:
        renderer = Renderer(_FAMILY, surrogate(_FAMILY))
        self._replies = [renderer.encode_reply(message) for message in make_replies(num_turns)]
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
        """Nothing to close."""


@asynccontextmanager
async def host_model(turns: int, tell: Tell) -> AsyncIterator[Hosted]:
    yield Hosted(completer=AnsweringModel(turns))


@asynccontextmanager
async def open_model(turns: int, *, apart: bool) -> AsyncIterator[Completer]:
    if not apart:
        yield AnsweringModel(turns)
        return
    async with open_model_process(f"{_MODULE}:host_model", turns) as model:
        yield model


@asynccontextmanager
async def open_attempt_deps(
    turns: int, *, model: Any, gate: TurnGate, journal: Journal
) -> AsyncIterator[tuple[AttemptDeps, Mapping[str, Task]]]:
    """The dependencies of attempts in a helper, and the tasks."""
    renderer = Renderer(_FAMILY, surrogate(_FAMILY))
    toolset = make_toolset()

    def make_dialogue(job: Job, attempt: int, task: Task, log: TurnLog) -> Dialogue:
        context = CallContext(
            params=SampleParams(), max_context_tokens=100_000, gate=gate, key=job.key, attempt=attempt
        )
        return TokenDialogue(renderer, model, context, log)

    yield (
        AttemptDeps(
            provider=FakeProvider(),
            journal=journal,
            make_dialogue=make_dialogue,
            make_runner=lambda task: ToolAgent(toolset),
            find_grader=find_grader,
        ),
        {TASK_ID: make_task(turns)},
    )


async def run_rollouts(folder: Path, *, processes: int, rollouts: int, turns: int, apart: bool = False) -> HelperCost:
    """Make rollouts in helper processes, up to 64 at once, recorded in `folder`."""
    spec = HelperSpec(opener=f"{_MODULE}:open_attempt_deps", works=(turns,) * processes)
    gate, jobs = OpenGate(), make_jobs(rollouts)
    async with (
        RunStore.create(folder, config={}) as store,
        open_model(turns, apart=apart) as model,
        open_processes(spec, model=model, gate=gate, grade_weight=lambda job, ended: 0) as placement,
    ):
        placement.journal = store
        start_s, cpu_s = time.perf_counter(), time.process_time()
        async with Dispatcher(
            placement, policy=Batch(), limits=DispatchLimits(run=64), journal=store, gate=gate
        ) as dispatcher:
            done = await dispatcher.collect(jobs)
        cost = HelperCost(seconds=time.perf_counter() - start_s, cpu_seconds=time.process_time() - cpu_s)
    check_complete(done, turns)
    return cost


def _main(arguments: Sequence[str]) -> None:
    processes, rollouts, turns, apart = map(int, arguments)
    collect_rarely()  # as the command line does
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        cost = asyncio.run(
            run_rollouts(Path(folder), processes=processes, rollouts=rollouts, turns=turns, apart=bool(apart))
        )
    sys.stdout.write(json.dumps({name: getattr(cost, name) for name in HelperCost.__slots__}))


if __name__ == "__main__":
    _main(sys.argv[1:])
