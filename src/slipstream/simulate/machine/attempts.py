"""Simulated attempts at the jobs of a workload: the dispatcher drives them like real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from slipstream.errors import GraderError, SandboxError
from slipstream.placement.simulated import SandboxUsage
from slipstream.seams import PastAttempt, TurnGate
from slipstream.simulate.machine.engine import Fleet
from slipstream.simulate.machine.host import RunProcess, SimHost
from slipstream.simulate.workload import Chore, SimJob, SimTurn
from slipstream.types import Ending, EndReason, Job, JobKey, Rollout, Span, SpanKind, Verdict

MIN_WAIT_S = 0.001
"""Shorter waits at the gate leave no span."""
_NO_COUNTS: Mapping[str, int] = {}
_NO_VERDICT = Ending(reason=EndReason.NO_VERDICT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimContext:
    """What all attempts share."""

    engine: Fleet
    host: SimHost
    front: RunProcess
    front_s: float
    """CPU time of the run's own process per model call."""
    gate: TurnGate
    jobs: Mapping[JobKey, SimJob]


class WorkloadPlacement:
    def __init__(self, sim: SimContext) -> None:
        self._sim = sim
        self.usage = SandboxUsage()
        self.starts: list[tuple[float, JobKey, str]] = []
        """The start times of stages, for comparisons."""

    def expect(self, job: Job) -> None: ...

    def open(self, job: Job, number: int, past: PastAttempt | None) -> WorkloadAttempt:
        return WorkloadAttempt(self._sim, self.usage, self.starts, job, number)


class WorkloadAttempt:
    def __init__(
        self, sim: SimContext, usage: SandboxUsage, starts: list[tuple[float, JobKey, str]], job: Job, number: int
    ) -> None:
        self._sim = sim
        self._usage = usage
        self._starts = starts
        self._job = job
        self._number = number
        self._script = sim.jobs[job.key]
        self._holds = 0
        self._spans: list[Span] = []

    @property
    def grade_weight(self) -> int:
        return self._script.grade_weight if self._script.verdict else 0

    async def init(self) -> None:
        self._hold("init", self._script.weight)
        await self._fail_if_due("init")
        await self._chore(self._script.init)

    async def run(self) -> None:
        self._note("run")
        await self._fail_if_due("run")
        await self._turns()

    async def release(self) -> None:
        if self._script.release_s:
            await asyncio.sleep(self._script.release_s)
        self._free_sandbox()

    async def grade(self) -> Rollout:
        if not self._script.verdict:
            return self.as_ended(Ending(reason=EndReason.INFRASTRUCTURE, detail="no verdict in the recorded run"))
        self._hold("grade", self._script.grade_weight)
        try:
            await self._fail_if_due("grade")
            await self._chore(self._script.grade)
        finally:
            self._free_sandbox()
        ending = Ending(reason=EndReason.FINISHED)
        return replace(self.as_ended(_NO_VERDICT), ending=ending, verdict=Verdict(reward=1.0))

    def as_ended(self, ending: Ending) -> Rollout:
        return Rollout(job=self._job, attempt=self._number, ending=ending, spans=tuple(self._spans))

    async def aclose(self) -> None:
        self._free_sandbox()

    # ---------------------------------------------------------------- what takes time

    async def _turns(self, *, num: int | None = None) -> None:
        """The agent's turns, or the first `num` of them."""
        sim, session = self._sim, f"{self._job.key}#{self._number}"
        script = self._script
        before = 0
        try:
            await self._chore(script.start)
            for turn, context in list(zip(script.turns, script.contexts, strict=True))[:num]:
                await self._call(session, turn, context, before)
                before = context + turn.sampled
                start_s = _now_s()
                await self._chore(Chore(wait_s=turn.tool_s, cpu_s=turn.tool_cpu_s))
                self._span(SpanKind.TOOL, start_s)
                await sim.front.work(sim.front_s / 2)
        finally:
            sim.engine.end(session)

    async def _call(self, session: str, turn: SimTurn, context: int, before: int) -> None:
        """One model call, inside the gate; `before`: the tokens of the previous call and its reply."""
        kept = min(before, context) if turn.kept is None else min(before, turn.kept)
        asked_s = _now_s()
        async with self._sim.gate.turn(self._job.key, context) as passed:
            start_s = _now_s()
            if start_s - asked_s >= MIN_WAIT_S:
                self._span(SpanKind.WAIT_TURN, asked_s)
            await self._sim.front.work(self._sim.front_s / 2)
            cached = await self._sim.engine.complete(
                session, context=context, sampled=turn.sampled, kept=turn.kept, shared=self._script.shared
            )
            passed.num_sampled = turn.sampled
            counts = {"concurrent": passed.num_under_way, "sampled": turn.sampled, "cached": cached}
            self._span(SpanKind.MODEL, start_s, {**counts, "new": context - kept, "kept": kept})

    def _span(self, kind: SpanKind, start_s: float, counts: Mapping[str, int] = _NO_COUNTS) -> None:
        end_s = _now_s()
        if end_s > start_s or kind is SpanKind.MODEL:
            self._spans.append(Span(kind=kind, start_s=start_s, end_s=end_s, attempt=self._number, counts=counts))

    async def _chore(self, chore: Chore, *, share: float = 1.0) -> None:
        if chore.wait_s:
            await asyncio.sleep(chore.wait_s * share)
        await self._sim.host.work(chore.cpu_s * share)

    async def _fail_if_due(self, stage: str) -> None:
        """Raise or hang half-way through the stage, if a fault is due."""
        script = self._script
        fault = (script.faults or {}).get(f"{self._number} {stage}")
        if fault is None:
            return
        if stage == "run":
            await self._turns(num=len(script.turns) // 2)
        else:
            await self._chore(script.init if stage == "init" else script.grade, share=0.5)
        if fault == "hang":
            await asyncio.Event().wait()
        error = GraderError if stage == "grade" else SandboxError
        raise error("simulated: " + ("the sandbox is gone" if fault == "lose" else "the stage failed"))

    # ---------------------------------------------------------------- what is counted

    def _hold(self, stage: str, weight: int) -> None:
        self._note(stage)
        self._holds = weight
        self._usage.add(weight)

    def _free_sandbox(self) -> None:
        self._usage.live -= self._holds
        self._holds = 0

    def _note(self, stage: str) -> None:
        self._starts.append((_now_s(), self._job.key, stage))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
