"""Attempts at the jobs of a workload, on virtual time: the dispatcher drives them as it drives real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from slipstream.errors import GraderError, SandboxError
from slipstream.placement.simulated import Census
from slipstream.seams import PastAttempt, TurnGate
from slipstream.simulate.engine import SimEngine
from slipstream.simulate.shared import Shared
from slipstream.simulate.workload import Chore, SimJob
from slipstream.types import Ending, EndReason, Job, JobKey, Rollout, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """What all attempts share."""

    engine: SimEngine
    cores: Shared
    gate: TurnGate
    jobs: Mapping[JobKey, SimJob]


def cores(number: float) -> Shared:
    """So many cores, evenly shared; nobody uses more than one at a time."""
    return Shared(lambda num: min(1.0, number / num))


class WorkloadPlacement:
    def __init__(self, plant: Plant) -> None:
        self._plant = plant
        self.census = Census()
        self.starts: list[tuple[float, JobKey, str]] = []
        """What began when, for those who compare."""

    def expect(self, job: Job) -> None: ...

    def open(self, job: Job, number: int, past: PastAttempt | None) -> WorkloadAttempt:
        return WorkloadAttempt(self._plant, self.census, self.starts, job, number)


class WorkloadAttempt:
    def __init__(
        self, plant: Plant, census: Census, starts: list[tuple[float, JobKey, str]], job: Job, number: int
    ) -> None:
        self._plant = plant
        self._census = census
        self._starts = starts
        self._job = job
        self._number = number
        self._script = plant.jobs[job.key]
        self._holds = 0

    @property
    def grade_weight(self) -> int:
        return 1

    async def init(self) -> None:
        self._hold("init")
        await self._fail_if_due("init")
        await self._chore(self._script.init)

    async def run(self) -> None:
        self._note("run")
        await self._fail_if_due("run")
        await self._turns()

    async def release(self) -> None:
        self._let_go()

    async def grade(self) -> Rollout:
        self._hold("grade")
        try:
            await self._fail_if_due("grade")
            await self._chore(self._script.grade)
        finally:
            self._let_go()
        ending = Ending(reason=EndReason.FINISHED)
        return Rollout(job=self._job, attempt=self._number, ending=ending, verdict=Verdict(reward=1.0))

    def as_ended(self, ending: Ending) -> Rollout:
        return Rollout(job=self._job, attempt=self._number, ending=ending)

    async def aclose(self) -> None:
        self._let_go()

    # ---------------------------------------------------------------- what takes time

    async def _turns(self, *, num: int | None = None) -> None:
        """The agent's turns, or the first `num` of them."""
        plant, session = self._plant, f"{self._job.key}#{self._number}"
        script = self._script
        try:
            for turn, context in list(zip(script.turns, script.contexts, strict=True))[:num]:
                async with plant.gate.turn(self._job.key, context):
                    await plant.engine.complete(session, context=context, sampled=turn.sampled)
                await self._chore(Chore(wait_s=turn.tool_s, cpu_s=turn.tool_cpu_s))
        finally:
            plant.engine.end(session)

    async def _chore(self, chore: Chore, *, share: float = 1.0) -> None:
        if chore.wait_s:
            await asyncio.sleep(chore.wait_s * share)
        await self._plant.cores.work(chore.cpu_s * share)

    async def _fail_if_due(self, stage: str) -> None:
        """A fault comes when half of the stage is done."""
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

    def _hold(self, stage: str) -> None:
        self._note(stage)
        self._holds = 1
        self._census.add(1)

    def _let_go(self) -> None:
        self._census.live -= self._holds
        self._holds = 0

    def _note(self, stage: str) -> None:
        self._starts.append((asyncio.get_running_loop().time(), self._job.key, stage))
