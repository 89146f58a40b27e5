"""Forecasts from finished and running rollouts: a running mean, and how many turns agents take. Pure: no clock."""

from __future__ import annotations

import math


class Mean:
    """A running mean and deviation."""

    __slots__ = ("_square", "mean", "num")

    def __init__(self) -> None:
        self.num = 0
        self.mean = 0.0
        self._square = 0.0

    def add(self, value: float) -> None:
        self.num += 1
        distance = value - self.mean
        self.mean += distance / self.num
        self._square += distance * (value - self.mean)

    @property
    def deviation(self) -> float:
        return math.sqrt(self._square / self.num) if self.num else 0.0


class TurnForecast:
    """How many turns agents take, estimated from finished agents and from running ones.

    A running agent in its tenth turn counts as one that did not end earlier (the Kaplan-Meier estimate).
    """

    def __init__(self) -> None:
        self._took = [0]
        """How many agents took turn k; turns count from 1."""
        self._ended = [0]
        """How many ended after turn k."""
        self._shares: list[float] | None = None

    @property
    def longest(self) -> int:
        """The most turns that any agent took."""
        return len(self._took) - 1

    def took(self, turn: int) -> None:
        """An agent begins its turn number `turn`."""
        while len(self._took) <= turn:
            self._took.append(0)
            self._ended.append(0)
        self._took[turn] += 1
        self._shares = None

    def ended(self, turn: int) -> None:
        """An agent's turn number `turn` was its last."""
        self._ended[turn] += 1
        self._shares = None

    def alive(self, turn: int, ahead: int) -> float:
        """The share of agents in turn `turn` (0: not begun) still running `ahead` turns later; one half beyond what was
        ever seen."""
        shares = self._survival()
        if turn >= len(shares) or shares[turn] == 0.0:
            return 0.5
        return shares[min(turn + ahead, len(shares) - 1)] / shares[turn]

    def _survival(self) -> list[float]:
        """By k: the share of agents that begin turn k, up to one more than was ever seen."""
        if self._shares is None:
            share, shares = 1.0, [1.0]
            for took, ended in zip(self._took, self._ended, strict=True):
                share *= 1.0 - ended / took if took else 1.0
                shares.append(share)
            self._shares = shares
        return self._shares
