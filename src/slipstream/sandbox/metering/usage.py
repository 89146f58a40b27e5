"""What a sandbox may use, what it has used, and which of its limits it ran into.

Input: what a meter sees of a sandbox, at any moment and from any thread. Output: its Usage, its gravest Limit, and
word of each limit that was run into, once.
Invariants: peaks, times and limits that were run into are never forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from slipstream.types import SandboxLimits

SPARE_PROCESSES = 10
"""Beyond the limit, which is held inside: so that whoever acts from outside can still start something."""
MB = 1 << 20


class Limit(StrEnum):
    """What can be run into, the least grave first: a fork that failed, a process that was killed, all of them."""

    PROCESSES = "processes"
    MEMORY = "memory"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    peak_memory_mb: float = 0.0
    cpu_s: float = 0.0
    num_processes: int = 0
    """Now; threads count each."""


@dataclass(kw_only=True)
class UsageMeter:
    """What one meter has seen so far, and whom it tells. Safe to use from several threads."""

    limits: SandboxLimits
    on_exceeded: Callable[[str], None] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    """Where `on_exceeded` is called."""
    usage: Usage = Usage()

    def __post_init__(self) -> None:
        self._hit: set[Limit] = set()
        self._lock = threading.Lock()

    def see(self, *, memory_mb: float, cpu_s: float, num_processes: int) -> None:
        with self._lock:
            self.usage = Usage(
                peak_memory_mb=max(self.usage.peak_memory_mb, memory_mb),
                cpu_s=max(self.usage.cpu_s, cpu_s),
                num_processes=num_processes,
            )

    def hit(self, limit: Limit) -> bool:
        """Note that a limit was run into; whether it is for the first time, of which alone word is given."""
        with self._lock:
            if limit in self._hit:
                return False
            self._hit.add(limit)
        if self.on_exceeded is not None:
            if self.loop is None:
                self.on_exceeded(limit)
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                    self.loop.call_soon_threadsafe(self.on_exceeded, limit)
        return True

    def gravest(self) -> Limit | None:
        with self._lock:
            return max(self._hit, key=list(Limit).index, default=None)
