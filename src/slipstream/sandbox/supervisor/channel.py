"""The control channel to a sandbox's supervisor or to the keeper. It never blocks the event loop.

Input: requests, with file descriptors. Output: one future per request. Invariants: requests arrive in the order they
were sent; once the channel is lost, all pending futures and later requests raise SandboxError; replies are JSON, and
file descriptors are accepted only from the keeper, never from a sandbox.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import marshal
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from slipstream.errors import SandboxError, SandboxFileError, SandboxLimitError
from slipstream.types import Json

PACKET_BYTES = 1 << 15
"""A longer request travels in a memory file. Any Linux socket takes this much in one packet."""
MARSHAL_VERSION = 2
"""Every Python 3 reads it: the supervisor's may be older or newer than ours."""
MAX_REPLY_BYTES = 1 << 17
MAX_REPLY_FDS = 4

ENDED = "the sandbox is gone: its supervisor has ended"

Request: TypeAlias = Mapping[str, Any]
"""Values must be marshallable."""
Reply: TypeAlias = dict[str, Json]

ERROR_KINDS = {"file": SandboxFileError, "limit": SandboxLimitError}


def memory_file(data: bytes = b"", *, sealed: bool = False) -> int:
    """The descriptor of an in-memory file that contains `data`. If sealed, nobody can change it; otherwise nobody can
    seal it, so that a receiver cannot lock us out."""
    fd = os.memfd_create("slipstream", os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealed else 0))
    try:
        write_all(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        if sealed:
            seal(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def seal(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)


def _packed(message: Request) -> bytes:
    try:
        return marshal.dumps(dict(message), MARSHAL_VERSION)
    except ValueError:  # an enum member, say: JSON writes its value
        return marshal.dumps(json.loads(json.dumps(dict(message))), MARSHAL_VERSION)


def _retrieve_exception(future: asyncio.Future[Reply]) -> None:
    """Avoids "exception was never retrieved" for a future whose caller was cancelled."""
    if not future.cancelled():
        future.exception()


class Channel:
    """Owns `control`. With `takes_fds`, a reply's descriptors are in its `fds`, and the caller closes them."""

    def __init__(
        self,
        control: socket.socket,
        *,
        takes_fds: bool = False,
        on_end: Callable[[], str] = lambda: ENDED,
    ) -> None:
        """`on_end` returns the error message for when the other side has ended."""
        self._on_end = on_end
        self._control = control
        self._takes_fds = takes_fds
        self._control.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._outgoing: deque[tuple[bytes, list[int]]] = deque()
        self._last_id = 0
        self._lost: str | None = None
        self._loop.add_reader(control.fileno(), self._on_readable)

    def request(self, message: Request, fds: Sequence[int] = ()) -> tuple[int, asyncio.Future[Reply]]:
        """Send a request; returns its id and the future of its reply. The caller keeps `fds`."""
        self._last_id += 1
        future: asyncio.Future[Reply] = self._loop.create_future()
        future.add_done_callback(_retrieve_exception)
        self._waiting[self._last_id] = future
        try:
            self.tell({**message, "id": self._last_id}, fds)
        except BaseException:
            del self._waiting[self._last_id]
            raise
        return self._last_id, future

    async def ask(self, message: Request, fds: Sequence[int] = ()) -> Reply:
        return await self.request(message, fds)[1]

    def tell(self, message: Request, fds: Sequence[int] = ()) -> None:
        """Send a request that gets no reply. Never waits; raises SandboxError if the other side is gone."""
        if self._lost is not None:
            raise SandboxError(self._lost)
        packet, passed = _packed(message), list[int]()
        try:
            if len(packet) > PACKET_BYTES:
                passed.append(memory_file(packet, sealed=True))
                packet = _packed({"long": True})
            passed.extend(map(os.dup, fds))
        except OSError:
            for fd in passed:
                os.close(fd)
            raise
        self._outgoing.append((packet, passed))
        if len(self._outgoing) == 1:
            self._flush()

    def _flush(self) -> None:
        while self._outgoing:
            packet, fds = self._outgoing[0]
            try:
                socket.send_fds(self._control, [packet], fds)
            except BlockingIOError:
                self._loop.add_writer(self._control.fileno(), self._flush)
                return
            except OSError:
                self.lose(self._on_end())
                return
            self._outgoing.popleft()
            for fd in fds:
                os.close(fd)
        self._loop.remove_writer(self._control.fileno())

    def _on_readable(self) -> None:
        fds: list[int] = []
        try:
            if self._takes_fds:
                packet, fds, _, _ = socket.recv_fds(self._control, MAX_REPLY_BYTES, MAX_REPLY_FDS)
            else:
                packet = self._control.recv(MAX_REPLY_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self.lose(self._on_end())
            return
        try:
            reply = json.loads(packet)
            waiting = self._waiting.pop(reply["id"], None)
        except (ValueError, KeyError, TypeError):
            self.lose("the sandbox is gone: its supervisor sent an invalid reply")
            return
        if waiting is None or waiting.done():
            for fd in fds:
                os.close(fd)
            return
        if fds:
            reply["fds"] = fds
        if "error" in reply:
            waiting.set_exception(ERROR_KINDS.get(reply["error"], SandboxError)(str(reply.get("message"))))
        else:
            waiting.set_result(reply)

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def lose(self, reason: str) -> None:
        """Close the channel: pending requests fail now. Calling it twice is fine."""
        if self._lost is not None:
            return
        self._lost = reason
        self._loop.remove_reader(self._control.fileno())
        self._loop.remove_writer(self._control.fileno())
        self._control.close()
        for _, fds in self._outgoing:
            for fd in fds:
                os.close(fd)
        self._outgoing.clear()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(SandboxError(reason))
        self._waiting.clear()
