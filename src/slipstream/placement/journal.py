"""The journal in the run's own process, for helpers: both ends of the link.

Input: events of all helpers. Output: each is in the journal in the order in which its helper sent it, and is flushed
without being asked for: the journal is flushed for all helpers together, at most once in `PAUSE_S`, and each helper is
told how many of its events are durable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from slipstream.errors import JournalError
from slipstream.link import Link
from slipstream.placement.messages import Fields, turn_fields, turn_of
from slipstream.seams import Event, Journal, TurnTaken

PAUSE_S = 0.01
"""Between two flushes: a commit costs the run's own process as much as several turns, and takes any number."""


class RemoteJournal:
    """A Journal in a helper."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._num_appended = 0
        self._num_durable = 0
        self._refused: JournalError | None = None
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Flushes, by how many events have to be durable."""

    def append(self, event: Event) -> None:
        self._num_appended += 1
        if isinstance(event, TurnTaken):
            # What cannot be encoded is sent as it is: the run store then says what is wrong with it.
            with suppress(TypeError, ValueError, OverflowError, RecursionError, AttributeError):
                self._link.tell("append_turn", turn_fields(event))
                return
        self._link.tell("append", event)

    async def flush(self) -> None:
        if self._refused is not None:
            raise self._refused
        if self._num_durable < self._num_appended:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((self._num_appended, done))
            await done

    def durable(self, num: int) -> None:
        """The first `num` events are."""
        self._num_durable = num
        while self._waiting and self._waiting[0][0] <= num:
            _, done = self._waiting.popleft()
            if not done.done():
                done.set_result(None)

    def refuse(self, why: JournalError) -> None:
        self._refused = why
        while self._waiting:
            _, done = self._waiting.popleft()
            if not done.done():
                done.set_exception(why)


class HelpersJournal:
    """The journal's side, for all helpers. `journal` is set before the first attempt."""

    def __init__(self, see: Callable[[Event], None]) -> None:
        """`see` is called with each event before it is in the journal."""
        self.journal: Journal | None = None
        self._see = see
        self._num_came: dict[Link, int] = {}
        self._num_told: dict[Link, int] = {}
        self._refused: JournalError | None = None
        """Why the journal refused an event."""
        self._flushing: asyncio.Task[None] | None = None

    def append_turn(self, link: Link, fields: Fields) -> None:
        self.append(link, turn_of(fields))

    def append(self, link: Link, event: Event) -> None:
        assert self.journal is not None, "the journal is there before the first attempt"
        self._num_came[link] = self._num_came.get(link, 0) + 1
        self._see(event)
        try:
            self.journal.append(event)
        except JournalError as raised:  # the helper that sent it hears of this at its next flush
            self._refused = raised
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush(self.journal), name="flushing what helpers wrote")

    def forget(self, link: Link) -> None:
        """The helper is gone."""
        self._num_came.pop(link, None)
        self._num_told.pop(link, None)

    async def aclose(self) -> None:
        if self._flushing is not None:
            await asyncio.wait([self._flushing])

    async def _flush(self, journal: Journal) -> None:
        try:
            while news := {link: num for link, num in self._num_came.items() if num > self._num_told.get(link, 0)}:
                await asyncio.sleep(PAUSE_S)
                news = {link: self._num_came.get(link, num) for link, num in news.items()}
                self._num_told |= {link: num for link, num in news.items() if link in self._num_came}
                error = self._refused
                if error is None:
                    try:
                        await journal.flush()
                    except JournalError as raised:
                        error = raised
                for link, num in news.items():
                    if error is None:
                        link.tell("durable", num)
                    else:
                        link.tell("refuse_events", error)
        finally:
            self._flushing = None
