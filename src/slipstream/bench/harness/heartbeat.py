"""How long the event loop was held up while something ran.

A task wakes every two milliseconds and looks at the clock: what it comes late is a stall. Beside it stands the CPU time
between two wake-ups: that of the loop's own thread, and that of all threads of the process, which may hold the
interpreter's lock. A machine that is busy with other things, or gives this one little of its cores, makes the stall
longer and these not: on an idle one the stall is no longer than the CPU time of the process.
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
    """Filled while the heart beats."""

    stall_ms: float = 0.0
    """The longest."""
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
        await asyncio.sleep(2 * BEAT_S)  # a stall at the very end is seen by the beat after it
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
