"""How many tokens of context may be in flight: what the engine's cache holds, or what measurement says it does.

If the engine reports its cache, the budget is that, adjusted: while requests wait for cache it shrinks, while none do
it grows back. If not, the budget is found by its effect: the rate of turns is remembered for every amount in flight,
and the budget is a little above the amount with the best rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from slipstream.types import EngineLoad

CUT, RAISE = 0.85, 1.05
"""The factors by which the share shrinks and grows."""
SIZE = 1.15
"""Amounts in flight are grouped in steps of this factor."""
MIN_SHARE = 0.25
"""Of the reported cache; the budget never falls below it."""
FULL = 0.8
"""The share of the cache in use below which requests wait for something else: a slot, or one engine of several."""
MIN_WINDOW_S = 20.0
MIN_TURNS = 100
"""For a measured rate; with fewer it is mostly noise."""


class TokenBudget:
    def __init__(self, load: Callable[[], EngineLoad | None]) -> None:
        self._load = load
        self._share = 1.0
        """Of the reported cache."""
        self._learnt: float | None = None
        self._window_start_s: float | None = None
        self._num_turns = 0
        self._turn_s = 0.0
        self._rates: dict[int, float] = {}
        """Turns a second by the amount in flight, as the nearest power of `SIZE`."""

    def tokens(self) -> float | None:
        """None: no limit is known yet."""
        load = self._load()
        if load is None or load.kv_tokens is None:
            return self._learnt
        return self._share * load.kv_tokens

    def note(self, now_s: float, start_s: float, num_in_flight: int) -> None:
        """A turn that began at `start_s` is over, with `num_in_flight` tokens of context in flight."""
        if self._window_start_s is None:
            self._window_start_s = now_s
            return
        self._num_turns += 1
        self._turn_s += now_s - start_s
        passed_s = now_s - self._window_start_s
        if passed_s < max(MIN_WINDOW_S, 2 * self._turn_s / self._num_turns):
            return
        load = self._load()
        is_reported = load is not None and load.kv_tokens is not None
        if not is_reported and self._num_turns < MIN_TURNS:
            return
        rate, self._num_turns, self._turn_s, self._window_start_s = self._num_turns / passed_s, 0, 0.0, now_s
        if load is not None and load.kv_tokens is not None:
            self._share = max(MIN_SHARE, self._share * CUT) if _lacks_cache(load) else min(1.0, self._share * RAISE)
            return
        self._learn(rate, num_in_flight)

    def _learn(self, rate: float, num_in_flight: int) -> None:
        """Stay near the best rate, and probe a little above it now and then."""
        size = round(math.log(max(1, num_in_flight)) / math.log(SIZE))
        known = self._rates.get(size)
        self._rates[size] = rate if known is None else (known + rate) / 2
        if len(self._rates) >= 3:
            best = max(self._rates, key=lambda size: self._rates[size])
            self._learnt = SIZE ** (best + 2.5)


def _lacks_cache(load: EngineLoad) -> bool:
    """Whether requests wait for room in the cache."""
    if not load.waiting or (load.slots is not None and load.running >= load.slots):
        return False
    return load.kv_used is None or load.kv_used >= FULL
