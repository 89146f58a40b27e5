"""Standard output of a command: a write that fails there is distinguished from one that fails elsewhere.

Within `guarded_output`, what the system refuses to write is an OutputRefused, raised once: what is printed after it is
dropped. A reader that left early stays a BrokenPipeError. When the block ends, all that was printed is written.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class OutputRefused(OSError):
    """Standard output cannot be written: a full disk, a descriptor opened for reading."""


@contextmanager
def guarded_output() -> Iterator[None]:
    """Only the output of the process is guarded: one that was put in its place, as tests do, is left alone."""
    before = sys.stdout
    if before is not sys.__stdout__ or not isinstance(before, io.TextIOWrapper):
        yield
        return
    before.flush()
    guarded = io.TextIOWrapper(
        io.BufferedWriter(_Guarded(before.fileno(), "wb", closefd=False)),
        encoding=before.encoding,
        errors="backslashreplace",  # a terminal without UTF-8 is no reason to fail
        line_buffering=before.line_buffering or before.write_through,
    )
    sys.stdout = guarded
    try:
        yield
    finally:
        sys.stdout = before
        guarded.flush()


class _Guarded(io.FileIO):
    _refused = False

    def write(self, data: Any, /) -> int:  # Any: what holds bytes has a name from Python 3.12 on
        if self._refused:
            return memoryview(data).nbytes
        try:
            num_written: int | None = super().write(data)
        except OSError as raised:
            self._refused = True
            if isinstance(raised, BrokenPipeError):
                raise
            raise OutputRefused(raised.errno, raised.strerror) from raised
        if num_written is None:  # a descriptor that does not block, and is full
            self._refused = True
            raise OutputRefused(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return num_written
