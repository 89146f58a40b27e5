"""The jobs that wait for a place in a stage.

Input: waiters as they come, each with its rank. Output: the next one: of the lowest step, there of the lowest rank, and
of those the first that came.
Invariants: the jobs of one task in one step share a rank, that of the first of them, so `rank_again` looks at
one job for all of them. No operation looks at the whole queue, averaged over many.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.dispatch.base import Need
from slipstream.types import Job


@dataclass(order=True, slots=True)
class Waiter:
    own_rank: float
    """Its rank among the jobs of its task, whatever was seen of that."""
    number: int
    job: Job = field(compare=False)
    need: Need = field(compare=False)
    granted: asyncio.Future[None] = field(compare=False)


@dataclass(slots=True, eq=False)
class _Alike:
    """The waiting jobs of one task in one step."""

    waiters: list[Waiter] = field(default_factory=list)
    """A heap; cancelled ones stay until they reach its front."""
    rank: float = 0.0
    place: int = 0
    """The number of its place in the queue; earlier ones do not count."""


class RankedQueue:
    def __init__(self, rank: Callable[[Job], float]) -> None:
        """`rank`: of a job, with what was seen of its task so far."""
        self._rank = rank
        self._alike: dict[str, dict[int, _Alike]] = {}
        """By task and step."""
        self._heap: list[tuple[int, float, int, int, str]] = []
        """Step, rank, number of the first waiter, `place` and task."""
        self._num_alike = 0
        self._num_places = 0

    def push(self, waiter: Waiter) -> None:
        key = waiter.job.key
        steps = self._alike.setdefault(key.task_id, {})
        if (alike := steps.get(key.step)) is None:
            alike = steps[key.step] = _Alike()
            self._num_alike += 1
        heapq.heappush(alike.waiters, waiter)
        rank = self._rank(alike.waiters[0].job)
        if rank != alike.rank or alike.waiters[0] is waiter:
            alike.rank = rank
            self._place(key.task_id, key.step, alike)

    def first(self) -> Waiter | None:
        """The next waiter that is not cancelled."""
        while self._heap:
            step, _, _, place, task_id = self._heap[0]
            alike = self._alike.get(task_id, {}).get(step)
            if alike is None or alike.place != place:
                heapq.heappop(self._heap)
            elif not alike.waiters[0].granted.cancelled():
                return alike.waiters[0]
            else:
                self._remove_first(task_id, step, alike)
        return None

    def pop(self) -> None:
        """Remove the next waiter, which `first` returned."""
        step, _, _, _, task_id = self._heap[0]
        self._remove_first(task_id, step, self._alike[task_id][step])

    def rank_again(self, task_id: str) -> None:
        """Something was seen of a task."""
        for step, alike in self._alike.get(task_id, {}).items():
            rank = self._rank(alike.waiters[0].job)
            if rank != alike.rank:
                alike.rank = rank
                self._place(task_id, step, alike)

    def _remove_first(self, task_id: str, step: int, alike: _Alike) -> None:
        """Remove the first waiter of the first place."""
        heapq.heappop(self._heap)
        heapq.heappop(alike.waiters)
        if alike.waiters:
            self._place(task_id, step, alike)
            return
        self._num_alike -= 1
        del self._alike[task_id][step]
        if not self._alike[task_id]:
            del self._alike[task_id]

    def _place(self, task_id: str, step: int, alike: _Alike) -> None:
        self._num_places += 1
        alike.place = self._num_places
        heapq.heappush(self._heap, (step, alike.rank, alike.waiters[0].number, alike.place, task_id))
        if len(self._heap) > 2 * self._num_alike + 64:
            places = {alike.place for steps in self._alike.values() for alike in steps.values()}
            self._heap = [entry for entry in self._heap if entry[3] in places]
            heapq.heapify(self._heap)
