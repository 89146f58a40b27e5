"""When a helper process that is gone is started again.

Enters: what became of the helper of each place. Leaves: how long to wait before another is started there, and whether
any is worth waiting for. Pure.
Always holds: a place is never given up, since what was wrong may pass. A machine that can start no process for a while
is no fault of the helpers: that is waited out, however long it takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.errors import is_shortage

FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 10.0
"""Each pause is twice the one before, up to this."""
MAX_DEATHS = 5
"""Of the helpers of a place in a row, with nothing done between: then something is wrong that another may not mend."""


@dataclass(slots=True)
class _Place:
    num_deaths: int = 0
    num_tries: int = 0
    """Since something was done here."""


class Restarts:
    def __init__(self, num_places: int) -> None:
        self._places = [_Place() for _ in range(num_places)]
        self._last = "it is gone"

    def worked(self, place: int) -> None:
        """The helper there has done something."""
        self._places[place] = _Place()

    def pause_s(self, place: int, raised: BaseException | None = None) -> float:
        """Before the next one is started there, as the last is gone; or it never came up, and this was `raised`."""
        at = self._places[place]
        at.num_tries += 1
        if raised is None or not is_shortage(raised):
            at.num_deaths += 1
            self._last = "it is gone" if raised is None else f"{type(raised).__name__}: {raised}"
        return min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(at.num_tries - 1, 30))

    def hopeless(self) -> str | None:
        """What is wrong, if the helpers of all places die one after another."""
        if not all(at.num_deaths >= MAX_DEATHS for at in self._places):
            return None
        num = sum(at.num_deaths for at in self._places)
        return f"{num} helper processes died one after another; of the last: {self._last}"
