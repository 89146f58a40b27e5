"""How many tokens of context may be in flight: what the engine's cache holds, or what experience says it does.

An engine that reports its cache is believed, but for what it cannot know: while requests wait for room in it, the
budget shrinks; while none does, it grows back. Where an engine reports nothing, the budget is found by its effect: it
grows step by step as long as more tokens in flight get more done, and is cut when they get less done.
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream.types import EngineLoad

CUT, RAISE = 0.85, 1.05
"""Down in proportion, up by a step."""
WORSE = 0.93
"""What share of the best rate is a sign of trouble."""
LEAST_WINDOW_S = 20.0


class TokenBudget:
    def __init__(self, load: Callable[[], EngineLoad | None]) -> None:
        self._load = load
        self._share = 1.0
        """Of the reported cache."""
        self._learnt: float | None = None
        self._window_start_s: float | None = None
        self._num_turns = 0
        self._turn_s = 0.0
        self._rate = 0.0
        """Turns a second in the window before."""

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
        if passed_s < max(LEAST_WINDOW_S, 2 * self._turn_s / self._num_turns):
            return
        rate, self._num_turns, self._turn_s, self._window_start_s = self._num_turns / passed_s, 0, 0.0, now_s
        load = self._load()
        if load is not None and load.kv_tokens is not None:
            self._share = max(0.25, self._share * CUT) if load.waiting else min(1.0, self._share * RAISE)
            return
        self._learn(rate, num_in_flight)

    def _learn(self, rate: float, num_in_flight: int) -> None:
        if self._learnt is None:
            if rate < WORSE * self._rate:
                self._learnt = CUT * num_in_flight
        elif rate < WORSE * self._rate:
            self._learnt *= CUT
        elif num_in_flight > 0.9 * self._learnt:
            self._learnt *= RAISE
        self._rate = max(rate, 0.97 * self._rate)
