"""A connection between two processes of a run: each may call functions of the other, many at once.

Invariants: every call ends exactly once, with an answer, an error, or LinkLost. Calls and tells start on the other end
in the order in which they were made. Cancelling a call cancels the called function, and returns when that has ended.
Any exception in a called function crosses the link, and never ends the process. A message that cannot be read fails the
call that it belongs to and no other.

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
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.aio import outlast
from slipstream.errors import InfrastructureError

logger = logging.getLogger(__name__)

_HEAD = struct.Struct("!QBQ")
"""The header of a message: its length, its kind, and the number of its call."""
_CALL, _TELL, _ANSWER, _ERROR, _CANCEL = range(5)
_linked: dict[subprocess.Popen[bytes], tuple[int, ...]] = {}
"""Processes that `start_linked` started and `wait_or_kill` has not yet seen end, and the pids of those that they
started in turn."""


class LinkLost(InfrastructureError):
    """The process at the other end is gone."""


class Link(asyncio.Protocol):
    """One end. `calls` are awaited and answered; `tells` are called without an answer."""

    def __init__(
        self,
        *,
        calls: Mapping[str, Callable[..., Awaitable[Any]]],
        tells: Mapping[str, Callable[..., None]],
        on_lost: Callable[[], None] = lambda: None,
        peer: str = "the other process",
    ) -> None:
        """`peer` names the other end in the message of LinkLost."""
        self._calls = calls
        self._tells = tells
        self._on_lost = on_lost
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._to_send: list[bytes] = []
        """Messages of one tick of the event loop, written together at its end."""
        self._asked: dict[int, asyncio.Future[Any]] = {}
        """By number, the calls that this end waits for,"""
        self._at_work: dict[int, asyncio.Task[Any]] = {}
        """and those that it runs for the other end."""
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
                # Its waiter was cancelled with it; what was called keeps running.
                self._asked[number] = answer = asyncio.get_running_loop().create_future()
                self._send(_CANCEL, number)
                await _ended(answer)
            if not answer.cancelled():
                answer.exception()  # the call was cancelled: its result is not wanted
            raise
        finally:
            del self._asked[number]

    def tell(self, what: str, *arguments: Any) -> None:
        """Does nothing if the other end is gone."""
        self._send(_TELL, 0, what, arguments)

    async def over(self, *, grace_s: float) -> None:
        """Wait until the other end is gone, then briefly for the calls it had made, which are cancelled."""
        await self._over.wait()
        if self._at_work:
            await asyncio.wait(list(self._at_work.values()), timeout=grace_s)

    def close(self) -> None:
        """Close this end. The calls of the other end are cancelled."""
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
        return LinkLost(f"{self._peer} is gone")

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
            error = InfrastructureError(f"what {self._peer} sent cannot be read: {type(raised).__name__}: {raised}")
            self._take_unread(kind, number, error)
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

    def _take_unread(self, kind: int, number: int, error: InfrastructureError) -> None:
        if kind == _CALL:
            self._send(_ERROR, number, error)
        elif kind == _TELL:
            logger.error("%s", error)
        else:
            self._answer(_ERROR, number, error)

    def _begin(self, number: int, what: str, arguments: tuple[Any, ...]) -> None:
        self._at_work[number] = task = asyncio.create_task(_contained(self._calls, what, arguments), name=what)
        task.add_done_callback(lambda task: self._served(task, number))

    def _hear(self, what: str, arguments: tuple[Any, ...]) -> None:
        try:
            self._tells[what](*arguments)
        except Exception:  # other messages on the link are not affected
            logger.exception("%s, sent by %s, failed", what, self._peer)

    def _answer(self, kind: int, number: int, came: Any) -> None:
        answer = self._asked.get(number)
        if answer is not None and answer.cancelled():  # at once: its waiter need not wait until it has ended
            self._asked[number] = answer = asyncio.get_running_loop().create_future()
            answer.set_result(None)
        if answer is None or answer.done():
            return
        if kind == _ANSWER:
            answer.set_result(came)
        else:
            answer.set_exception(came)

    def _served(self, task: asyncio.Task[Any], number: int) -> None:
        """A callback and not part of the task: a task that is cancelled before it began would send nothing."""
        del self._at_work[number]
        if task.cancelled():  # by itself, or by its caller, which ignores the answer
            self._send(_ERROR, number, InfrastructureError(f"{task.get_name()} cancelled itself"))
        elif (raised := task.exception()) is not None:
            self._send(_ERROR, number, portable(raised))
        else:
            try:
                self._send(_ANSWER, number, task.result())
            except Exception as raised:  # the result cannot be pickled
                self._send(_ERROR, number, InfrastructureError(f"the answer to {task.get_name()}: {raised!r}"))


async def _contained(calls: Mapping[str, Callable[..., Awaitable[Any]]], what: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return await calls[what](*arguments)
    except SystemExit as raised:  # it would end the event loop
        raise InfrastructureError(f"sys.exit({raised.code!r}) was called") from raised


async def _ended(answer: asyncio.Future[Any]) -> None:
    """Wait until it has ended, even if cancelled again: a running call keeps its place."""
    while not answer.done():
        try:
            await asyncio.wait([answer])
        except asyncio.CancelledError:
            continue


def portable(raised: BaseException) -> BaseException:
    """The error itself if the other end can unpickle it; otherwise one that describes it."""
    try:
        if type(pickle.loads(pickle.dumps(raised))) is type(raised):
            return raised
    except Exception as why:  # an exception may hold anything
        text = f"{type(raised).__name__}: {raised} ({type(why).__name__} on its way between processes)"
        return InfrastructureError(text)
    return InfrastructureError(f"{type(raised).__name__}: {raised}")


# ---------------------------------------------------------------- processes


async def start_linked(module: str, link: Link, given: Sequence[socket.socket] = ()) -> subprocess.Popen[bytes]:
    """Run one of our modules as a process that is linked to this one. The module opens its end with `own_end`, and what
    it is given besides with `given_ends`. Raises OSError if it cannot be started."""
    own, theirs = socket.socketpair()
    own.setblocking(False)
    with theirs:
        launching = asyncio.ensure_future(_launched(module, (theirs, *given)))
        try:
            await asyncio.wait([launching])
            process = launching.result()
            await link.connect(own)
            _linked[process] = ()
            return process
        except BaseException:
            await _ended(launching)  # a start that is under way still has to be ended
            own.close()
            if launching.exception() is None:
                launching.result().kill()
                await asyncio.to_thread(launching.result().wait)
            raise


async def _launched(module: str, ends: Sequence[socket.socket]) -> subprocess.Popen[bytes]:
    try:
        return await asyncio.to_thread(_launch, module, ends)
    except RuntimeError as raised:
        raise BlockingIOError(errno.EAGAIN, f"no thread to start a process from: {raised}") from raised


def _launch(module: str, ends: Sequence[socket.socket]) -> subprocess.Popen[bytes]:
    numbers = [end.fileno() for end in ends]  # absent, and nothing was started, if the thread came too late
    own, *given = map(str, numbers)
    command = [sys.executable, "-P", "-m", module, own, os.environ.get("PYTHONPATH", ""), *given]
    # Standard output belongs to the run itself, so output of its processes goes to standard error.
    return subprocess.Popen(command, env=child_environment(), pass_fds=numbers, stdin=subprocess.DEVNULL, stdout=2)


def child_environment() -> dict[str, str]:
    """For a process started with -P: its module path is this one's, including the user's own modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)}


def own_end(argv: Sequence[str]) -> socket.socket:
    """The other end of `start_linked`, called in the started process. Signals that end the run are handled by the
    run's main process, which then closes this one. Programs started here inherit nothing of this."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # ignoring them would be inherited by every program
    os.environ["PYTHONPATH"] = argv[2]
    return _end(argv[1])


def given_ends(argv: Sequence[str]) -> list[socket.socket]:
    """What `start_linked` was given for the started process, called there."""
    return [_end(number) for number in argv[3:]]


def _end(number: str) -> socket.socket:
    end = socket.socket(fileno=int(number))
    end.set_inheritable(False)
    end.setblocking(False)
    return end


def exit_after(descriptor: int, seconds: float) -> None:
    """End this process `seconds` after the other end of a socket was closed, even if its event loop hangs. To be run in
    a thread of its own."""
    waiting = select.poll()
    waiting.register(descriptor, 0)  # only the hang-up
    waiting.poll()
    time.sleep(seconds)
    os._exit(1)


async def wait_or_kill(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """Wait for a process to end, as it does when its link is lost; kill it otherwise."""
    try:
        if process.poll() is None:
            await asyncio.to_thread(process.wait, limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        await asyncio.to_thread(process.wait)
    finally:
        if process.returncode is not None:
            _linked.pop(process, None)


def linked_pids() -> tuple[int, ...]:
    """The pids of living processes that `start_linked` started here, and of those that they started. Any thread may
    call this."""
    living = [(process.pid, *pids) for process, pids in tuple(_linked.items()) if process.returncode is None]
    return tuple(pid for pids in living for pid in pids)


def describe_exit(code: int) -> str:
    return f"killed by signal {-code}; was there not enough memory?" if code < 0 else f"exit code {code}"


class LinkedProcess:
    """A process that does one thing after another for this one, such as a learner's: its link, and how it ends."""

    def __init__(
        self,
        link: Link,
        process: subprocess.Popen[bytes],
        *,
        name: str,
        error: Callable[[str], Exception],
        close_s: float,
    ) -> None:
        """`name` names it in errors, and `error` makes them from a sentence. `close_s`: how long it may take to finish
        what was cancelled, and to end."""
        self.link = link
        self._process = process
        self._name = name
        self._error = error
        self._close_s = close_s

    @property
    def pid(self) -> int:
        return self._process.pid

    async def call(self, what: str, *arguments: Any) -> Any:
        """A cancelled caller waits for what is under way, and a process that takes too long over it is killed."""
        calling = asyncio.ensure_future(self.link.call(what, *arguments))
        try:
            await asyncio.wait([calling])
            return calling.result()
        except asyncio.CancelledError:
            calling.cancel()
            await outlast([asyncio.ensure_future(self._wait_or_kill(calling))])
            raise
        except LinkLost:
            raise await self.ended() from None

    async def ended(self) -> Exception:
        """Wait until it has ended by itself; what to raise then."""
        await self.link.over(grace_s=0.0)
        code = await asyncio.to_thread(self._process.wait)
        return self._error(f"{self._name} ended ({describe_exit(code)}): see what it printed")

    def started(self, pids: Sequence[int]) -> None:
        """It has started processes of its own, which end with it."""
        _linked[self._process] = tuple(pids)

    async def aclose(self) -> None:
        self.link.close()
        await outlast([asyncio.ensure_future(wait_or_kill(self._process, self._close_s))])

    async def _wait_or_kill(self, calling: asyncio.Future[Any]) -> None:
        """Wait for a call to end by itself soon, or else with the process."""
        _, late = await asyncio.wait([calling], timeout=self._close_s)
        if late:
            self._process.kill()
            self.link.close()
            await asyncio.wait(late)
        if not calling.cancelled():
            calling.exception()  # the caller no longer cares what it was
