"""What asyncio lacks. Standard library only."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup whose first error comes out as itself and not in an ExceptionGroup, for callers that catch it."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as raised:
        first = raised.exceptions[0]
    else:
        return
    raise first


def run_stoppable(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, with SIGTERM and SIGHUP as good as ^C: what is open is closed, then KeyboardInterrupt is raised. A
    signal that is ignored, as `nohup` has it, stays so."""
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    was_told = False

    async def stoppable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop() -> None:
            nonlocal was_told
            was_told = True
            assert task is not None
            task.cancel()

        for number in numbers:
            loop.add_signal_handler(number, stop)
        return await main

    try:
        return asyncio.run(stoppable())
    except asyncio.CancelledError:
        if was_told:
            raise KeyboardInterrupt from None
        raise


def collect_rarely() -> None:
    """Make the garbage collector of this process look less often, for one that holds thousands of rollouts.

    What they are made of lives as long as they do and is freed by its count, so looking through all of it again and
    again finds nothing, and takes almost half the time with 10,000 of them. Cycles are still found, only later.
    """
    gc.set_threshold(50_000, 20, 20)


async def outlast(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Wait until all of `tasks` are done, even if cancelled meanwhile; the cancellation is raised afterwards.

    For clean-up that must be carried out: what is waited for has to be bounded by itself.
    """
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as raised:
            cancelled = raised
    if cancelled is not None:
        raise cancelled
