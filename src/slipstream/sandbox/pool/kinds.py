"""The pool's bookkeeping for one kind of sandbox: waiters, running starts, and warm sandboxes.

Invariants: whoever was served, or gave up, is no longer a waiter.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable

from slipstream.sandbox.base import Sandbox
from slipstream.sandbox.pool.demand import Demand

Opener = Callable[[], Awaitable[Sandbox]]


class Waiter:
    """A caller that waits for a sandbox."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ready: asyncio.Future[Sandbox] = asyncio.get_running_loop().create_future()
        self.num_failures = 0
        self.not_before_s = -math.inf


class SandboxKind:
    """One kind of sandbox."""

    def __init__(self, key: Hashable, opener: Opener, demand: Demand) -> None:
        self.key = key
        self.opener = opener
        self.demand = demand
        self.warm: list[Sandbox] = []
        self.starts: set[asyncio.Task[None]] = set()
        self.waiters: list[Waiter] = []
        self.num_failures = 0
        """Consecutive failed starts that nobody waited for."""
        self.not_before_s = -math.inf

    def waiting(self, now_s: float) -> list[Waiter]:
        """The waiters for whom a sandbox may be started now."""
        return [waiter for waiter in self.waiters if not waiter.ready.done() and waiter.not_before_s <= now_s]

    def num_spare(self, now_s: float) -> int:
        """Starts that nobody waits for."""
        return max(0, len(self.starts) - len(self.waiting(now_s)))

    def num_kept(self, now_s: float) -> int:
        """Warm sandboxes, and starts that will become warm."""
        return len(self.warm) + self.num_spare(now_s)
