"""How many sandboxes a machine starts in a second, where several processes of a run start them at once.

Input: a load. Output: starts a second, how long one takes, what it takes of the cores, and how busy they were. Every
process has a provider of its own, as the helpers of a run have (`dispatch.processes`). A sandbox is held for a while,
since what is open may slow down what is started.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from threading import Barrier

from slipstream.sandbox.local.provider import LocalProvider
from slipstream.telemetry.cpus import Cpus
from slipstream.types import Json, SandboxSpec

READY_S = 120.0
"""How long processes may take until all of them can begin."""

_together: Barrier | None = None
"""Of this process: where it waits for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartsLoad:
    processes: int = 2
    concurrent: int = 8
    """Sandboxes of each at once."""
    seconds: float = 5.0
    hold_s: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """By one process."""

    start_s: list[float]
    cpu_s: float
    """Its own, and that of all it started."""


def run(load: StartsLoad) -> dict[str, Json]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(load.processes + 1)
    with ProcessPoolExecutor(load.processes, context, _remember, (barrier,)) as pool:
        working = [pool.submit(_work, load) for _ in range(load.processes)]
        cpus = Cpus()
        barrier.wait(READY_S)
        cpus.read()
        began_s = time.perf_counter()
        done = [each.result() for each in working]
        seconds = time.perf_counter() - began_s
        busy = cpus.read()
    start_s = sorted(each for one in done for each in one.start_s)
    num = len(start_s)
    return {
        "processes": load.processes,
        "concurrent": load.concurrent,
        "starts_per_s": num / seconds,
        "start_ms_p50": 1000 * start_s[num // 2],
        "start_ms_p95": 1000 * start_s[num * 95 // 100],
        "cpu_ms_per_start": 1000 * sum(one.cpu_s for one in done) / num,
        "cores_busy": None if busy is None else busy.percent / 100,
    }


def _remember(barrier: Barrier) -> None:
    global _together  # the one way to hand something to the processes of a pool
    _together = barrier


def _work(load: StartsLoad) -> Done:
    return asyncio.run(_start_many(load))


async def _start_many(load: StartsLoad) -> Done:
    provider = LocalProvider(sharers=load.processes)
    start_s: list[float] = []

    async def one_after_the_other(until_s: float) -> None:
        while time.perf_counter() < until_s:
            began_s = time.perf_counter()
            sandbox = await provider.open(SandboxSpec())
            start_s.append(time.perf_counter() - began_s)
            await asyncio.sleep(load.hold_s)
            await sandbox.aclose()

    try:
        await (await provider.open(SandboxSpec())).aclose()  # what a first start prepares is there from now on
        before_s = _cpu_s()
        if _together is not None:
            await asyncio.to_thread(_together.wait, READY_S)
        until_s = time.perf_counter() + load.seconds
        await asyncio.gather(*(one_after_the_other(until_s) for _ in range(load.concurrent)))
    finally:
        await provider.aclose()
    return Done(start_s=start_s, cpu_s=_cpu_s() - before_s)


def _cpu_s() -> float:
    """Of this process and of those that ended."""
    each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in each)
