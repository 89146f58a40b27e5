"""When a dead helper process is restarted. Pure.

Input: what became of the helper at each place. Output: how long to wait before the next start there, and whether any
is worth waiting for.
Invariants: a place is never given up, since the cause may pass. A machine that cannot start a process for a while is
not the helpers' fault: that is waited out, however long it takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.errors import is_shortage

FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 10.0
"""Each pause is twice the one before, up to this."""
MAX_DEATHS = 5
"""In a row at one place, with no work done in between: then another restart may not help."""


@dataclass(slots=True)
class _Place:
    num_deaths: int = 0
    num_tries: int = 0
    """Since it last did some work."""


class Restarts:
    def __init__(self, num_places: int) -> None:
        self._places = [_Place() for _ in range(num_places)]
        self._last = "it died"

    def worked(self, place: int) -> None:
        """The helper there did some work."""
        self._places[place] = _Place()

    def pause_s(self, place: int, raised: BaseException | None = None) -> float:
        """How long to wait before the next start there. `raised`: why the last one never came up; None if it died."""
        at = self._places[place]
        at.num_tries += 1
        if raised is None or not is_shortage(raised):
            at.num_deaths += 1
            self._last = "it died" if raised is None else f"{type(raised).__name__}: {raised}"
        return min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(at.num_tries - 1, 30))

    def hopeless(self) -> str | None:
        """What is wrong, if the helpers at all places keep dying."""
        if not all(at.num_deaths >= MAX_DEATHS for at in self._places):
            return None
        num = sum(at.num_deaths for at in self._places)
        return f"{num} helper processes died one after another; of the last: {self._last}"
