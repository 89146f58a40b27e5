"""Calls of a Completer that is in another process of the run, without going through the run's own process.

Input: a socket to each process that asks. Output: what the Completer answers, to whom it belongs.
Invariants: every call ends once; cancelling one cancels the request; when a process is gone, its requests are cancelled
and its sessions end. Requests and answers are marshalled tuples in which tokens are the bytes of their arrays; those of
one tick of the event loop are written together. Both ends are the same program on the same machine.
"""

from __future__ import annotations

import asyncio
import itertools
import marshal
import pickle
import socket
import struct
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias

from slipstream.errors import ModelError
from slipstream.link import portable
from slipstream.model.base import Completer, SessionKeeper
from slipstream.types import EngineLoad, Sampled, SampleParams, StopReason, TokenIds, token_ids

LOST_GRACE_S = 5.0
"""After the model's process was lost, how long its calls take to fail: whoever watches it ends the run before that, and
no rollout is given up for nothing."""

_SIZE = struct.Struct("=Q")
_ASK, _CANCEL, _END_SESSION, _ANSWER, _FAIL = range(5)
Parcel: TypeAlias = tuple[Any, ...]
"""A kind, the number of a call, and what `marshal` can write; Any, since it is read by its kind."""


class _Lost(Exception):
    """The model's process is gone."""


class _Parcels(asyncio.Protocol):
    """One end of a connection."""

    def __init__(self, take: Callable[[Parcel], None], on_lost: Callable[[], None]) -> None:
        self.is_lost = False
        self._take = take
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._to_send: list[bytes] = []

    async def connect(self, own: socket.socket) -> None:
        own.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: self, sock=own)

    def send(self, parcel: Parcel) -> None:
        """With all others of this tick. Does nothing if the other end is gone."""
        if self._transport is None or self._transport.is_closing():
            return
        data = marshal.dumps(parcel)
        if not self._to_send:
            asyncio.get_running_loop().call_soon(self._send_all)
        self._to_send += (_SIZE.pack(len(data)), data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._buffer, start)
            begin, end = start + _SIZE.size, start + _SIZE.size + size
            if len(self._buffer) < end:
                break
            with memoryview(self._buffer) as whole, whole[begin:end] as data_of_one:
                parcel: Parcel = marshal.loads(data_of_one)
            self._take(parcel)
            start = end
        del self._buffer[:start]

    def connection_lost(self, raised: Exception | None) -> None:
        self.is_lost = True
        self._on_lost()

    def _send_all(self) -> None:
        data, self._to_send = b"".join(self._to_send), []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


class DirectClient:
    """A Completer: the model at the other end of a socket."""

    def __init__(self, *, grace_s: float = LOST_GRACE_S) -> None:
        self._grace_s = grace_s
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[Sampled]] = {}
        self._parcels = _Parcels(self._take, self._lose)

    async def connect(self, own: socket.socket) -> None:
        await self._parcels.connect(own)

    async def complete(
        self,
        prompt_ids: Sequence[int],
        params: SampleParams,
        *,
        session: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
    ) -> Sampled:
        if self._parcels.is_lost:
            await self._fail()
        number = next(self._numbers)
        answer: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        how = params.max_tokens, params.temperature, params.top_p, params.seed, params.stop_ids
        try:
            self._parcels.send((_ASK, number, _bytes(prompt_ids), how, session, priority, cache_salt, timeout_s))
            return await answer
        except asyncio.CancelledError:
            self._parcels.send((_CANCEL, number))
            raise
        except _Lost:
            await self._fail()
        finally:
            del self._calls[number]

    def end_session(self, session: str) -> None:
        """See `SessionKeeper`."""
        self._parcels.send((_END_SESSION, 0, session))

    def load(self) -> EngineLoad | None:
        return None

    async def aclose(self) -> None:
        self._parcels.close()

    async def _fail(self) -> NoReturn:
        await asyncio.sleep(self._grace_s)
        raise ModelError("the engine's process is gone: see what it printed")

    def _take(self, parcel: Parcel) -> None:
        kind, number, *rest = parcel
        answer = self._calls.get(number)
        if answer is None or answer.done():
            return
        if kind == _ANSWER:
            answer.set_result(_sampled(*rest))
        else:
            answer.set_exception(pickle.loads(rest[0]))

    def _lose(self) -> None:
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(_Lost())


class DirectServer:
    """The model's end of one connection. Open it with `connect`; it ends with the connection."""

    def __init__(self, completer: Completer, on_lost: Callable[[DirectServer], None] = lambda server: None) -> None:
        self._completer = completer
        self._on_lost = on_lost
        self._tasks: dict[int, asyncio.Task[Sampled]] = {}
        self._sessions: set[str] = set()
        """Those that have not ended."""
        self._parcels = _Parcels(self._take, self._lose)

    async def connect(self, own: socket.socket) -> None:
        await self._parcels.connect(own)

    def _take(self, parcel: Parcel) -> None:
        kind, number, *rest = parcel
        if kind == _ASK:
            self._ask(number, *rest)
        elif kind == _CANCEL:
            if (task := self._tasks.get(number)) is not None:
                task.cancel()
        else:
            self._end_session(rest[0])

    def _ask(
        self,
        number: int,
        prompt: bytes,
        how: tuple[Any, ...],
        session: str,
        priority: int,
        cache_salt: str,
        timeout_s: float | None,
    ) -> None:
        max_tokens, temperature, top_p, seed, stop_ids = how
        params = SampleParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed, stop_ids=stop_ids)
        if session:
            self._sessions.add(session)
        self._tasks[number] = task = asyncio.get_running_loop().create_task(
            self._completer.complete(
                _ints(prompt),
                params,
                session=session,
                priority=priority,
                cache_salt=cache_salt,
                timeout_s=timeout_s,
            )
        )
        task.add_done_callback(partial(self._answer, number))

    def _answer(self, number: int, task: asyncio.Task[Sampled]) -> None:
        """A callback and not part of the task, which may be cancelled before it begins."""
        del self._tasks[number]
        if task.cancelled():
            error: BaseException = ModelError("the request was cancelled")
        elif (raised := task.exception()) is not None:
            error = portable(raised)
        else:
            sampled = task.result()
            logprobs = None if sampled.logprobs is None else sampled.logprobs.tobytes()
            tokens = sampled.ids.tobytes(), logprobs, sampled.versions.tobytes()
            self._parcels.send((_ANSWER, number, *tokens, sampled.stop.value, sampled.num_cached))
            return
        self._parcels.send((_FAIL, number, pickle.dumps(error)))

    def _end_session(self, session: str) -> None:
        self._sessions.discard(session)
        if isinstance(self._completer, SessionKeeper):
            self._completer.end_session(session)

    def _lose(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        for session in tuple(self._sessions):
            self._end_session(session)
        self._on_lost(self)


def _bytes(ids: Sequence[int]) -> bytes:
    return (ids if isinstance(ids, array) and ids.typecode == "i" else token_ids(iter(ids))).tobytes()


def _ints(data: bytes) -> TokenIds:
    ids = array("i")
    ids.frombytes(data)
    return ids


def _sampled(ids: bytes, logprobs: bytes | None, versions: bytes, stop: str, num_cached: int | None) -> Sampled:
    floats: array[float] | None = None
    if logprobs is not None:
        floats = array("f")
        floats.frombytes(logprobs)
    return Sampled(
        ids=_ints(ids), logprobs=floats, versions=_ints(versions), stop=StopReason(stop), num_cached=num_cached
    )
