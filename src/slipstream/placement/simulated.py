"""Attempts that take time and do nothing else, for the simulator and for tests of the dispatcher on virtual time.

Enters: a script that says, for a job and the number of its try, how long each stage takes and how it fails. Leaves:
rollouts, and a census of live sandboxes that a test can hold against the limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from slipstream.errors import GraderError, SandboxError
from slipstream.types import Ending, EndReason, Job, JobKey, Rollout, Turn, Verdict


class Fault(StrEnum):
    RAISE = "raise"
    """A named error, at the end of the stage's time."""
    CRASH = "crash"
    """An error nobody foresaw."""
    EXIT = "exit"
    """`sys.exit` from deep inside."""
    CANCEL = "cancel"
    """The stage cancels itself."""
    HANG = "hang"
    """It never ends, but can be cancelled."""
    DEAF = "deaf"
    """It ends after a million seconds, and swallows its cancellation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    seconds: float = 1.0
    fault: Fault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one attempt will do: `Plan(run=Part(seconds=60), grade=Part(fault=Fault.HANG))`."""

    init: Part = Part()
    run: Part = Part()
    release: Part = Part(seconds=0.0)
    grade: Part = Part()
    grade_weight: int = 1
    reward: float = 1.0


@dataclass(slots=True)
class Census:
    """What is alive, and the most that ever was."""

    live: int = 0
    peak_live: int = 0
    peak_grading: int = 0
    grading: int = 0
    opened: int = 0

    def add(self, weight: int) -> None:
        self.live += weight
        self.peak_live = max(self.peak_live, self.live)


class SimulatedPlacement:
    def __init__(self, plan: Callable[[Job, int], Plan] = lambda job, number: Plan()) -> None:
        self._plan = plan
        self.census = Census()
        self.started: list[tuple[JobKey, int]] = []

    def open(self, job: Job, number: int, past_turns: Sequence[Turn]) -> SimulatedAttempt:
        self.started.append((job.key, number))
        self.census.opened += 1
        return SimulatedAttempt(job, number, self._plan(job, number), self.census)


class SimulatedAttempt:
    def __init__(self, job: Job, number: int, plan: Plan, census: Census) -> None:
        self._job = job
        self._number = number
        self._plan = plan
        self._census = census
        self._holds = 0

    @property
    def grade_weight(self) -> int:
        return self._plan.grade_weight

    async def init(self) -> None:
        self._hold(self._job.weight)
        await _take_part(self._plan.init, SandboxError)

    async def run(self) -> None:
        await _take_part(self._plan.run, SandboxError)

    async def release(self) -> None:
        try:
            await _take_part(self._plan.release, SandboxError)
        finally:
            self._let_go()

    async def grade(self) -> Rollout:
        self._hold(self._plan.grade_weight)
        self._census.grading += 1
        self._census.peak_grading = max(self._census.peak_grading, self._census.grading)
        try:
            await _take_part(self._plan.grade, GraderError)
        finally:
            self._census.grading -= 1
            self._let_go()
        ending = Ending(reason=EndReason.FINISHED)
        return Rollout(job=self._job, attempt=self._number, ending=ending, verdict=Verdict(reward=self._plan.reward))

    def as_ended(self, ending: Ending) -> Rollout:
        return Rollout(job=self._job, attempt=self._number, ending=ending)

    async def aclose(self) -> None:
        self._let_go()

    def _hold(self, weight: int) -> None:
        self._holds = weight
        self._census.add(weight)

    def _let_go(self) -> None:
        self._census.live -= self._holds
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
    await asyncio.sleep(part.seconds)
    match part.fault:
        case Fault.RAISE:
            raise error("simulated")
        case Fault.CRASH:
            raise ZeroDivisionError("simulated")
        case Fault.EXIT:
            raise SystemExit(3)
        case Fault.CANCEL:
            raise asyncio.CancelledError
