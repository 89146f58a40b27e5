"""What the harness itself costs: a turn, a rollout, a thousand of them at once.

Input: how many rollouts run at once, and their turns. Output: figures. Everything is real but the two ends: the model
and the tool answer from memory, and there is no sandbox. So what is measured is the agent loop, the chat dialogue
(which does not tokenise), dispatch with all its stages, spans, and a run store on disk that is committed as ever.
Rendering, which training needs besides, is measured beside it; and, with `overhead_helpers`, what is left of all this
to the run's own process when agents work in helpers. Every load runs in a process of its own, so that its time and its
peak memory are its own; all its rollouts are alive at once, turn by turn beside each other.
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
from slipstream.bench.harness import helpers as overhead_helpers
from slipstream.dialogue.base import CallContext, Dialogue, TurnLog
from slipstream.dialogue.chat import ChatDialogue
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.gate import OpenGate
from slipstream.dispatch.policies import Batch
from slipstream.graders.registry import find_grader
from slipstream.model.base import ChatReply
from slipstream.placement.inprocess import InProcess
from slipstream.record import RunStore
from slipstream.render.families import surrogate
from slipstream.render.renderer import Renderer
from slipstream.rollout.attempt import AttemptDeps
from slipstream.sandbox.fake import FakeProvider
from slipstream.tools import Effect, Toolset, tool
from slipstream.types import (
    AgentLimits,
    Brief,
    Grading,
    Job,
    JobKey,
    Json,
    Message,
    Role,
    SampleParams,
    StopReason,
    Task,
    ToolCall,
    ToolSpec,
)

_TASK = "overhead"
_RENDERED_TURNS = 200
HELPED_TURNS = 5
"""As many as a rollout of the demo tasks has, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadLoad:
    """How much is put through."""

    turns: int = 20
    """Of each rollout."""
    rollouts: int = 1_000
    """At once, for the cost of a turn."""
    sizes: tuple[int, ...] = (100, 1_000, 10_000)
    """At once, for the cost of a rollout; the memory is that of the largest."""
    rounds: int = 3
    """Of each load but the largest; the median counts."""
    helped: int = 600
    """Rollouts in helper processes, for what they cost the run's own process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessCost:
    """What one load came to."""

    seconds: float
    cpu_seconds: float
    """Of all threads: the loop's and the store's."""
    peak_mb: float
    num_commits: int


def run(load: OverheadLoad) -> dict[str, Json]:
    took = {size: _median_of(load, size) for size in sorted({load.rollouts, *load.sizes})}
    turn = took[load.rollouts]
    num_turns = load.rollouts * load.turns
    return {
        "rollouts": load.rollouts,
        "turns": load.turns,
        "turn_us": turn.seconds / num_turns * 1e6,
        "turn_cpu_us": turn.cpu_seconds / num_turns * 1e6,
        "render_us": measure_rendering(_RENDERED_TURNS) * 1e6,
        "commits": turn.num_commits,
        "rollout_us": {str(size): took[size].seconds / size * 1e6 for size in load.sizes},
        "rss_mb": took[max(took)].peak_mb,
        "rss_rollouts": max(took),
        "helped_own_cpu_us": statistics.median(_own_cpu_s(load) for _ in range(load.rounds)) * 1e6,
        "helped_turns": HELPED_TURNS,
    }


def _own_cpu_s(load: OverheadLoad) -> float:
    """Of the run's own process, for a rollout whose agent works in a helper."""
    took = overhead_helpers.in_a_child(processes=2, rollouts=load.helped, turns=HELPED_TURNS)
    return took.cpu_seconds / load.helped


def _median_of(load: OverheadLoad, size: int) -> HarnessCost:
    rounds = 1 if size == max(load.rollouts, *load.sizes) else load.rounds
    found = sorted((_in_a_child(size, load.turns) for _ in range(rounds)), key=lambda took: took.seconds)
    return found[len(found) // 2]


def _in_a_child(rollouts: int, turns: int) -> HarnessCost:
    command = [sys.executable, "-m", __name__, str(rollouts), str(turns)]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return HarnessCost(**json.loads(child.stdout))


# ---------------------------------------------------------------- rollouts


class _Model:
    """Calls the tool at every turn but the last, and then ends. It lets everyone else go on before it answers."""

    def __init__(self, num_turns: int) -> None:
        calls = [ToolCall(id=f"call_{turn}", name="look", arguments={"at": turn}) for turn in range(num_turns - 1)]
        calls.append(ToolCall(id="call_last", name="finish", arguments={"answer": "42"}))
        self._replies = [
            ChatReply(
                message=Message(role=Role.ASSISTANT, content="I look at the next thing.", calls=(call,)),
                stop=StopReason.STOP,
                num_prompt_tokens=100 + 40 * turn,
                num_sampled_tokens=20,
            )
            for turn, call in enumerate(calls)
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
        """Nothing is held."""


@tool(effect=Effect.PURE)
async def look(at: int) -> str:
    """Look at a thing."""
    return _seen(at)


def _seen(at: int) -> str:
    return f"At {at} there is a thing like any other, and it leads to the next."


async def carry_out(folder: Path, *, rollouts: int, turns: int) -> HarnessCost:
    """So many rollouts at once, of so many turns each, recorded in `folder`."""
    model, gate, toolset = _Model(turns), OpenGate(), Toolset([look, *Toolset.named(("finish",)).tools.values()])
    task = Task(
        id=_TASK,
        brief=Brief(instruction="Look around.", system="You look.", limits=AgentLimits(turns=turns)),
        grading=Grading(kind="exact", spec={"expected": "42"}),
        sandbox=None,
    )

    def make_dialogue(job: Job, attempt: int, task: Task, log: TurnLog) -> Dialogue:
        terms = CallContext(params=SampleParams(), max_context_tokens=100_000, gate=gate, key=job.key, attempt=attempt)
        return ChatDialogue(model, terms, log)

    jobs = [
        Job(key=JobKey(phase="bench", step=0, task_id=_TASK, sample=sample), seed=sample, weight=0)
        for sample in range(rollouts)
    ]
    start_s, cpu_s = time.perf_counter(), time.process_time()
    async with RunStore.create(folder, config={}) as store:
        crew = AttemptDeps(
            provider=FakeProvider(),
            journal=store,
            make_dialogue=make_dialogue,
            make_runner=lambda task: ToolAgent(toolset),
            find_grader=find_grader,
        )
        async with Dispatcher(InProcess(crew, {_TASK: task}), policy=Batch(), journal=store) as dispatcher:
            done = await dispatcher.collect(jobs)
        num_commits = store.num_commits
    took = HarnessCost(
        seconds=time.perf_counter() - start_s,
        cpu_seconds=time.process_time() - cpu_s,
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        num_commits=num_commits,
    )
    if not all(len(rollout.turns) == turns and rollout.verdict is not None for rollout in done):
        raise RuntimeError(f"a rollout did not come to {turns} turns and a verdict: {done[0].ending}")
    return took


# ---------------------------------------------------------------- rendering


def measure_rendering(num_turns: int) -> float:
    """Seconds that the renderer takes for a turn: reading the reply, then encoding the tool's answer."""
    renderer = Renderer("qwen3", surrogate("qwen3"))
    tools = Toolset([look]).specs
    call = ToolCall(id="call_0", name="look", arguments={"at": 1})
    sampled = renderer.encode_reply(Message(role=Role.ASSISTANT, content="I look at the next thing.", calls=(call,)))
    answer = Message(role=Role.TOOL, content=_seen(1), call_id=call.id, name=call.name)
    tail = renderer.render([Message(role=Role.USER, content="Look around.")], tools)
    start_s = time.perf_counter()
    for turn in range(num_turns):
        renderer.parse(sampled, tail, tools, call_prefix=f"call_{turn}_")
        extension = renderer.extend(tail, sampled, [answer], tools)
        if extension is None:
            raise RuntimeError("the renderer cannot go on from its own reply")
        tail = extension.added
    return (time.perf_counter() - start_s) / num_turns


def _main(arguments: Sequence[str]) -> None:
    rollouts, turns = map(int, arguments)
    collect_rarely()  # as the command line does
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        took = asyncio.run(carry_out(Path(folder), rollouts=rollouts, turns=turns))
    fields = {name: getattr(took, name) for name in HarnessCost.__slots__}
    sys.stdout.write(json.dumps(fields))


if __name__ == "__main__":
    _main(sys.argv[1:])
