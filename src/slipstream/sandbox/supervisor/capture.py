"""Captures a program's output in bounded memory.

Input: bytes. Output: a `Captured` with the first and the last of them. Invariants: a pipe is read until it is closed,
so a program never blocks on output that nobody wants; reading never waits for others that hold the pipe.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios

from slipstream.sandbox.base import Captured

READ_BYTES = 1 << 18


class Capture:
    """Keeps the first half and the last half of `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._head_bytes = max_bytes // 2
        self._tail_bytes = max_bytes - self._head_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._num_bytes = 0

    def feed(self, data: bytes) -> None:
        self._num_bytes += len(data)
        room = self._head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > self._tail_bytes + READ_BYTES:
            del self._tail[: len(self._tail) - self._tail_bytes]

    def captured(self) -> Captured:
        tail = bytes(self._tail[max(0, len(self._tail) - self._tail_bytes) :])
        return Captured(head=bytes(self._head), tail=tail, num_bytes=self._num_bytes)


class PipeReader:
    """Reads a pipe into `capture` until it is closed. Owns the pipe's read end."""

    def __init__(self, fd: int, capture: Capture) -> None:
        self.capture = capture
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._on_readable)

    def _on_readable(self) -> None:
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self.capture.feed(data)
        else:
            self._loop.remove_reader(self._fd)

    def drain(self) -> None:
        """Read what is in the pipe now, and nothing that is written later."""
        if self._fd < 0:
            return
        (left,) = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)))
        while left > 0:
            try:
                data = os.read(self._fd, min(left, READ_BYTES))
            except BlockingIOError:  # a program inside reads the same pipe
                return
            if not data:
                return
            self.capture.feed(data)
            left -= len(data)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
