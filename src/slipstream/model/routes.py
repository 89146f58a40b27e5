"""Which of several servers of the same model a request goes to.

Input: the session of each request, and which servers gave no answer. Output: a server.
Invariants: a session stays at the server where it began, for that is where its cache is; it begins where the fewest
sessions are. It moves only when its server gave no answer and another one may, and stays there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

AVOIDED_S = 30.0
"""For how long nothing begins at a server that gave no answer, as long as there is another."""
MAX_SESSIONS = 100_000
"""Beyond that the one that was silent for longest is forgotten: not everybody says when a session is over."""


class Routes:
    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = tuple(urls)
        self._homes: OrderedDict[str, str] = OrderedDict()
        """From a session to its server, the one that was silent for longest first."""
        self._num_at = dict.fromkeys(self.urls, 0)
        self._avoided_until_s = dict.fromkeys(self.urls, float("-inf"))
        self._num_without = 0
        """Requests that belong to no session; they go round."""

    def home(self, session: str, now_s: float) -> str:
        usable = [url for url in self.urls if self._avoided_until_s[url] <= now_s] or list(self.urls)
        if not session:
            self._num_without += 1
            return usable[self._num_without % len(usable)]
        if self._homes.get(session) not in usable:
            self.forget(session)
            self._homes[session] = home = min(usable, key=self._num_at.__getitem__)
            self._num_at[home] += 1
            if len(self._homes) > MAX_SESSIONS:
                self.forget(next(iter(self._homes)))
        self._homes.move_to_end(session)
        return self._homes[session]

    def avoid(self, url: str, now_s: float) -> None:
        """It gave no answer."""
        self._avoided_until_s[url] = now_s + AVOIDED_S

    def forget(self, session: str) -> None:
        """Nothing more is to come of it."""
        home = self._homes.pop(session, None)
        if home is not None:
            self._num_at[home] -= 1
