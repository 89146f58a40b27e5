"""The time that a session has, and what still has to happen in it.

A machine is lent for some minutes, and what is on it then is lost: so training stops while there is time left for the
evaluation of what was learnt and for packing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PACKING_S = 20.0
MARGIN = 1.25
"""On what is estimated from what something took before."""
FIRST_STEP_S = 45.0
"""Assumed of a training step before one was measured."""
_NUM_STEPS = 3
"""The longest of the last so many is what the next may take."""


class Budget:
    def __init__(self, minutes: float | None, *, now: Callable[[], float] = time.monotonic) -> None:
        """`minutes`: from now; None: as long as it takes."""
        self._now = now
        self._minutes = minutes
        self._end_s = None if minutes is None else now() + 60 * minutes
        self._took_s: list[float] = []
        self._asked_s: float | None = None

    @property
    def left_s(self) -> float:
        """Until packing has to begin."""
        return float("inf") if self._end_s is None else self._end_s - self._now() - PACKING_S

    @property
    def until_s(self) -> float | None:
        """When packing has to begin, on the clock of the event loop; None: whenever."""
        return None if self._end_s is None else self._end_s - PACKING_S

    def share_s(self, share: float) -> float:
        """A part of the whole time; 0 if that is unlimited."""
        return 60 * share * (self._minutes or 0.0)

    def begin_steps(self) -> None:
        """What has passed since the last step is no step."""
        self._asked_s = None

    def has_step(self, after_s: float) -> bool:
        """Whether there is time for another step and for `after_s` of other work. Asked once before every step."""
        now_s = self._now()
        if self._asked_s is not None:
            self._took_s = [*self._took_s, now_s - self._asked_s][-_NUM_STEPS:]
        self._asked_s = now_s
        return self.left_s >= MARGIN * (max(self._took_s, default=FIRST_STEP_S) + after_s)
