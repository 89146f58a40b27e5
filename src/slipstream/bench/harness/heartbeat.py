"""Measures how long the event loop is blocked while something runs.

A timer fires every two milliseconds and reads the clock: its delay is a stall. The CPU time between two wake-ups is
measured too, of the loop's thread and of all threads of the process, which may hold the GIL. Other work on the machine
makes the stall longer but not the CPU times: on an idle machine no stall is longer than the process's CPU time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

BEAT_S = 0.002


@dataclass(slots=True, kw_only=True)
class Stalls:
    """The longest stall so far."""

    stall_ms: float = 0.0
    loop_cpu_ms: float = 0.0
    """The most CPU time of the loop's thread between two beats."""
    process_cpu_ms: float = 0.0
    """The most CPU time of all threads of this process between two beats."""
    num_beats: int = 0
    seconds: float = 0.0


@asynccontextmanager
async def heartbeat() -> AsyncIterator[Stalls]:
    beating = _Beating(asyncio.get_running_loop())
    started_s = time.perf_counter()
    beating.wait()
    await asyncio.sleep(BEAT_S)
    try:
        yield beating.found
    finally:
        await asyncio.sleep(2 * BEAT_S)  # so that a stall at the very end is measured
        beating.timer.cancel()
        beating.found.seconds = time.perf_counter() - started_s


class _Beating:
    """A timer's callback and no task, which would be woken a pass of the event loop later."""

    timer: asyncio.TimerHandle

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.found = Stalls()
        self._loop = loop

    def wait(self) -> None:
        self._before_s, self._cpu_s, self._process_s = time.perf_counter(), time.thread_time(), time.process_time()
        self.timer = self._loop.call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        found = self.found
        found.num_beats += 1
        found.stall_ms = max(found.stall_ms, 1000 * (time.perf_counter() - self._before_s - BEAT_S))
        found.loop_cpu_ms = max(found.loop_cpu_ms, 1000 * (time.thread_time() - self._cpu_s))
        found.process_cpu_ms = max(found.process_cpu_ms, 1000 * (time.process_time() - self._process_s))
        self.wait()
