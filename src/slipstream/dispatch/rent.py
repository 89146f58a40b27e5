"""How long an agent that waits for a tool keeps its place in the engine's cache: while that is cheaper than to compute
its context again. Pure: no clock.

A context of C tokens that stays for W seconds takes C W token-seconds of a cache of K tokens, so W C / K seconds of
what the engine could do; to compute it again takes C / p seconds at p prompt tokens a second. So a wait of up to K / p
seconds is worth the place, whatever the context. How long a wait will be is known from those before it, of the same
task if there were enough: the stay is the one at which past waits would have cost the least.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import inf

KNOWN = 8
"""Waits of a task after which they are relied on rather than those of all tasks."""
REMEMBERED = 64
"""Waits kept, of each task and of all."""


class _Waits:
    __slots__ = ("_in_order", "_recent")

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._in_order: list[float] = []

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, seconds: float) -> None:
        self._recent.append(seconds)
        insort(self._in_order, seconds)
        if len(self._recent) > REMEMBERED:
            del self._in_order[bisect_left(self._in_order, self._recent.popleft())]

    def best_stay_s(self, worth_s: float) -> float:
        """Which stay would have cost the least: each wait costs its own length up to the stay, and `worth_s` besides if
        it was longer. Never more than `worth_s`: a longer stay is dearer than the loss, whatever comes."""
        num, passed = len(self._in_order), 0.0
        best_s, least = 0.0, num * worth_s
        for place, seconds in enumerate(self._in_order):
            if seconds > worth_s:
                break
            passed += seconds
            longer = num - place - 1
            cost = passed + longer * (seconds + worth_s)
            if cost <= least:
                best_s, least = (seconds, cost)
        return worth_s if best_s and best_s == self._in_order[-1] else best_s


class Rent:
    def __init__(self) -> None:
        self._all = _Waits()
        self._by_task: dict[str, _Waits] = {}

    def waited(self, task_id: str, seconds: float) -> None:
        """An agent asks for its next turn, so long after the last."""
        self._all.add(seconds)
        self._by_task.setdefault(task_id, _Waits()).add(seconds)

    def stay_s(self, task_id: str, worth_s: float) -> float:
        """How long to keep a place through a wait; `worth_s`: the wait that costs as much as to come back without."""
        if worth_s == inf:
            return inf
        own = self._by_task.get(task_id)
        waits = self._all if own is None or len(own) < KNOWN else own
        return waits.best_stay_s(worth_s) if len(waits) >= KNOWN else worth_s
