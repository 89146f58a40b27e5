"""Estimates how many sandboxes of a kind are worth keeping warm.

Input: announced requests, arrival times, and start durations. Output: a number for each kind, and shares of a budget.
Invariants: reads no clock, so the same history gives the same numbers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping
from typing import TypeVar

AHEAD = 1.5
"""Keep ready this multiple of the arrivals during one start, since they come in bursts."""
WORTH = 0.1
"""Fewer arrivals than this during one start are not worth a warm sandbox."""
REMEMBERED = 32

Key = TypeVar("Key", bound=Hashable)


class Demand:
    """The demand for one kind of sandbox. It is idle after `idle_s` without a request, if none is expected."""

    def __init__(self, *, idle_s: float) -> None:
        self._idle_s = idle_s
        self._arrivals: deque[float] = deque(maxlen=REMEMBERED)
        self._start_s = 0.0
        self.num_expected = 0
        """Announced requests that have not arrived yet."""
        self._last_s = -math.inf

    @property
    def idle_at_s(self) -> float:
        return math.inf if self.num_expected else self._last_s + self._idle_s

    def expect(self, num: int) -> None:
        """Announce `num` requests, replacing earlier announcements; with 0 it is idle at once."""
        self.num_expected = num
        if num == 0:
            self._last_s = -math.inf

    def arrived(self, now_s: float) -> None:
        self._arrivals.append(now_s)
        self._last_s = now_s
        self.num_expected = max(0, self.num_expected - 1)

    def started(self, seconds: float) -> None:
        """Record the duration of a start."""
        self._start_s = seconds if self._start_s == 0 else 0.8 * self._start_s + 0.2 * seconds

    def wanted(self, now_s: float) -> int:
        """How many should be ready: the expected ones, or as many as arrive during one start."""
        if now_s >= self.idle_at_s:
            return 0
        while_starting = self._rate(now_s) * self._start_s
        return max(self.num_expected, math.ceil(AHEAD * while_starting) if while_starting >= WORTH else 0)

    def _rate(self, now_s: float) -> float:
        """Recent arrivals per second. A single one says nothing."""
        if len(self._arrivals) < 2:
            return 0.0
        return len(self._arrivals) / max(now_s - self._arrivals[0], 1e-3)


def shares(wanted: Mapping[Key, int], budget: int) -> dict[Key, int]:
    """Each key's share of the budget: all that it wants if there is enough, otherwise in proportion."""
    total = sum(wanted.values())
    if total <= budget:
        return dict(wanted)
    exact = {key: num * budget / total for key, num in wanted.items()}
    given = {key: math.floor(part) for key, part in exact.items()}
    by_remainder = sorted(exact, key=lambda key: given[key] - exact[key])
    for key in by_remainder[: budget - sum(given.values())]:
        given[key] += 1
    return given
