"""Attempts that take time and do nothing else, for the simulator and for tests of the dispatcher on virtual time.

Input: a function that says how long each stage of an attempt takes and how it fails. Output: rollouts, and counts of
live sandboxes to compare with the limits. Every call from the dispatcher to an attempt can be made to fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from slipstream.errors import GraderError, SandboxError
from slipstream.seams import PastAttempt, TurnGate
from slipstream.types import Ending, EndReason, Job, JobKey, Rollout, Verdict


class Fault(StrEnum):
    RAISE = "raise"
    """A named error, at the end of the stage's time."""
    CRASH = "crash"
    """An unexpected error."""
    EXIT = "exit"
    """A call of `sys.exit`."""
    CANCEL = "cancel"
    """The stage cancels itself."""
    HANG = "hang"
    """It never ends, but can be cancelled."""
    DEAF = "deaf"
    """It ends after a million seconds, and ignores its cancellation."""
    SLOW_TO_END = "slow_to_end"
    """It never ends, and when it is cancelled it takes its time, then raises an error of its own."""
    DIE = "die"
    """The sandbox is lost halfway: the stage raises, and so does the release after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    seconds: float = 1.0
    fault: Fault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one attempt will do: `Plan(run=Part(seconds=60), grade=Part(fault=Fault.HANG))`. The last three are called
    and not awaited, so they take no time."""

    init: Part = Part()
    run: Part = Part()
    release: Part = Part(seconds=0.0)
    grade: Part = Part()
    close: Part = Part(seconds=0.0)
    grade_weight: int = 1
    turns: int = 1
    """Turns of the run, if there is a gate; a fault comes in the last."""
    tokens: int = 0
    """By which the context grows with each turn."""
    reward: float = 1.0
    open_fault: Fault | None = None
    weigh_fault: Fault | None = None
    as_ended_fault: Fault | None = None


@dataclass(slots=True)
class SandboxUsage:
    """What is in use, and its peak."""

    live: int = 0
    peak_live: int = 0
    peak_grading: int = 0
    grading: int = 0
    opened: int = 0
    memory_mb: int = 0
    peak_memory_mb: int = 0
    cpus: float = 0.0
    peak_cpus: float = 0.0

    def add(self, weight: int) -> None:
        self.live += weight
        self.peak_live = max(self.peak_live, self.live)

    def take(self, memory_mb: int, cpus: float) -> None:
        self.memory_mb += memory_mb
        self.cpus += cpus
        self.peak_memory_mb = max(self.peak_memory_mb, self.memory_mb)
        self.peak_cpus = max(self.peak_cpus, self.cpus)


class SimulatedPlacement:
    def __init__(
        self, plan: Callable[[Job, int], Plan] = lambda job, number: Plan(), *, gate: TurnGate | None = None
    ) -> None:
        """With a `gate` agents take their turns in it."""
        self._plan = plan
        self._gate = gate
        self.usage = SandboxUsage()
        self.started: list[tuple[JobKey, int]] = []

    def expect(self, job: Job) -> None: ...

    def open(self, job: Job, number: int, past: PastAttempt | None) -> SimulatedAttempt:
        self.started.append((job.key, number))
        self.usage.opened += 1
        plan = self._plan(job, number)
        _fail(plan.open_fault, SandboxError)
        return SimulatedAttempt(job, number, plan, self.usage, self._gate)


class SimulatedAttempt:
    def __init__(self, job: Job, number: int, plan: Plan, usage: SandboxUsage, gate: TurnGate | None = None) -> None:
        self._gate = gate
        self._job = job
        self._number = number
        self._plan = plan
        self._usage = usage
        self._holds = 0
        self._is_lost = False

    @property
    def grade_weight(self) -> int:
        _fail(self._plan.weigh_fault, GraderError)
        return self._plan.grade_weight

    async def init(self) -> None:
        self._hold(self._job.weight)
        await self._agent_part(self._plan.init)

    async def run(self) -> None:
        if self._gate is None:
            await self._agent_part(self._plan.run)
            return
        plan = self._plan
        each_s = plan.run.seconds / plan.turns
        for number in range(1, plan.turns + 1):
            async with self._gate.turn(self._job.key, number * plan.tokens):
                last = Part(seconds=each_s, fault=plan.run.fault)
                await self._agent_part(last if number == plan.turns else Part(seconds=each_s))

    async def release(self) -> None:
        if self._is_lost:
            raise SandboxError("simulated: there is nothing left to close")
        await _take_part(self._plan.release, SandboxError)
        self._release_sandbox()

    async def grade(self) -> Rollout:
        self._hold(self._plan.grade_weight)
        self._usage.grading += 1
        self._usage.peak_grading = max(self._usage.peak_grading, self._usage.grading)
        try:
            await _take_part(self._plan.grade, GraderError)
        finally:
            self._usage.grading -= 1
            self._release_sandbox()
        ending = Ending(reason=EndReason.FINISHED)
        return Rollout(job=self._job, attempt=self._number, ending=ending, verdict=Verdict(reward=self._plan.reward))

    def as_ended(self, ending: Ending) -> Rollout:
        _fail(self._plan.as_ended_fault, SandboxError)
        return Rollout(job=self._job, attempt=self._number, ending=ending)

    async def aclose(self) -> None:
        if self._plan.close.fault is Fault.DEAF:
            self._release_sandbox()  # it never ends: as if the reaper had closed it
        try:
            await _take_part(self._plan.close, SandboxError)
        finally:
            self._release_sandbox()

    async def _agent_part(self, part: Part) -> None:
        self._is_lost = part.fault is Fault.DIE
        await _take_part(part, SandboxError)

    def _hold(self, weight: int) -> None:
        self._holds = weight
        self._usage.add(weight)
        if weight:
            self._usage.take(self._job.memory_mb, self._job.cpus)

    def _release_sandbox(self) -> None:
        self._usage.live -= self._holds
        if self._holds:
            self._usage.take(-self._job.memory_mb, -self._job.cpus)
        self._holds = 0


async def _take_part(part: Part, error: type[Exception]) -> None:
    match part.fault:
        case Fault.HANG:
            await asyncio.Event().wait()
        case Fault.DEAF:
            loop = asyncio.get_running_loop()
            ends_at_s = loop.time() + 1e6
            while (left_s := ends_at_s - loop.time()) > 0:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(left_s)
        case Fault.SLOW_TO_END:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        case Fault.DIE:
            await asyncio.sleep(part.seconds / 2)
            raise error("simulated: the sandbox is lost")
    if part.seconds:
        await asyncio.sleep(part.seconds)
    _fail(part.fault, error)


def _fail(fault: Fault | None, error: type[Exception]) -> None:
    match fault:
        case Fault.CRASH:
            raise ZeroDivisionError("simulated")
        case Fault.EXIT:
            raise SystemExit(3)
        case Fault.CANCEL:
            raise asyncio.CancelledError
        case Fault.RAISE | Fault.SLOW_TO_END:
            raise error("simulated")
