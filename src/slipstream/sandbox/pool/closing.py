"""Closes sandboxes and abandons starts in the background, for the pool.

Input: a sandbox, or a start that is no longer wanted. Output: a task that ends it, counted until it is done.
Invariants: every task is done within two grace periods. What ignores its cancellation is left behind and counted, and a
sandbox that it still produces is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from slipstream.errors import SandboxError, boundary
from slipstream.sandbox.base import Sandbox

logger = logging.getLogger(__name__)


class ClosingTasks:
    """`on_over` is called whenever a task is done. A start has `grace_s` to end, a close twice that."""

    def __init__(self, *, grace_s: float, on_over: Callable[[], None]) -> None:
        self._grace_s = grace_s
        self._on_over = on_over
        self._of: dict[Sandbox, asyncio.Task[None]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.num_abandoned = 0

    def close(self, sandbox: Sandbox) -> asyncio.Task[None]:
        """Close a sandbox; a second call returns the same task."""
        if sandbox not in self._of:
            self._of[sandbox] = task = self._begin(self._close(sandbox))
            task.add_done_callback(lambda _: self._of.pop(sandbox, None))
        return self._of[sandbox]

    def closing(self, sandbox: Sandbox) -> asyncio.Task[None] | None:
        """The running task that closes a sandbox, if any."""
        return self._of.get(sandbox)

    def abandon_start(self, opening: asyncio.Future[Sandbox]) -> None:
        """Cancel a start, and close the sandbox if it produces one anyway."""
        opening.cancel()
        self._begin(self._abandon_start(opening))

    def _begin(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (raised := task.exception()) is not None:
            logger.warning("%s", raised)
        self._on_over()

    async def _close(self, sandbox: Sandbox) -> None:
        closing = asyncio.ensure_future(sandbox.aclose())
        await asyncio.wait([closing], timeout=2 * self._grace_s)
        if closing.done():
            with boundary(SandboxError, f"sandbox {sandbox.id} could not be closed"):
                result_of(closing)
            return
        self.num_abandoned += 1
        closing.cancel()
        closing.add_done_callback(_result_or_none)
        raise SandboxError(f"closing sandbox {sandbox.id} took more than {2 * self._grace_s:g} s: it was left behind")

    async def _abandon_start(self, opening: asyncio.Future[Sandbox]) -> None:
        await asyncio.wait([opening], timeout=self._grace_s)
        if not opening.done():
            self.num_abandoned += 1
            opening.add_done_callback(self._close_late_start)
            raise SandboxError("the start of a sandbox ignored its cancellation: it was left behind")
        if (sandbox := _result_or_none(opening)) is not None:
            await self._close(sandbox)

    def _close_late_start(self, opening: asyncio.Future[Sandbox]) -> None:
        if (sandbox := _result_or_none(opening)) is not None:
            self.close(sandbox)


def result_of(done: asyncio.Future[Any]) -> Any:
    """The result of a finished task; one that was cancelled, but not by us, has failed."""
    if done.cancelled():
        raise SandboxError("the provider cancelled its own work")
    return done.result()


def _result_or_none(done: asyncio.Future[Any]) -> Any:
    """The result of a task that nobody waits for; None if it failed."""
    with contextlib.suppress(Exception, asyncio.CancelledError):
        return done.result()
    return None
