"""How many tokens of context may be in flight: what the engine's cache holds, or what experience says it does.

An engine that reports its cache is believed, but for what it cannot know: while requests wait for room in it, the
budget shrinks; while none does, it grows back. Where an engine reports nothing, the budget is found by its effect: how
many turns a second were done is remembered for every size of what was in flight, and the budget is a little above the
size at which the most is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from slipstream.types import EngineLoad

CUT, RAISE = 0.85, 1.05
"""Down in proportion, up by a step."""
SIZE = 1.15
"""Sizes of what is in flight are told apart by this factor."""
MIN_SHARE = 0.25
"""Of what the engine reports: the budget is not cut below that."""
MIN_WINDOW_S = 20.0
MIN_TURNS = 100
"""Where the rate of turns is all there is to go by: with fewer it is mostly chance."""


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
        """Turns a second, by the size of what was in flight: the power of `SIZE` that is nearest."""

    def tokens(self) -> float | None:
        """None: no limit is known yet."""
        load = self._load()
        if load is None or load.kv_tokens is None:
            return self._learnt
        return self._share * load.kv_tokens

    def note(self, now_s: float, start_s: float, num_in_flight: int) -> None:
        """A turn is over that began at `start_s`, with so many tokens of context in flight."""
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
            self._share = max(MIN_SHARE, self._share * CUT) if load.waiting else min(1.0, self._share * RAISE)
            return
        self._learn(rate, num_in_flight)

    def _learn(self, rate: float, num_in_flight: int) -> None:
        """Stay where the most is done, and try a little more than that now and then."""
        size = round(math.log(max(1, num_in_flight)) / math.log(SIZE))
        known = self._rates.get(size)
        self._rates[size] = rate if known is None else (known + rate) / 2
        if len(self._rates) >= 3:
            best = max(self._rates, key=lambda size: self._rates[size])
            self._learnt = SIZE ** (best + 2.5)
