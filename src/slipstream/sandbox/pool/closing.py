"""What is on its way out: sandboxes that are being closed, starts that were given up.

Input: a sandbox, or a start that is not wanted any more. Output: a task that ends it, and a count until it has.
Invariants: every ending is over within two graces. What ignores its cancellation is left behind and counted, and a
sandbox that it still brings is closed.
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


class Endings:
    """`on_over` is told whenever one is over. A start has `grace_s` to end, and a close twice that."""

    def __init__(self, *, grace_s: float, on_over: Callable[[], None]) -> None:
        self._grace_s = grace_s
        self._on_over = on_over
        self._of: dict[Sandbox, asyncio.Task[None]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.num_abandoned = 0

    def close(self, sandbox: Sandbox) -> asyncio.Task[None]:
        """Close a sandbox; a second time it is the same task."""
        if sandbox not in self._of:
            self._of[sandbox] = task = self._begin(self._close(sandbox))
            task.add_done_callback(lambda _: self._of.pop(sandbox, None))
        return self._of[sandbox]

    def closing(self, sandbox: Sandbox) -> asyncio.Task[None] | None:
        """The task that closes a sandbox, as long as it does."""
        return self._of.get(sandbox)

    def give_up(self, opening: asyncio.Future[Sandbox]) -> None:
        """Cancel a start, and close what it brings all the same."""
        opening.cancel()
        self._begin(self._give_up(opening))

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
        closing.add_done_callback(_brought)
        raise SandboxError(f"sandbox {sandbox.id} was not closed within {2 * self._grace_s:g} s and was left behind")

    async def _give_up(self, opening: asyncio.Future[Sandbox]) -> None:
        await asyncio.wait([opening], timeout=self._grace_s)
        if not opening.done():
            self.num_abandoned += 1
            opening.add_done_callback(self._came_late)
            raise SandboxError("the start of a sandbox ignores that it was cancelled, and was left behind")
        if (sandbox := _brought(opening)) is not None:
            await self._close(sandbox)

    def _came_late(self, opening: asyncio.Future[Sandbox]) -> None:
        if (sandbox := _brought(opening)) is not None:
            self.close(sandbox)


def result_of(done: asyncio.Future[Any]) -> Any:
    """What a finished task came to; one that was cancelled, and not by us, has failed."""
    if done.cancelled():
        raise SandboxError("the provider cancelled its own work")
    return done.result()


def _brought(done: asyncio.Future[Any]) -> Any:
    """What a task came to that nobody waits for; None if it failed."""
    with contextlib.suppress(Exception, asyncio.CancelledError):
        return done.result()
    return None
