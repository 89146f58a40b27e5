"""Who may enter which stage: counters, queues, and the one function that moves them.

Always holds: the limits are never exceeded; grants go grades first, then runs, then initialisations; while a ready
grade waits for a sandbox no initialisation is let in. Everything here is synchronous but `enter`, so no await can
come between a check and its count.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from slipstream.dispatch.base import Limits, Policy, Stage, View
from slipstream.errors import ConfigError
from slipstream.types import EngineLoad, Job


@dataclass(order=True, slots=True)
class _Waiter:
    rank: float
    number: int
    granted: asyncio.Future[None] = field(compare=False)
    weight: int = field(compare=False)


class Admission:
    def __init__(
        self, policy: Policy[Any], limits: Limits, load: Callable[[], EngineLoad | None] = lambda: None
    ) -> None:
        # Any: a policy's memory is its own affair; it is only handed back to it.
        self._policy = policy
        self._memory: Any = policy.start(limits)
        self._limits = limits
        self._load = load
        self._numbers = itertools.count()
        self._queues: dict[Stage, list[_Waiter]] = {stage: [] for stage in Stage}
        self._inside: dict[Stage, int] = dict.fromkeys(Stage, 0)
        self._caps = {Stage.INIT: limits.init, Stage.RUN: limits.run, Stage.GRADE: limits.grade}
        self._pumping = False
        self._live = 0
        self._in_flight = 0
        self._seen_s: dict[str, float] = {}
        self.num_done = 0
        self.num_abandoned: Callable[[], int] = lambda: 0

    def check(self, job: Job) -> None:
        """Refuse a job that could never be admitted."""
        cap = self._limits.sandboxes
        if cap is not None and job.weight > cap:
            raise ConfigError(
                f"job {job.key} weighs {job.weight} sandbox units, but the limit is {cap}: raise the limit"
            )

    async def enter(self, stage: Stage, job: Job, *, weight: int = 0) -> None:
        """Wait for a place in `stage`, and for `weight` units of live sandboxes together with it."""
        rank = self._policy.rank(job, self._seen_s.get(job.key.task_id))
        future = asyncio.get_running_loop().create_future()
        waiter = _Waiter(rank, next(self._numbers), future, weight)
        heapq.heappush(self._queues[stage], waiter)
        self._pump_soon()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._inside[stage] -= 1
                self._live -= weight
                self._in_flight -= stage is Stage.INIT
            elif waiter in self._queues[stage]:
                self._queues[stage].remove(waiter)
                heapq.heapify(self._queues[stage])
            self._pump_soon()
            raise

    def leave(self, stage: Stage) -> None:
        self._inside[stage] -= 1
        self._pump_soon()

    def give_back(self, weight: int) -> None:
        """Units of a sandbox that is closed now."""
        self._live -= weight
        self._pump_soon()

    def end_attempt(self) -> None:
        """An attempt that had entered INIT is over."""
        self._in_flight -= 1
        self._pump_soon()

    def ran(self, job: Job, seconds: float) -> None:
        """Remember how long a task's agent took, for ranking its next attempts."""
        self._seen_s[job.key.task_id] = seconds

    def view(self) -> View:
        return View(
            waiting=len(self._queues[Stage.INIT]),
            initialising=self._inside[Stage.INIT],
            ready=len(self._queues[Stage.RUN]),
            running=self._inside[Stage.RUN],
            ended=len(self._queues[Stage.GRADE]),
            grading=self._inside[Stage.GRADE],
            in_flight=self._in_flight,
            live=self._live,
            done=self.num_done,
            abandoned=self.num_abandoned(),
            load=self._load(),
        )

    def _pump_soon(self) -> None:
        """Decide once what may be, after everything that happens at this instant: a job that gives its sandbox back
        in order to be graded is in the queue by then."""
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Let in whoever may enter now."""
        self._pumping = False
        if not any(self._queues.values()):
            return
        decision, self._memory = self._policy.decide(self.view(), self._memory)
        self._admit(Stage.GRADE, decision.grade)
        self._admit(Stage.RUN, decision.run)
        if not self._starved(Stage.GRADE):
            self._admit(Stage.INIT, decision.init)

    def _starved(self, stage: Stage) -> bool:
        """Whether the first in the queue has room in its stage and lacks a sandbox only."""
        queue = self._queues[stage]
        return bool(queue) and self._room(stage) > 0 and not self._fits(queue[0].weight)

    def _room(self, stage: Stage) -> int:
        cap = self._caps[stage]
        return len(self._queues[stage]) if cap is None else cap - self._inside[stage]

    def _fits(self, weight: int) -> bool:
        cap = self._limits.sandboxes
        return cap is None or self._live + weight <= cap

    def _admit(self, stage: Stage, proposed: int) -> None:
        queue = self._queues[stage]
        places = min(proposed, self._room(stage))
        while queue and places > 0:
            if queue[0].granted.cancelled():
                heapq.heappop(queue)
                continue
            if not self._fits(queue[0].weight):
                return  # no overtaking: a heavy job would wait for ever behind light ones
            waiter = heapq.heappop(queue)
            places -= 1
            self._inside[stage] += 1
            self._live += waiter.weight
            self._in_flight += stage is Stage.INIT
            waiter.granted.set_result(None)
