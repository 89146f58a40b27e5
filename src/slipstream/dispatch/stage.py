"""Runs one stage of one attempt to its end, its deadline, or its abandonment.

Invariants: `run` returns or raises within its deadline plus the grace period, whatever the stage does. A stage that
ignores its cancellation is abandoned and counted; this is the one place where a task may outlive its parent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from slipstream.aio import ended_within, outlast
from slipstream.errors import InfrastructureError, JournalError

T = TypeVar("T")

logger = logging.getLogger(__name__)


class StageDeadline(InfrastructureError):
    """The stage's deadline passed."""


class StageAbandoned(StageDeadline):
    """The deadline passed and the stage ignored its cancellation: it may still be running."""


class StageRunner:
    def __init__(self, *, grace_s: float) -> None:
        self._grace_s = grace_s
        self._abandoned: set[asyncio.Task[Any]] = set()
        self.num_abandoned = 0

    async def run(
        self,
        stage: Callable[[], Awaitable[T]],
        *,
        timeout_s: float,
        name: str,
        held_s: Callable[[], float] = lambda: 0.0,
        most_s: float | None = None,
    ) -> T:
        """The stage's result. Raises StageDeadline, InfrastructureError, or whatever the stage raised.

        `held_s`: how long the gate has held it, which does not count; `most_s`: the deadline that counts everything.
        """
        task = asyncio.create_task(_contained(stage), name=name)
        timeout_s = timeout_s if most_s is None else min(timeout_s, most_s)
        granted_s = 0.0
        try:
            await ended_within(max(0.0, timeout_s), task)
            while not task.done() and (more_s := held_s() - granted_s) > 0 and most_s is not None:
                granted_s += more_s
                more_s = min(timeout_s + granted_s, most_s) - (timeout_s + granted_s - more_s)
                if more_s <= 0:
                    break
                await ended_within(more_s, task)
        except asyncio.CancelledError:
            await self._end(task)
            raise
        return await self._result(task, timeout_s)

    async def finish(
        self, stage: Callable[[], Awaitable[None]], *, timeout_s: float, name: str
    ) -> tuple[Exception | None, asyncio.CancelledError | None]:
        """Run clean-up to its end or its deadline, even if cancelled meanwhile: what it failed with, and the
        cancellation, which the caller raises when all is cleaned up."""
        loop, task = asyncio.get_running_loop(), asyncio.create_task(_contained(stage), name=name)
        ends_at_s = loop.time() + timeout_s
        failed: Exception | None = None
        cancelled: asyncio.CancelledError | None = None
        while not task.done() and (left_s := ends_at_s - loop.time()) > 0:
            try:
                await ended_within(left_s, task)
            except asyncio.CancelledError as raised:
                cancelled = raised
        try:
            await self._result(task, timeout_s)
        except asyncio.CancelledError as raised:
            cancelled = raised
        except Exception as raised:
            failed = raised
        return failed, cancelled

    async def _result(self, task: asyncio.Task[T], timeout_s: float) -> T:
        """What a stage that is done, or had `timeout_s`, returned."""
        if task.done():
            return task.result()
        late = f"{task.get_name()} passed its deadline of {timeout_s:g} s"
        if not await self._end(task):
            raise StageAbandoned(f"{late} and ignored its cancellation")
        if task.cancelled():
            raise StageDeadline(late)
        raised = task.exception()
        if raised is None or isinstance(raised, JournalError):
            return task.result()
        raise StageDeadline(f"{late}, then ended with {raised!r}") from raised

    def has_left_behind(self, name: str) -> bool:
        """Whether a stage of this name ignored its cancellation and may still be at work."""
        return any(task.get_name() == name for task in self._abandoned)

    async def _end(self, task: asyncio.Task[Any]) -> bool:
        """Cancel, wait for the grace period, and say whether it ended; if not, abandon it."""
        task.cancel()
        try:
            # Even if cancelled again meanwhile: what is alive still holds its place.
            await outlast([asyncio.create_task(ended_within(self._grace_s, task))])
        finally:
            if not task.done():
                self.num_abandoned += 1
                self._abandoned.add(task)
                task.add_done_callback(self._forget)
                logger.warning("%s ignored its cancellation and was abandoned", task.get_name())
            elif not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not report it
        return task.done()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled() and (raised := task.exception()) is not None:
            logger.warning("%s, abandoned before, ended with %r", task.get_name(), raised)


async def _contained(stage: Callable[[], Awaitable[T]]) -> T:
    """Turn what would end the event loop, or look like a cancellation from outside, into a failure of the stage."""
    task = asyncio.current_task()
    try:
        return await stage()
    except SystemExit as raised:
        raise InfrastructureError(f"the stage called sys.exit({raised.code!r})") from raised
    except asyncio.CancelledError as raised:
        if task is not None and task.cancelling():
            raise
        raise InfrastructureError("the stage cancelled itself") from raised
