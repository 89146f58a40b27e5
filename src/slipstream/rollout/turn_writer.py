"""Makes the turns of all attempts durable soon after they are taken, with one flush for many.

Invariants: a turn is being written as soon as the flush under way when it was taken is over. If one fails, every
attempt that watches is told.
"""

from __future__ import annotations

import asyncio

from slipstream.errors import JournalError
from slipstream.seams import Journal


class TurnWriter:
    """One for all attempts that share a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._has_unwritten = False
        self._writing: asyncio.Task[None] | None = None
        """No attempt owns it, as it writes for all of them; it ends by itself."""
        self._watched: set[asyncio.Future[None]] = set()

    def took(self) -> None:
        """A turn was appended to the journal."""
        self._has_unwritten = True
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="writing turns")

    async def watch(self) -> None:
        """Wait until a turn cannot be written, then raise the JournalError."""
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watched.add(failed)
        try:
            await failed
        finally:
            self._watched.discard(failed)

    async def _write(self) -> None:
        try:
            while self._has_unwritten:
                self._has_unwritten = False
                await self._journal.flush()
        except JournalError as raised:
            for failed in self._watched:
                if not failed.done():
                    failed.set_exception(JournalError(str(raised)))
        finally:
            self._writing = None
