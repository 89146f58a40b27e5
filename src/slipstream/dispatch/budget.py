"""How many tokens of context may be in flight: what the engine's cache holds, or what measurement says it does.

If the engine reports its cache, the budget is that, adjusted: while requests wait for cache it shrinks, while none do
it grows back. If not, the budget is found by its effect: the rate of sampled tokens is remembered for every amount in
flight, and the budget is a little above the amount with the best rate.
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
MIN_TURNS = 40
"""For a measured rate; with fewer it is mostly noise."""
REMEMBERED = 200
"""Turns of one amount, above which older ones count less."""
ABOVE = 2.5
"""How far to probe above the amount with the best rate, in powers of `SIZE`."""


class TokenBudget:
    def __init__(self, load: Callable[[], EngineLoad | None]) -> None:
        self._load = load
        self._share = 1.0
        """Of the reported cache."""
        self._window_start_s: float | None = None
        self._num_turns = 0
        self._turn_s = 0.0
        self._rates = Rates()

    def tokens(self, dear: float = 1.0) -> float | None:
        """None: no limit is known yet. `dear`: what it costs to be wrong, of the engine's time: if nothing, what the
        engine reports is the budget, whoever waits there."""
        load = self._load()
        if load is None or load.kv_tokens is None:
            return self._rates.best
        return (1.0 - dear * (1.0 - self._share)) * load.kv_tokens

    def note(self, now_s: float, start_s: float, num_in_flight: int, num_sampled: int = 0) -> None:
        """A turn that began at `start_s` is over, with `num_in_flight` tokens of context in flight."""
        load = self._load()
        if load is None or load.kv_tokens is None:
            return self._rates.note(now_s, num_in_flight, num_sampled or 1)
        if self._window_start_s is None:
            self._window_start_s = now_s
            return
        self._num_turns += 1
        self._turn_s += now_s - start_s
        if now_s - self._window_start_s < max(MIN_WINDOW_S, 2 * self._turn_s / self._num_turns):
            return
        self._num_turns, self._turn_s, self._window_start_s = 0, 0.0, now_s
        self._share = max(MIN_SHARE, self._share * CUT) if _lacks_cache(load) else min(1.0, self._share * RAISE)


class Rates:
    """The rate of work for every amount in flight, and the amount to stay below."""

    def __init__(self) -> None:
        self.best: float | None = None
        """A little above the amount with the best rate; None until three amounts are known."""
        self._seen: dict[int, list[float]] = {}
        """Turns, work and seconds by the amount in flight, as the nearest power of `SIZE`."""
        self._last_s: float | None = None

    def note(self, now_s: float, num_in_flight: int, work: int) -> None:
        """A turn is over that was so much work."""
        if self._last_s is not None:
            seen = self._seen.setdefault(round(math.log(max(1, num_in_flight)) / math.log(SIZE)), [0.0, 0.0, 0.0])
            for place, value in enumerate((1.0, float(work), now_s - self._last_s)):
                seen[place] += value
            if seen[0] >= REMEMBERED:
                seen[:] = (value / 2 for value in seen)
            self._learn()
        self._last_s = now_s

    def _learn(self) -> None:
        rates = {}
        for size in self._seen:
            near = [self._seen[each] for each in (size - 1, size, size + 1) if each in self._seen]
            turns, work, seconds = (sum(values) for values in zip(*near, strict=True))
            if turns >= MIN_TURNS and seconds > 0:
                rates[size] = work / seconds
        if len(rates) >= 3:
            self.best = SIZE ** (max(rates, key=lambda size: rates[size]) + ABOVE)


def _lacks_cache(load: EngineLoad) -> bool:
    """Whether requests wait for room in the cache."""
    if not load.waiting or (load.slots is not None and load.running >= load.slots):
        return False
    return load.kv_used is None or load.kv_used >= FULL
