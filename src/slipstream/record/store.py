"""The run store: a Journal on one SQLite file per run.

`append` keeps an event in memory; it is on disk when `flush` returns. One thread writes: whatever is pending when it
starts goes into one transaction, so flushes that arrive during a commit share the next one. Samples of the machine come
from any thread and are written with the next events.
Invariants: one process writes a run; a job has at most one rollout; what was flushed survives a kill; after a failed
write nothing more is kept and every flush raises, while what was committed stays readable. A flush also fails once the
run's files were deleted or replaced, since what is written then cannot be read.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from slipstream.aio import PerPass
from slipstream.errors import ConfigError, JournalError
from slipstream.record.files_in_place import FilesInPlace
from slipstream.record.hardware import HardwareSample
from slipstream.record.ledger import Ledger
from slipstream.record.lock import RunLock
from slipstream.record.reader import RunReader
from slipstream.record.schema import check_database, create_database, database_path, holds_run, open_database
from slipstream.record.writer import EventWriter
from slipstream.seams import Event
from slipstream.types import Json

_log = logging.getLogger(__name__)

_MAX_FLUSHED_PER_PASS = 250
"""A commit may end the wait of thousands of rollouts at once."""


class RunStore(RunReader):
    """A run that is open for writing, and can be read.

    `async with RunStore.create(Path("runs/demo"), config={}) as store: store.append(event); await store.flush()`
    """

    num_commits: int
    """Transactions committed since the store was opened."""

    def __init__(self, folder: Path, connection: sqlite3.Connection, lock: RunLock, *, clock_offset_s: float) -> None:
        """Use `create` or `open`, which make the connection and the lock."""
        super().__init__(folder)
        self.num_commits = 0
        self._connection = connection
        self._lock = lock
        self._ledger = Ledger(done=self.done_keys(), events=self.events(unfinished_only=True), steps=self.steps())
        self._writer = EventWriter(connection, clock_offset_s=clock_offset_s)
        self._files = FilesInPlace(database_path(folder))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"record-{folder.name}")
        self._pending: deque[Event] = deque()
        self._samples: deque[HardwareSample] = deque()
        self._failure: str | None = None
        self._failure_raised = False
        self._handoff = threading.Lock()
        self._queued: Future[str | None] | None = None
        """The commit that has not started: it will take whatever is pending then, so later flushes wait for it too."""
        self._closing: Future[str | None] | None = None
        self._per_pass = PerPass(_MAX_FLUSHED_PER_PASS)
        self._awaited: tuple[Future[str | None], asyncio.Future[str | None]] | None = None

    @staticmethod
    def create(folder: Path, *, config: Json, clock_offset_s: float | None = None) -> RunStore:
        """A new run in `folder`, which may exist if there is no run in it."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as raised:
            raise ConfigError(f"{folder} cannot be created ({raised}): choose another folder for the run") from raised
        lock = RunLock(folder)
        try:
            connection = create_database(folder, config=config, created_s=time.time())
        except BaseException:
            lock.release()
            raise
        return _store(folder, connection, lock, clock_offset_s)

    @staticmethod
    def open(folder: Path, *, clock_offset_s: float | None = None) -> RunStore:
        """The run in `folder`, to be resumed."""
        check_database(folder)
        lock = RunLock(folder)
        try:
            connection = open_database(folder)
        except BaseException:
            lock.release()
            raise
        return _store(folder, connection, lock, clock_offset_s)

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether there is something to open in `folder`, even if damaged. A half-created run does not count."""
        return holds_run(folder)

    @staticmethod
    def read(folder: Path) -> RunReader:
        """The run in `folder`, for reading only, even while another process writes it."""
        return RunReader(folder)

    def append(self, event: Event) -> None:
        """Keep `event` for the next flush; JournalError, and no other effect, if it contradicts earlier events."""
        if self._closing is not None:
            raise JournalError(f"run store {database_path(self.folder)} is closed: open it again to write")
        if self._ledger.accept(event):
            self._pending.append(event)

    def set_config(self, config: Json) -> None:
        """Replace the stored config; durable on return. Raises JournalError."""
        try:
            self._thread.submit(self._writer.write_config, config).result()
        except sqlite3.Error as raised:
            raise JournalError(
                f"run store {database_path(self.folder)} cannot be written ({raised}): see that its disk has room"
            ) from raised

    def add_sample(self, sample: HardwareSample) -> bool:
        """Keep a sample of the machine for the next commit, from any thread; False once the store takes no more."""
        if self._closing is not None or self._failure is not None:
            return False
        self._samples.append(sample)
        return True

    async def flush(self) -> None:
        """Return once everything appended is durable. Cancelling cancels the wait, not the write."""
        with self._handoff:
            commit = self._closing or self._queued
            if commit is None:
                commit = self._queued = self._thread.submit(self._commit_pending)
        failure = await asyncio.shield(self._awaitable(commit))
        if failure is not None:
            self._failure_raised = True
            raise JournalError(failure)
        await self._per_pass.through()

    def _awaitable(self, commit: Future[str | None]) -> asyncio.Future[str | None]:
        """One future for all flushes that wait for the same commit on the same loop, so that the loop is woken once."""
        known, waiting = self._awaited or (None, None)
        if known is not commit or waiting is None or waiting.get_loop() is not asyncio.get_running_loop():
            waiting = asyncio.wrap_future(commit)
            self._awaited = commit, waiting
        return waiting

    async def aclose(self) -> None:
        """Flush, fold the write-ahead log into the file, release the lock.

        JournalError if events were lost and no flush has raised it yet.
        """
        if self._closing is None:
            self._closing = self._thread.submit(self._finish)
            self._thread.shutdown(wait=False)
        failure = await asyncio.shield(asyncio.wrap_future(self._closing))
        if failure is not None and not self._failure_raised:
            self._failure_raised = True
            raise JournalError(failure)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _commit_pending(self) -> str | None:
        """Write what is pending, in the writing thread; returns the error if nothing can be written any more."""
        with self._handoff:
            self._queued = None
        batch = [self._pending.popleft() for _ in range(len(self._pending))]
        samples = [self._samples.popleft() for _ in range(len(self._samples))]
        if self._failure is None:
            try:
                if batch or samples:
                    self._writer.write(batch, samples)
                    self.num_commits += 1
                self._failure = self._files.missing()
            except (sqlite3.Error, OSError) as raised:
                self._failure = self._files.missing() or (
                    f"run store {database_path(self.folder)} cannot be written ({type(raised).__name__}: {raised}): "
                    "see that its disk has room and can be written, then resume the run"
                )
            except Exception as raised:  # an unchecked value from user code
                self._failure = (
                    f"run store {database_path(self.folder)} was given a value that it cannot keep "
                    f"({type(raised).__name__}: {raised}{_whose(raised)}): a tool, a grader or a model returned "
                    "something else than plain text and numbers; fix that, then resume the run"
                )
        return self._failure

    def _finish(self) -> str | None:
        try:
            failure = self._commit_pending()
            try:
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            except sqlite3.Error as raised:
                _log.warning("%s keeps its write-ahead log: %s", database_path(self.folder), raised)
            return failure
        finally:
            self._connection.close()
            self._lock.release()


def _store(folder: Path, connection: sqlite3.Connection, lock: RunLock, clock_offset_s: float | None) -> RunStore:
    try:
        return RunStore(
            folder,
            connection,
            lock,
            clock_offset_s=_clock_offset_s() if clock_offset_s is None else clock_offset_s,
        )
    except BaseException:
        connection.close()
        lock.release()
        raise


def _whose(raised: Exception) -> str:
    return "".join(f", {note}" for note in getattr(raised, "__notes__", ()))


def _clock_offset_s() -> float:
    """Add this to a time of the event loop to get epoch seconds."""
    try:
        loop_s = asyncio.get_running_loop().time()
    except RuntimeError:
        loop_s = time.monotonic()
    return time.time() - loop_s
