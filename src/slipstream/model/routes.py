"""Chooses between several servers of the same model for each request.

Input: the session of each request, and which servers gave no answer. Output: a server.
Invariants: a session starts at the server with the fewest sessions and stays there, since that has its cache. It moves
only if its server gave no answer and there is another, and then stays at that one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

AVOIDED_S = 30.0
"""How long no session starts at a server that gave no answer, if there is another."""
MAX_SESSIONS = 100_000
"""Beyond that the least recently used one is forgotten: not every caller says when a session is over."""


class Routes:
    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = tuple(urls)
        self._homes: OrderedDict[str, str] = OrderedDict()
        """From a session to its server, least recently used first."""
        self._num_at = dict.fromkeys(self.urls, 0)
        self._avoided_until_s = dict.fromkeys(self.urls, float("-inf"))
        self._num_without = 0
        """Number of requests without a session, which go to the servers in turn."""

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
        """The server gave no answer."""
        self._avoided_until_s[url] = now_s + AVOIDED_S

    def forget(self, session: str) -> None:
        """The session is over."""
        home = self._homes.pop(session, None)
        if home is not None:
            self._num_at[home] -= 1
