"""Who may enter which stage: counters, queues, and the one function that admits jobs.

Invariants: the limits are never exceeded; grades are admitted first, then runs, then initialisations; while a ready
grade waits for a sandbox no initialisation is admitted. Everything here but `enter` is synchronous, so no await can
come between a check and its count. Counts are integers, cores too (in thousandths), so they add up exactly.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slipstream.dispatch.base import (
    NOTHING,
    DispatchLimits,
    DispatchView,
    Need,
    PacingGate,
    SchedulingPolicy,
    Stage,
)
from slipstream.dispatch.forecast import Mean
from slipstream.dispatch.gate import OpenGate
from slipstream.dispatch.queue import RankedQueue, Waiter
from slipstream.errors import ConfigError
from slipstream.types import EngineLoad, Job, JobKey

MAX_PER_PASS = 250
"""Jobs admitted to a stage in one pass of the event loop, so that none takes long."""


def need_of(job: Job, weight: int) -> Need:
    """What a sandbox of this job takes, the agent's or the grader's, at a weight of `weight` units; 0 is no sandbox."""
    if weight == 0:
        return NOTHING
    return Need(sandboxes=weight, memory_mb=job.memory_mb, milli_cpus=_milli(job.cpus))


def check_job(job: Job, limits: DispatchLimits) -> None:
    """Refuse a job that could never be admitted."""
    need = need_of(job, max(1, job.weight))  # its grader may have a sandbox where its agent has none
    refuse_too_heavy(f"job {job.key}", replace(need, sandboxes=job.weight), limits)


def refuse_too_heavy(what: str, need: Need, limits: DispatchLimits) -> None:
    """Refuse what exceeds a limit by itself, with the numbers."""
    if limits.sandboxes is not None and need.sandboxes > limits.sandboxes:
        raise ConfigError(
            f"{what} weighs {need.sandboxes} sandbox units, but the limit is {limits.sandboxes}: raise "
            "dispatch.limits.sandboxes",
            key="dispatch.limits.sandboxes",
            value=limits.sandboxes,
        )
    if limits.memory_mb is not None and need.memory_mb > limits.memory_mb:
        raise ConfigError(
            f"{what} needs {need.memory_mb} MB of memory, but the limit is {limits.memory_mb}: raise "
            "dispatch.limits.memory_mb, or lower the sandbox's limits.memory_mb",
            key="dispatch.limits.memory_mb",
            value=limits.memory_mb,
        )
    if limits.cpus is not None and need.milli_cpus > _milli(limits.cpus):
        raise ConfigError(
            f"{what} needs {need.milli_cpus / 1000:g} cores, but the limit is {limits.cpus:g}: raise "
            "dispatch.limits.cpus, or lower the sandbox's limits.cpus",
            key="dispatch.limits.cpus",
            value=limits.cpus,
        )


def _milli(cpus: float) -> int:
    return round(cpus * 1000)


class Admission:
    def __init__(
        self,
        policy: SchedulingPolicy[Any],
        limits: DispatchLimits,
        *,
        gate: PacingGate | None = None,
        load: Callable[[], EngineLoad | None] = lambda: None,
    ) -> None:
        # Any: a policy's memory is its own affair; it is only handed back to it.
        self._policy = policy
        self._memory: Any = policy.start(limits)
        self._limits = limits
        self._gate = gate or OpenGate()
        self._gate.on_room(self._pump_soon)
        self._load = load
        self._numbers = itertools.count()
        self._queues = {stage: RankedQueue(self._rank) for stage in Stage}
        self._waiting: dict[Stage, int] = dict.fromkeys(Stage, 0)
        """Not counting cancelled waiters, which stay in the queue until they reach its front."""
        self._inside: dict[Stage, int] = dict.fromkeys(Stage, 0)
        self._caps = {Stage.INIT: limits.init, Stage.RUN: limits.run, Stage.GRADE: limits.grade}
        self._pumping = False
        self._live = NOTHING
        self._in_flight = 0
        self._seen_s: dict[str, Mean] = {}
        self._all_seen_s = Mean()
        self.num_done = 0
        self.num_abandoned: Callable[[], int] = lambda: 0
        self.on_defect: Callable[[Exception], None] = _raise
        """Called when the policy raises: nothing would ever be admitted again."""

    def check(self, job: Job) -> None:
        """Refuse a job that could never be admitted."""
        check_job(job, self._limits)

    def check_need(self, what: str, need: Need) -> None:
        """Refuse what could never be admitted, and would block others while it waits."""
        refuse_too_heavy(what, need, self._limits)

    async def enter(self, stage: Stage, job: Job, *, need: Need = NOTHING) -> None:
        """Wait for a place in `stage`, and for room for `need` together with it."""
        future = asyncio.get_running_loop().create_future()
        own_rank = self._policy.rank(job, None, 0.0)
        self._queues[stage].push(Waiter(own_rank, next(self._numbers), job, need, future))
        self._waiting[stage] += 1
        self._pump_soon()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._inside[stage] -= 1
                self._live -= need
                self._in_flight -= stage is Stage.INIT
            else:
                future.cancel()
                self._waiting[stage] -= 1
            self._pump_soon()
            raise

    def leave(self, stage: Stage) -> None:
        self._inside[stage] -= 1
        self._pump_soon()

    def give_back(self, need: Need) -> None:
        """Return what a closed sandbox took."""
        self._live -= need
        self._pump_soon()

    def end_attempt(self) -> None:
        """An attempt that had entered INIT is over."""
        self._in_flight -= 1
        self._pump_soon()

    def ran(self, job: Job, seconds: float) -> None:
        """Remember how long a task's agent took, for ranking its other jobs and next attempts."""
        task_id = job.key.task_id
        self._seen_s.setdefault(task_id, Mean()).add(seconds)
        self._all_seen_s.add(seconds)
        self._queues[Stage.INIT].rank_again(task_id)

    def took(self, stage: Stage, seconds: float, *, failed: bool = False) -> None:
        """An attempt is about to leave a stage, after `seconds`."""
        self._memory = self._policy.observe(stage, seconds, self._inside[stage], self._memory, failed=failed)

    def held_s(self, key: JobKey) -> float:
        """How long the gate has held the agent of a job."""
        return self._gate.held_s(key)

    def run_over(self, key: JobKey, *, left_behind: bool) -> None:
        """The agent of a job takes no more turns in this attempt, unless its stage was abandoned (`left_behind`)."""
        self._gate.ended(key, left_behind=left_behind)

    def _rank(self, job: Job) -> float:
        seen = self._seen_s.get(job.key.task_id)
        return self._policy.rank(job, None if seen is None else seen.mean, self._all_seen_s.mean)

    def view(self) -> DispatchView:
        return DispatchView(
            waiting=self._waiting[Stage.INIT],
            initialising=self._inside[Stage.INIT],
            ready=self._waiting[Stage.RUN],
            running=self._inside[Stage.RUN],
            ended=self._waiting[Stage.GRADE],
            grading=self._inside[Stage.GRADE],
            in_flight=self._in_flight,
            live=self._live.sandboxes,
            done=self.num_done,
            abandoned=self.num_abandoned(),
            load=self._load(),
            room=self._gate.room(),
        )

    def _pump_soon(self) -> None:
        """Admit jobs once, after everything that happens at this instant: a job that gives its sandbox back in order to
        be graded is in the queue by then."""
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Admit whatever may enter now."""
        self._pumping = False
        if not any(self._waiting.values()):
            return
        try:
            decision, self._memory = self._policy.decide(self.view(), self._memory)
        except Exception as raised:  # the event loop called us, so nothing else would notice
            self.on_defect(raised)
            return
        self._admit(Stage.GRADE, decision.grade)
        self._admit(Stage.RUN, decision.run)
        if not self._starved(Stage.GRADE):
            self._admit(Stage.INIT, decision.init)

    def _starved(self, stage: Stage) -> bool:
        """Whether the first in the queue has room in its stage and lacks only a sandbox."""
        first = self._queues[stage].first()
        return first is not None and self._room(stage) > 0 and not self._fits(first.need)

    def _room(self, stage: Stage) -> int:
        cap = self._caps[stage]
        return self._waiting[stage] if cap is None else cap - self._inside[stage]

    def _fits(self, need: Need) -> bool:
        limits, after = self._limits, self._live + need
        return (
            (need.sandboxes == 0 or limits.sandboxes is None or after.sandboxes <= limits.sandboxes)
            and (need.memory_mb == 0 or limits.memory_mb is None or after.memory_mb <= limits.memory_mb)
            and (need.milli_cpus == 0 or limits.cpus is None or after.milli_cpus <= _milli(limits.cpus))
        )

    def _admit(self, stage: Stage, proposed: int) -> None:
        places, queue = min(proposed, self._room(stage)), self._queues[stage]
        if places > MAX_PER_PASS:
            places = MAX_PER_PASS
            self._pump_soon()
        while places > 0 and (first := queue.first()) is not None:
            if not self._fits(first.need):
                return  # no overtaking: a heavy job would wait for ever behind light ones
            queue.pop()
            places -= 1
            self._waiting[stage] -= 1
            self._inside[stage] += 1
            self._live += first.need
            self._in_flight += stage is Stage.INIT
            first.granted.set_result(None)


def _raise(raised: Exception) -> None:
    raise raised
