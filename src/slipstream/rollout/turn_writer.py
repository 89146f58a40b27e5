"""Makes the turns of all attempts durable soon after they are taken, with one flush for many.

Invariants: a turn is being written once the flush that was under way when it was taken is over. If one fails, every
attempt is cancelled and raises its JournalError.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from slipstream.errors import JournalError
from slipstream.seams import Journal


class TurnWriter:
    """One for all attempts that share a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._has_unwritten = False
        self._writing: asyncio.Task[None] | None = None
        """It writes for all attempts, so none of them owns it; it ends by itself."""
        self._guarded: dict[_Guarded, None] = {}
        """In the order in which they came."""

    def took(self) -> None:
        """A turn was appended to the journal."""
        self._has_unwritten = True
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="writing turns")

    def guarded(self) -> _Guarded:
        """`async with` around an agent's run: it is cancelled, and the JournalError raised, when turns cannot be
        written."""
        return _Guarded(self._guarded)

    async def _write(self) -> None:
        try:
            while self._has_unwritten:
                self._has_unwritten = False
                await self._journal.flush()
        except JournalError as raised:
            for guarded in list(self._guarded):
                guarded.fail(JournalError(str(raised)))
        finally:
            self._writing = None


class _Guarded:
    def __init__(self, all_guarded: dict[_Guarded, None]) -> None:
        self._all = all_guarded
        self._task: asyncio.Task[object] | None = None
        self._failed: JournalError | None = None

    def fail(self, failed: JournalError) -> None:
        if self._failed is None and self._task is not None:
            self._failed = failed
            self._task.cancel()

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._all[self] = None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._all.pop(self, None)
        if self._failed is not None and self._task is not None and self._task.uncancel() == 0:
            raise self._failed
