"""A shared resource on the event loop's clock: all users get the same speed, and fewer users are faster.

Input: amounts of work. Output: the wait until each is done. Invariants: work is neither lost nor done twice; a
cancelled user leaves at once, and the others speed up. One timer serves all users, so that thousands cost little.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MIN_S = 1e-9
"""The resolution of the event loop's clock: work that would finish within it is done."""


class SharedResource:
    """`speed(n)`: work per second for each of `n` users."""

    def __init__(self, speed: Callable[[int], float]) -> None:
        self._speed = speed
        self._loop = asyncio.get_running_loop()
        self._inside: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._num_inside = 0
        self._each_done = 0.0
        """The work done by a user that was always inside."""
        self._now_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._linked = [self]
        self.busy_s = 0.0
        """Seconds with at least one user."""

    @property
    def num_inside(self) -> int:
        return self._num_inside

    async def work(self, amount: float) -> None:
        if amount <= 0:
            return
        with self.changing():
            future = self._loop.create_future()
            heapq.heappush(self._inside, (self._each_done + amount, next(self._numbers), future))
            self._num_inside += 1
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                with self.changing():
                    self._num_inside -= 1
            raise

    def link(self, other: SharedResource) -> None:
        """The number of users of each affects the speed of the other."""
        joined = [*dict.fromkeys((*self._linked, *other._linked))]
        for one in joined:
            one._linked = joined

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Change what the speed depends on inside this context: work so far is counted at the old speed."""
        for one in self._linked:
            one._catch_up()
        yield
        for one in self._linked:
            one._set_timer()

    def _catch_up(self) -> None:
        now_s = self._loop.time()
        passed_s, self._now_s = now_s - self._now_s, now_s
        if self._num_inside and passed_s > 0:
            self._each_done += passed_s * self._speed(self._num_inside)
            self.busy_s += passed_s

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._inside and self._inside[0][2].done():
            heapq.heappop(self._inside)
        if self._inside:
            speed = self._speed(self._num_inside)
            if speed > 0:
                left = max(0.0, self._inside[0][0] - self._each_done)
                self._timer = self._loop.call_at(self._now_s + left / speed, self._wake)

    def _wake(self) -> None:
        self._timer = None
        with self.changing():
            tick_s = max(MIN_S, 4 * math.ulp(self._now_s))
            reached = self._each_done * (1 + 1e-12) + tick_s * self._speed(max(1, self._num_inside))
            while self._inside and (self._inside[0][2].done() or self._inside[0][0] <= reached):
                _, _, future = heapq.heappop(self._inside)
                if not future.done():
                    future.set_result(None)
                    self._num_inside -= 1
