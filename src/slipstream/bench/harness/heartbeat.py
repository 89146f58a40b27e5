"""Measures how long the event loop is blocked while something runs.

A task wakes every two milliseconds and reads the clock: its delay is a stall. The CPU time between two wake-ups is
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
    found = Stalls()
    started_s = time.perf_counter()
    beating = asyncio.create_task(_beat(found))
    await asyncio.sleep(BEAT_S)
    try:
        yield found
    finally:
        await asyncio.sleep(2 * BEAT_S)  # so that a stall at the very end is measured
        beating.cancel()
        await asyncio.wait([beating])
        found.seconds = time.perf_counter() - started_s


async def _beat(found: Stalls) -> None:
    while True:
        before_s, cpu_s, process_s = time.perf_counter(), time.thread_time(), time.process_time()
        await asyncio.sleep(BEAT_S)
        found.num_beats += 1
        found.stall_ms = max(found.stall_ms, 1000 * (time.perf_counter() - before_s - BEAT_S))
        found.loop_cpu_ms = max(found.loop_cpu_ms, 1000 * (time.thread_time() - cpu_s))
        found.process_cpu_ms = max(found.process_cpu_ms, 1000 * (time.process_time() - process_s))
