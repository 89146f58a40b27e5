"""How many sandboxes of a kind are worth keeping warm.

Input: what is announced, the times of arrivals, and how long starts take. Output: a number for each kind, and shares
of a budget. Invariants: no clock is read here, so the same history gives the same numbers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping
from typing import TypeVar

AHEAD = 1.5
"""How many times the arrivals of one start's duration are kept ready: they come in bursts."""
WORTH = 0.1
"""Fewer arrivals than this while one starts are not worth a warm sandbox."""
REMEMBERED = 32

Key = TypeVar("Key", bound=Hashable)


class Demand:
    """What is known of the opens of one kind. It is idle once nobody came for `idle_s`, and none is expected."""

    def __init__(self, *, idle_s: float) -> None:
        self._idle_s = idle_s
        self._arrivals: deque[float] = deque(maxlen=REMEMBERED)
        self._start_s = 0.0
        self.num_expected = 0
        """Opens that were announced and have not come."""
        self._last_s = -math.inf

    @property
    def idle_at_s(self) -> float:
        return math.inf if self.num_expected else self._last_s + self._idle_s

    def expect(self, num: int) -> None:
        """From now on `num` opens are coming, whatever was said before; with none it is idle at once."""
        self.num_expected = num
        if num == 0:
            self._last_s = -math.inf

    def arrived(self, now_s: float) -> None:
        self._arrivals.append(now_s)
        self._last_s = now_s
        self.num_expected = max(0, self.num_expected - 1)

    def started(self, seconds: float) -> None:
        """A start took so long."""
        self._start_s = seconds if self._start_s == 0 else 0.8 * self._start_s + 0.2 * seconds

    def wanted(self, now_s: float) -> int:
        """How many should be ready: those that are expected, or those that come while another starts."""
        if now_s >= self.idle_at_s:
            return 0
        while_starting = self._rate(now_s) * self._start_s
        return max(self.num_expected, math.ceil(AHEAD * while_starting) if while_starting >= WORTH else 0)

    def _rate(self, now_s: float) -> float:
        """Arrivals a second of late. One alone says nothing."""
        if len(self._arrivals) < 2:
            return 0.0
        return len(self._arrivals) / max(now_s - self._arrivals[0], 1e-3)


def shares(wanted: Mapping[Key, int], budget: int) -> dict[Key, int]:
    """What each may have of the budget: all that it wants if there is enough, else in proportion to that."""
    total = sum(wanted.values())
    if total <= budget:
        return dict(wanted)
    exact = {key: num * budget / total for key, num in wanted.items()}
    given = {key: math.floor(part) for key, part in exact.items()}
    by_remainder = sorted(exact, key=lambda key: given[key] - exact[key])
    for key in by_remainder[: budget - sum(given.values())]:
        given[key] += 1
    return given
