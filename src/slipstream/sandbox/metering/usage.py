"""Records what a sandbox uses and which of its limits it reached.

Input: measurements of a sandbox, at any time and from any thread. Output: its Usage, the most severe Limit it reached,
and one notification for each limit. Invariants: peaks, times and reached limits are never forgotten.
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
"""Beyond the limit enforced inside, so that the host can still start programs."""
OWN_PROCESSES = 1
"""Of the processes of a sandbox, the supervisor is ours."""
MB = 1 << 20


class Limit(StrEnum):
    """The limits, the least severe first: it costs a failed fork, a killed process, or all processes."""

    PROCESSES = "processes"
    MEMORY = "memory"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    peak_memory_mb: float = 0.0
    cpu_s: float = 0.0
    num_processes: int = 0
    """Now; each thread counts."""


@dataclass(kw_only=True)
class UsageMeter:
    """The usage and reached limits of one sandbox. Thread-safe."""

    limits: SandboxLimits
    on_exceeded: Callable[[str], None] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    """Where `on_exceeded` is called."""
    usage: Usage = Usage()

    def __post_init__(self) -> None:
        self._hit: set[Limit] = set()
        self._lock = threading.Lock()

    def record(self, *, memory_mb: float, cpu_s: float, num_processes: int) -> None:
        with self._lock:
            self.usage = Usage(
                peak_memory_mb=max(self.usage.peak_memory_mb, memory_mb),
                cpu_s=max(self.usage.cpu_s, cpu_s),
                num_processes=num_processes,
            )

    def hit(self, limit: Limit) -> bool:
        """Record that a limit was reached; returns whether it is the first time. Only then is `on_exceeded` called."""
        with self._lock:
            if limit in self._hit:
                return False
            self._hit.add(limit)
        if self.on_exceeded is not None:
            if self.loop is None:
                self.on_exceeded(limit)
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to notify
                    self.loop.call_soon_threadsafe(self.on_exceeded, limit)
        return True

    def most_severe(self) -> Limit | None:
        with self._lock:
            return max(self._hit, key=list(Limit).index, default=None)
