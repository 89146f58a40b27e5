"""A level over time, such as the number of open calls or wanted cores, with fast means.

Input: weighted intervals. Output: the mean of their sum over any interval, at the cost of a lookup.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import pairwise

Interval = tuple[float, float, float]
"""From, to, weight."""


class Level:
    """A step function of time, 0 outside of its intervals."""

    def __init__(self, intervals: Iterable[Interval], shaped: Callable[[float], float] = lambda level: level) -> None:
        """`shaped` transforms the sum of weights, such as `lambda level: min(level, 1.0)`."""
        changes: dict[float, float] = {}
        for start_s, end_s, weight in intervals:
            if end_s > start_s:
                changes[start_s] = changes.get(start_s, 0.0) + weight
                changes[end_s] = changes.get(end_s, 0.0) - weight
        self._times_s = sorted(changes)
        self._levels: list[float] = []
        level = 0.0
        for time_s in self._times_s:
            level += changes[time_s]
            self._levels.append(shaped(max(0.0, level) if abs(level) > 1e-9 else 0.0))
        self._sums = [0.0]
        for (start_s, end_s), value in zip(pairwise(self._times_s), self._levels, strict=False):
            self._sums.append(self._sums[-1] + (end_s - start_s) * value)

    def at(self, time_s: float) -> float:
        place = bisect_right(self._times_s, time_s) - 1
        return self._levels[place] if 0 <= place < len(self._levels) - 1 else 0.0

    def mean(self, start_s: float, end_s: float) -> float:
        """The mean over an interval; for an empty one, the level there."""
        if end_s <= start_s:
            return self.at(start_s)
        return (self._until(end_s) - self._until(start_s)) / (end_s - start_s)

    def pieces(self) -> Iterable[Interval]:
        """The intervals where it is above 0."""
        for (start_s, end_s), level in zip(pairwise(self._times_s), self._levels, strict=False):
            if level > 0:
                yield start_s, end_s, level

    def _until(self, time_s: float) -> float:
        place = bisect_right(self._times_s, time_s) - 1
        if place < 0:
            return 0.0
        if place >= len(self._times_s) - 1:
            return self._sums[-1]
        return self._sums[place] + (time_s - self._times_s[place]) * self._levels[place]
