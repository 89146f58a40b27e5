"""Measures how many sandboxes a machine starts per second when several processes of a run start them at once.

Output: starts per second, the duration and CPU time of one, and how busy the cores were. Every process has a provider
of its own, like the helpers of a run (`dispatch.processes`). A sandbox is held open for a while, since open sandboxes
may slow down starts.
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
"""How long the processes may take to become ready."""

_barrier: Barrier | None = None
"""The barrier at which this process waits for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartsLoad:
    processes: int = 2
    concurrent: int = 8
    """Sandboxes per process at once."""
    seconds: float = 5.0
    hold_s: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResult:
    """The measurements of one process."""

    start_s: list[float]
    cpu_s: float
    """Its own CPU time, and that of all its children."""


def run(load: StartsLoad) -> dict[str, Json]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(load.processes + 1)
    with ProcessPoolExecutor(load.processes, context, _set_barrier, (barrier,)) as pool:
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


def _set_barrier(barrier: Barrier) -> None:
    global _barrier  # the only way to pass an object to the processes of a pool
    _barrier = barrier


def _work(load: StartsLoad) -> ProcessResult:
    return asyncio.run(_start_many(load))


async def _start_many(load: StartsLoad) -> ProcessResult:
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
        await (await provider.open(SandboxSpec())).aclose()  # warm up: the first start prepares shared state
        before_s = _cpu_s()
        if _barrier is not None:
            await asyncio.to_thread(_barrier.wait, READY_S)
        until_s = time.perf_counter() + load.seconds
        await asyncio.gather(*(one_after_the_other(until_s) for _ in range(load.concurrent)))
    finally:
        await provider.aclose()
    return ProcessResult(start_s=start_s, cpu_s=_cpu_s() - before_s)


def _cpu_s() -> float:
    """The CPU time of this process and of its ended children."""
    each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in each)
