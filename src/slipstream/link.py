"""A connection between two processes of a run: either may call what the other offers, many calls at once.

Input: a connected stream socket, and what this end offers. Output: answers.
Invariants: every call ends exactly once, with the answer, the error, or LinkLost. What is told or called on one end
begins on the other in that order. Cancelling a call cancels what it called, and returns when that has ended. Whatever
is raised by what is called crosses the link, and never ends the process. What cannot be read fails the call that it
belongs to and no other.

Both ends are the same program on the same machine, so messages are pickled.

    link = Link(calls={"add": add}, tells={"noted": print})
    await link.connect(a_socket)
    total = await link.call("add", 1, 2)
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.errors import InfrastructureError

logger = logging.getLogger(__name__)

_HEAD = struct.Struct("!QBQ")
"""Before each message: how long it is, its kind, and the number of the call it belongs to."""
_CALL, _TELL, _ANSWER, _ERROR, _CANCEL = range(5)
_linked: set[subprocess.Popen[bytes]] = set()
"""What `start_linked` started, and `wait_or_kill` has not yet seen end."""


class LinkLost(InfrastructureError):
    """The process at the other end is gone."""


class Link(asyncio.Protocol):
    """One end. `calls` are awaited and answered; `tells` are called at once, and nobody hears what comes of them."""

    def __init__(
        self,
        *,
        calls: Mapping[str, Callable[..., Awaitable[Any]]],
        tells: Mapping[str, Callable[..., None]],
        on_lost: Callable[[], None] = lambda: None,
        whom: str = "the other process",
    ) -> None:
        """`whom`: who is at the other end, for the message of LinkLost."""
        self._calls = calls
        self._tells = tells
        self._on_lost = on_lost
        self._whom = whom
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._to_send: list[bytes] = []
        """What is sent in one tick of the event loop goes out at its end, all at once."""
        self._asked: dict[int, asyncio.Future[Any]] = {}
        """By number, what this end waits for,"""
        self._at_work: dict[int, asyncio.Task[Any]] = {}
        """and what the other does."""
        self._num_asked = 0
        self._over = asyncio.Event()

    async def connect(self, own: socket.socket) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, sock=own)

    @property
    def is_lost(self) -> bool:
        return self._over.is_set()

    async def call(self, what: str, *arguments: Any) -> Any:
        if self.is_lost:
            raise self._lost()
        self._num_asked += 1
        number = self._num_asked
        self._asked[number] = answer = asyncio.get_running_loop().create_future()
        try:
            self._send(_CALL, number, what, arguments)
            return await answer
        except asyncio.CancelledError:
            if answer.cancelled() and self._asked[number] is answer and not self.is_lost:
                # It went with whoever waited for it, and what was called goes on.
                self._asked[number] = answer = asyncio.get_running_loop().create_future()
                self._send(_CANCEL, number)
                await _ended(answer)
            if not answer.cancelled():
                answer.exception()  # whoever cancelled does not care what it was
            raise
        finally:
            del self._asked[number]

    def tell(self, what: str, *arguments: Any) -> None:
        """Nothing happens if nobody is there any more."""
        self._send(_TELL, 0, what, arguments)

    async def over(self, *, grace_s: float) -> None:
        """Wait until the other end is gone; and for all that it had called, which is cancelled then, a little."""
        await self._over.wait()
        if self._at_work:
            await asyncio.wait(list(self._at_work.values()), timeout=grace_s)

    def close(self) -> None:
        """The other end learns of it, and what it had called is cancelled."""
        if self._transport is not None:
            self._transport.abort()

    # ---------------------------------------------------------------- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _HEAD.size:
            size, kind, number = _HEAD.unpack_from(self._buffer, start)
            end = start + _HEAD.size + size
            if len(self._buffer) < end:
                break
            with memoryview(self._buffer) as whole, whole[start + _HEAD.size : end] as message:
                self._take(kind, number, message)
            start = end
        del self._buffer[:start]

    def connection_lost(self, raised: Exception | None) -> None:
        self._over.set()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(self._lost())
        for task in self._at_work.values():
            task.cancel()
        self._on_lost()

    # ---------------------------------------------------------------- messages

    def _lost(self) -> LinkLost:
        return LinkLost(f"{self._whom} is gone")

    def _send(self, kind: int, number: int, *message: Any) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        if not self._to_send:
            asyncio.get_running_loop().call_soon(self._send_all)
        self._to_send += (_HEAD.pack(len(data), kind, number), data)

    def _send_all(self) -> None:
        data, self._to_send = b"".join(self._to_send), []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _take(self, kind: int, number: int, message: memoryview) -> None:
        try:
            parts = pickle.loads(message)
        except Exception as raised:  # it may be made of what this end does not have
            told = InfrastructureError(f"what {self._whom} sent cannot be read: {type(raised).__name__}: {raised}")
            self._take_unread(kind, number, told)
            return
        if kind == _CALL:
            self._begin(number, *parts)
        elif kind == _TELL:
            self._hear(*parts)
        elif kind == _CANCEL:
            if (working := self._at_work.get(number)) is not None:
                working.cancel()
        else:
            self._answer(kind, number, *parts)

    def _take_unread(self, kind: int, number: int, told: InfrastructureError) -> None:
        if kind == _CALL:
            self._send(_ERROR, number, told)
        elif kind == _TELL:
            logger.error("%s", told)
        else:
            self._answer(_ERROR, number, told)

    def _begin(self, number: int, what: str, arguments: tuple[Any, ...]) -> None:
        self._at_work[number] = task = asyncio.create_task(_contained(self._calls, what, arguments), name=what)
        task.add_done_callback(lambda task: self._served(task, number))

    def _hear(self, what: str, arguments: tuple[Any, ...]) -> None:
        try:
            self._tells[what](*arguments)
        except Exception:  # what else comes over the link has nothing to do with it
            logger.exception("%s, told by %s, failed", what, self._whom)

    def _answer(self, kind: int, number: int, came: Any) -> None:
        answer = self._asked.get(number)
        if answer is not None and answer.cancelled():  # just now: whoever waited for it need not wait for the end
            self._asked[number] = answer = asyncio.get_running_loop().create_future()
            answer.set_result(None)
        if answer is None or answer.done():
            return
        if kind == _ANSWER:
            answer.set_result(came)
        else:
            answer.set_exception(came)

    def _served(self, task: asyncio.Task[Any], number: int) -> None:
        """Not said by the task itself: one that is cancelled before it began says nothing."""
        del self._at_work[number]
        if task.cancelled():  # by itself; or by whoever called it, and does not care what is told
            self._send(_ERROR, number, InfrastructureError(f"{task.get_name()} cancelled itself"))
        elif (raised := task.exception()) is not None:
            self._send(_ERROR, number, portable(raised))
        else:
            try:
                self._send(_ANSWER, number, task.result())
            except Exception as raised:  # what was returned cannot be pickled
                self._send(_ERROR, number, InfrastructureError(f"the answer to {task.get_name()}: {raised!r}"))


async def _contained(calls: Mapping[str, Callable[..., Awaitable[Any]]], what: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return await calls[what](*arguments)
    except SystemExit as raised:  # it would end the event loop
        raise InfrastructureError(f"sys.exit({raised.code!r}) was called") from raised


async def _ended(answer: asyncio.Future[Any]) -> None:
    """Wait for it, whatever it is; a second cancellation changes nothing: what is alive holds its place."""
    while not answer.done():
        try:
            await asyncio.wait([answer])
        except asyncio.CancelledError:
            continue


def portable(raised: BaseException) -> BaseException:
    """The same error, if the other end can read it; otherwise one that says what it was."""
    try:
        if type(pickle.loads(pickle.dumps(raised))) is type(raised):
            return raised
    except Exception as why:  # an error may be made of anything
        told = f"{type(raised).__name__}: {raised} ({type(why).__name__} on its way between processes)"
        return InfrastructureError(told)
    return InfrastructureError(f"{type(raised).__name__}: {raised}")


# ---------------------------------------------------------------- processes


async def start_linked(module: str, link: Link) -> subprocess.Popen[bytes]:
    """Run a module of ours as a process, with `link` to it. The module finds its end with `own_end`. Raises OSError if
    it cannot be started."""
    own, theirs = socket.socketpair()
    own.setblocking(False)
    with theirs:
        launching = asyncio.ensure_future(_launched(module, theirs))
        try:
            await asyncio.wait([launching])
            process = launching.result()
            await link.connect(own)
            _linked.add(process)
            return process
        except BaseException:
            await _ended(launching)  # what is under way there ends as a process all the same
            own.close()
            if launching.exception() is None:
                launching.result().kill()
                await asyncio.to_thread(launching.result().wait)
            raise


async def _launched(module: str, theirs: socket.socket) -> subprocess.Popen[bytes]:
    try:
        return await asyncio.to_thread(_launch, module, theirs)
    except RuntimeError as raised:
        raise BlockingIOError(errno.EAGAIN, f"no thread to start a process from: {raised}") from raised


def _launch(module: str, theirs: socket.socket) -> subprocess.Popen[bytes]:
    number = theirs.fileno()  # none is there, and nothing is started, if this was left to a thread that came too late
    command = [sys.executable, "-P", "-m", module, str(number), os.environ.get("PYTHONPATH", "")]
    # What a run prints is for its user alone, so what its processes print goes beside it.
    return subprocess.Popen(command, env=child_environment(), pass_fds=(number,), stdin=subprocess.DEVNULL, stdout=2)


def child_environment() -> dict[str, str]:
    """For a process started with -P: it finds the modules that this one finds, a user's own too, and no others."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)}


def own_end(argv: Sequence[str]) -> socket.socket:
    """In a process that `start_linked` started: its end. What would end the run is for the run's own process, which
    then lets this one go. Programs that are started here know nothing of all this."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # to ignore them would be passed on to every program
    os.environ["PYTHONPATH"] = argv[2]
    own = socket.socket(fileno=int(argv[1]))
    own.set_inheritable(False)
    own.setblocking(False)
    return own


async def wait_or_kill(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """A process ends by itself when its link is lost; or is ended."""
    try:
        if process.poll() is None:
            await asyncio.to_thread(process.wait, limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        await asyncio.to_thread(process.wait)
    finally:
        if process.returncode is not None:
            _linked.discard(process)


def linked_pids() -> tuple[int, ...]:
    """Of the processes that `start_linked` started here, those that live. May be asked by any thread."""
    return tuple(process.pid for process in tuple(_linked) if process.returncode is None)
