"""A model in a process of its own, beside the run's: its Python and the run's do not wait for each other.

    python -m slipstream.model.process FD PYTHONPATH DOOR

Input: over a link, what opens the model, and calls of what is there besides, such as a learner. Requests come over
sockets of their own, one for each process that asks (`direct`); new ones are handed in at the door, a socket that
carries sockets. Output: answers; over the link, a few times a second, the engine's load and what it did.
Invariants: nothing of it is found by a name, so nothing is left behind. When the link is lost the process ends, and
with it whatever it started; when the process ends, the run that watches it ends with ModelError.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from slipstream.aio import collect_rarely, task_group
from slipstream.errors import ModelError
from slipstream.link import Link, LinkedProcess, exit_after, given_ends, linked_pids, own_end, start_linked
from slipstream.model.base import Completer, WorkReporter
from slipstream.model.direct import DirectClient, DirectServer
from slipstream.names import load_object
from slipstream.printable import log_printable
from slipstream.types import EngineLoad, EngineWork

logger = logging.getLogger(__name__)

REPORT_S = 0.25
"""How often the load is told, if it changed."""
CLOSE_S = 60.0
"""How long the process may take to finish what was cancelled, and to end."""
EXIT_AFTER_S = 50.0
"""After which it ends without the run, whatever hangs in it."""
_NAME = "the engine's process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosted:
    """What a process has opened."""

    completer: Completer
    calls: Mapping[str, Callable[..., Awaitable[Any]]] = field(default_factory=dict)
    """What else it does for the run's own process, by name."""


Tell: TypeAlias = Callable[..., None]
Opener: TypeAlias = Callable[[Any, Tell], AbstractAsyncContextManager[Hosted]]
"""Opens what the process is for, from work that can be pickled. It may tell the run's own process of things by name."""


class ModelProcess(DirectClient):
    """The run's end: a Completer, and calls of what is there besides. Open it with `open_model_process`."""

    def __init__(self, linked: LinkedProcess, door: socket.socket) -> None:
        super().__init__()
        self._linked = linked
        self._door = door
        self._load: EngineLoad | None = None
        self._work_lock = threading.Lock()
        self._work: list[EngineWork] = []

    @property
    def pid(self) -> int:
        return self._linked.pid

    def connect_another(self) -> socket.socket:
        """See `Connectable`."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._door, [b"\0"], [theirs.fileno()])
            except OSError as raised:
                ours.close()
                raise ModelError(f"{_NAME} takes no more connections: {raised.strerror}") from raised
        return ours

    async def call(self, name: str, *arguments: Any) -> Any:
        """One of `Hosted.calls`. A cancelled caller waits for what is under way."""
        return await self._linked.call("call", name, arguments)

    def load(self) -> EngineLoad | None:
        return self._load

    def take_work(self) -> tuple[EngineWork, ...]:
        """See `WorkReporter`."""
        with self._work_lock:
            taken, self._work = self._work, []
        return tuple(taken)

    async def catch_up(self) -> None:
        """See `LateReporter`."""
        self._hear(*await self._linked.link.call("report"))

    async def watch(self) -> None:
        """Never returns. Raises ModelError when the process has ended."""
        raise await self._linked.ended()

    async def aclose(self) -> None:
        await super().aclose()
        await self._linked.aclose()

    def _hear(self, load: EngineLoad | None, work: tuple[EngineWork, ...]) -> None:
        self._load = load
        with self._work_lock:
            self._work += work


@asynccontextmanager
async def open_model_process(
    opener: str, work: Any, *, tells: Mapping[str, Callable[..., None]] | None = None
) -> AsyncIterator[ModelProcess]:
    """`opener` names an Opener. Raises what that raises."""
    hears = dict(tells or {})
    link = Link(calls={}, tells=hears, peer=_NAME)
    door, their_door = socket.socketpair()
    with door:
        with their_door:
            process = await start_linked(__name__, link, (their_door,))
        linked = LinkedProcess(link, process, name=_NAME, error=ModelError, close_s=CLOSE_S)
        model = ModelProcess(linked, door)
        hears["report"] = model._hear
        try:
            load, pids = await linked.call("open", opener, work)
            model._hear(load, ())
            linked.started(pids)
            await model.connect(model.connect_another())
            yield model
        finally:
            await model.aclose()


# ---------------------------------------------------------------- the process


class _Host:
    def __init__(self, door: socket.socket) -> None:
        self._door = door
        self._stack = AsyncExitStack()
        self._hosted: Hosted | None = None
        self._servers: set[DirectServer] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.link = Link(
            calls={"open": self._open, "call": self._call, "report": self._report},
            tells={},
            peer="the run's own process",
        )

    async def _open(self, opener: str, work: Any) -> tuple[EngineLoad | None, tuple[int, ...]]:
        opens: Opener = load_object(opener, "what opens a model")  # type: ignore[assignment]
        self._hosted = await self._stack.enter_async_context(opens(work, self.link.tell))
        asyncio.get_running_loop().add_reader(self._door.fileno(), self._let_in)
        return self._hosted.completer.load(), linked_pids()

    async def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        return await self._opened.calls[name](*arguments)

    @property
    def _opened(self) -> Hosted:
        assert self._hosted is not None, "`open` is called first"
        return self._hosted

    def _let_in(self) -> None:
        """Someone is at the door."""
        with suppress(BlockingIOError):
            _, numbers, _, _ = socket.recv_fds(self._door, 1, 1)
            if not numbers:  # the run's own process is gone
                asyncio.get_running_loop().remove_reader(self._door.fileno())
            for number in numbers:
                server = DirectServer(self._opened.completer, self._servers.discard)
                self._servers.add(server)
                own = socket.socket(fileno=number)
                own.set_inheritable(False)
                task = asyncio.create_task(server.connect(own))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _report(self) -> tuple[EngineLoad | None, tuple[EngineWork, ...]]:
        completer = self._opened.completer
        return completer.load(), completer.take_work() if isinstance(completer, WorkReporter) else ()

    async def report(self) -> None:
        """Tell the run's own process of the load, and of the engine's work."""
        last: EngineLoad | None = None
        while True:
            await asyncio.sleep(REPORT_S)
            if self._hosted is not None:
                load, work = await self._report()
                if work or load != last:
                    self.link.tell("report", load, work)
                last = load

    async def serve(self, own: socket.socket) -> None:
        """Until the link is lost."""
        await self.link.connect(own)
        async with task_group() as group:
            reporting = group.create_task(self.report())
            await self.link.over(grace_s=CLOSE_S / 3)
            reporting.cancel()
        await self._stack.aclose()


def main() -> None:
    log_printable()
    collect_rarely()
    own = own_end(sys.argv)
    (door,) = given_ends(sys.argv)
    threading.Thread(target=exit_after, args=(own.fileno(), EXIT_AFTER_S), daemon=True).start()
    asyncio.run(_serve(own, door))


async def _serve(own: socket.socket, door: socket.socket) -> None:
    try:
        await _Host(door).serve(own)
    except Exception:
        logger.exception("%s could not close all it had", _NAME)
    finally:
        sys.stderr.flush()
        os._exit(0)  # torch would wait for a busy thread, and complain about the memory it lent


if __name__ == "__main__":
    main()
