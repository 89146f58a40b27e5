"""Measures the overhead of the harness: of a turn, of a rollout, of a thousand rollouts at once.

Everything is real but the two ends: the model and the tool answer from memory, and there is no sandbox. So the figures
cover the agent loop, the chat dialogue (which does not tokenise), dispatch with all its stages, spans, and a run store
on disk with its usual commits. Rendering, which training also needs, is measured separately; and, by `helpers`, what
remains for the run's own process when agents work in helpers. Every load runs in a process of its own, so that time and
peak memory are its own; all its rollouts are alive at once and take turns.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.agent.loop import ToolAgent
from slipstream.aio import collect_rarely
from slipstream.bench.harness import helpers
from slipstream.bench.harness.heartbeat import heartbeat
from slipstream.bench.harness.scripted import (
    TASK_ID,
    check_complete,
    look,
    make_jobs,
    make_replies,
    make_task,
    make_toolset,
    observation,
)
from slipstream.dialogue.base import CallContext, Dialogue, TurnLog
from slipstream.dialogue.chat import ChatDialogue
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.gate import OpenGate
from slipstream.dispatch.policies import Batch, Bounded
from slipstream.graders.registry import find_grader
from slipstream.model.base import ChatReply
from slipstream.placement.inprocess import InProcess
from slipstream.record import RunStore
from slipstream.render.families import surrogate
from slipstream.render.renderer import Renderer
from slipstream.rollout.attempt import AttemptDeps
from slipstream.sandbox.fake import FakeProvider
from slipstream.tools import Toolset
from slipstream.types import (
    Job,
    Json,
    Message,
    Role,
    SampleParams,
    StopReason,
    Task,
    ToolSpec,
)

_RENDERED_TURNS = 200
SLOTS = 64
HELPED_TURNS = 5
"""About as many as a rollout of the demo tasks has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadLoad:
    """The amount of work."""

    turns: int = 20
    """Turns per rollout."""
    rollouts: int = 1_000
    """Rollouts at once, for the cost of a turn."""
    sizes: tuple[int, ...] = (100, 1_000, 10_000)
    """Rollouts at once, for the cost of a rollout; the memory is that of the largest."""
    rounds: int = 3
    """Rounds of each load but the largest; the median counts."""
    helped: int = 600
    """Rollouts in helper processes, for their cost in the run's own process."""
    queued: tuple[int, ...] = (1_000, 20_000)
    """Jobs submitted together of which SLOTS are under way at once, for the CPU time of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessCost:
    """The cost of one load."""

    seconds: float
    cpu_seconds: float
    """CPU time of all threads: the loop's and the store's."""
    peak_mb: float
    num_commits: int
    stall_ms: float
    """The longest time for which the event loop did not come round."""
    pass_cpu_ms: float
    """The most CPU time that the loop's thread took meanwhile, which other work on the machine does not lengthen."""


def run(load: OverheadLoad) -> dict[str, Json]:
    cost = {size: _median_of(load, size) for size in sorted({load.rollouts, *load.sizes})}
    turn, largest = cost[load.rollouts], cost[max(cost)]
    num_turns = load.rollouts * load.turns
    return {
        "rollouts": load.rollouts,
        "turns": load.turns,
        "turn_us": turn.seconds / num_turns * 1e6,
        "turn_cpu_us": turn.cpu_seconds / num_turns * 1e6,
        "render_us": measure_rendering(_RENDERED_TURNS) * 1e6,
        "commits": turn.num_commits,
        "rollout_us": {str(size): cost[size].seconds / size * 1e6 for size in load.sizes},
        "turn_cpu_us_of": {str(size): cost[size].cpu_seconds / (size * load.turns) * 1e6 for size in load.sizes},
        "stall_ms": largest.stall_ms,
        "pass_cpu_ms": largest.pass_cpu_ms,
        "rss_mb": largest.peak_mb,
        "rss_rollouts": max(cost),
        **_helped(load),
        "queued_job_cpu_us": {str(num): _in_a_child(num, 1, SLOTS).cpu_seconds / num * 1e6 for num in load.queued},
        "helped_turns": HELPED_TURNS,
    }


def _helped(load: OverheadLoad) -> dict[str, Json]:
    """CPU time of the run's own process per rollout whose agent works in a helper, and per model call; that also with
    the model in a process of its own. Both in turn, so that other load on the machine meets both."""
    rounds = [[_own_cpu_s(load, apart=apart) for apart in (False, True)] for _ in range(load.rounds)]
    here_s, apart_s = map(statistics.median, zip(*rounds, strict=True))
    return {
        "helped_own_cpu_us": here_s * 1e6,
        "own_us_per_call": here_s / HELPED_TURNS * 1e6,
        "helped_own_us_per_call": apart_s / HELPED_TURNS * 1e6,
    }


def _own_cpu_s(load: OverheadLoad, *, apart: bool) -> float:
    cost = helpers.in_a_child(processes=2, rollouts=load.helped, turns=HELPED_TURNS, apart=apart)
    return cost.cpu_seconds / load.helped


def _median_of(load: OverheadLoad, size: int) -> HarnessCost:
    rounds = 1 if size == max(load.rollouts, *load.sizes) else load.rounds
    found = sorted((_in_a_child(size, load.turns) for _ in range(rounds)), key=lambda cost: cost.seconds)
    return found[len(found) // 2]


def _in_a_child(rollouts: int, turns: int, slots: int = 0) -> HarnessCost:
    command = [sys.executable, "-m", __name__, str(rollouts), str(turns), str(slots)]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return HarnessCost(**json.loads(child.stdout))


# ---------------------------------------------------------------- rollouts


class _Model:
    """Calls the tool at every turn but the last, then finishes. Yields to the event loop before it answers."""

    def __init__(self, num_turns: int) -> None:
        self._replies = [
            ChatReply(
                message=message,
                stop=StopReason.STOP,
                num_prompt_tokens=100 + 40 * turn,
                num_sampled_tokens=20,
            )
            for turn, message in enumerate(make_replies(num_turns))
        ]

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        params: SampleParams,
        *,
        session: str = "",
        timeout_s: float | None = None,
    ) -> ChatReply:
        await asyncio.sleep(0)
        return self._replies[len(messages) // 2 - 1]

    async def aclose(self) -> None:
        """Nothing to close."""


async def run_rollouts(folder: Path, *, rollouts: int, turns: int, slots: int = 0) -> HarnessCost:
    """Make rollouts recorded in `folder`, all at once, or `slots` of them while the others are queued."""
    model, gate, toolset = _Model(turns), OpenGate(), make_toolset()

    def make_dialogue(job: Job, attempt: int, task: Task, log: TurnLog) -> Dialogue:
        context = CallContext(
            params=SampleParams(), max_context_tokens=100_000, gate=gate, key=job.key, attempt=attempt
        )
        return ChatDialogue(model, context, log)

    jobs = make_jobs(rollouts)
    start_s, cpu_s = time.perf_counter(), time.process_time()
    async with RunStore.create(folder, config={}) as store:
        deps = AttemptDeps(
            provider=FakeProvider(),
            journal=store,
            make_dialogue=make_dialogue,
            make_runner=lambda task: ToolAgent(toolset),
            find_grader=find_grader,
        )
        async with (
            heartbeat() as beat,
            Dispatcher(
                InProcess(deps, {TASK_ID: make_task(turns)}),
                policy=Bounded(slots=slots) if slots else Batch(),
                journal=store,
                capacity=rollouts,
            ) as dispatcher,
        ):
            done = await dispatcher.collect(jobs)
        num_commits = store.num_commits
    cost = HarnessCost(
        seconds=time.perf_counter() - start_s,
        cpu_seconds=time.process_time() - cpu_s,
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        num_commits=num_commits,
        stall_ms=beat.stall_ms,
        pass_cpu_ms=beat.loop_cpu_ms,
    )
    check_complete(done, turns)
    return cost


# ---------------------------------------------------------------- rendering


def measure_rendering(num_turns: int) -> float:
    """Seconds that the renderer takes per turn: parsing the reply and encoding the tool's answer."""
    renderer = Renderer("qwen3", surrogate("qwen3"))
    tools = Toolset([look]).specs
    reply = make_replies(2)[0]
    sampled = renderer.encode_reply(reply)
    answer = Message(role=Role.TOOL, content=observation(1), call_id=reply.calls[0].id, name="look")
    tail = renderer.render([Message(role=Role.USER, content="Look around.")], tools)
    start_s = time.perf_counter()
    for turn in range(num_turns):
        renderer.parse(sampled, tail, tools, call_prefix=f"call_{turn}_")
        extension = renderer.extend(tail, sampled, [answer], tools)
        if extension is None:
            raise RuntimeError("the renderer cannot extend its own reply")
        tail = extension.added
    return (time.perf_counter() - start_s) / num_turns


def _main(arguments: Sequence[str]) -> None:
    rollouts, turns, slots = map(int, arguments)
    collect_rarely()  # as the command line does
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        cost = asyncio.run(run_rollouts(Path(folder), rollouts=rollouts, turns=turns, slots=slots))
    fields = {name: getattr(cost, name) for name in HarnessCost.__slots__}
    sys.stdout.write(json.dumps(fields))


if __name__ == "__main__":
    _main(sys.argv[1:])
