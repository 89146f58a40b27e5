"""Additions to asyncio. Standard library only."""

from __future__ import annotations

import asyncio
import collections
import gc
import signal
import types
from collections.abc import AsyncIterator, Collection, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup that raises its first error itself instead of an ExceptionGroup, for callers that catch it."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as raised:
        first = raised.exceptions[0]
    else:
        return
    raise first


async def finish_by(deadline_s: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled at the event loop's time `deadline_s`, as under asyncio.timeout_at.

    No timer is made for work that never waits.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    async with asyncio.timeout_at(deadline_s):
        return await _rest(work, waits_for)


@types.coroutine
def _rest(work: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """Await `work`, whose first step was made and waits for `waits_for`."""
    while True:
        sent, raised = None, None
        try:
            sent = yield waits_for
        except GeneratorExit:
            work.close()
            raise
        except BaseException as thrown:
            raised = thrown
        try:
            waits_for = work.send(sent) if raised is None else work.throw(raised)
        except StopIteration as ended:
            result: T = ended.value
            return result
        finally:
            raised = None  # it holds this frame


class PerPass:
    """Lets a number of tasks through in each pass of the event loop, in the order in which they come.

    With thousands ready at once a pass would take seconds, and timers and sockets would wait for its end.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._num_through = 0
        """In this pass."""
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    def is_through(self) -> bool:
        """Whether this pass has room and nobody waits; then the caller is counted. Otherwise await `through`."""
        if self._waiting or self._num_through == self._most:
            return False
        self._count()
        return True

    async def through(self) -> None:
        """Go on in this pass if it has room and nobody waits, otherwise in a later one."""
        if self.is_through():
            return
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # what it counted was in a loop that is gone
            self._waiting.clear()
            self._num_through = 0
            self._count()
            return
        waiter = loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _count(self) -> None:
        if not self._num_through:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._next_pass)
        self._num_through += 1

    def _next_pass(self) -> None:
        self._num_through = 0
        while self._waiting and self._num_through < self._most:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._count()


def run_stoppable(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run that treats SIGTERM and SIGHUP like ^C: everything is closed, then KeyboardInterrupt is raised. A
    signal that is ignored, as under `nohup`, stays ignored."""
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    was_signalled = False

    async def stoppable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop() -> None:
            nonlocal was_signalled
            was_signalled = True
            assert task is not None
            task.cancel()

        for number in numbers:
            loop.add_signal_handler(number, stop)
        return await main

    try:
        return asyncio.run(stoppable())
    except asyncio.CancelledError:
        if was_signalled:
            raise KeyboardInterrupt from None
        raise


def collect_rarely() -> None:
    """Make this process's garbage collector run less often, for a process that holds thousands of rollouts.

    Their objects live as long as they do and are freed by reference counting, so repeated full collections find nothing
    and take almost half the time with 10,000 rollouts. Cycles are still collected, only later. What outlived one
    collection is looked at once more with the next one, and then only by a full one: a collection of many generations
    together would hold everything up for as long as a second.
    """
    gc.set_threshold(20_000, 0, 500)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """`collect_rarely` within the block, for a process that is not ours alone."""
    before = gc.get_threshold()
    collect_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def outlast(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Wait until all of `tasks` are done, even if cancelled meanwhile; the cancellation is raised afterwards.

    For clean-up that must be completed: the tasks need time limits of their own.
    """
    cancelled: asyncio.CancelledError | None = None
    for task in tasks:
        while not task.done():
            try:
                await ended_within(None, task)
            except asyncio.CancelledError as raised:
                cancelled = raised
    if cancelled is not None:
        raise cancelled


async def ended_within(timeout_s: float | None, task: asyncio.Future[Any]) -> None:
    """Wait until `task` is done or the time is over, and do nothing to it. As asyncio.wait, but lighter, for one."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = None if timeout_s is None else loop.call_later(timeout_s, wake)
    task.add_done_callback(wake)
    try:
        await waiter
    finally:
        task.remove_done_callback(wake)
        if timer is not None:
            timer.cancel()
