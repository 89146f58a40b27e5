"""Samples the machine into a run's store while the run is going.

Invariants: everything happens in a thread of its own, so the event loop never waits for a driver; the thread ends with
the context, the store or the process; whatever goes wrong in it, the run continues. On virtual time nothing is sampled.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

from slipstream.record.hardware import HardwareSample
from slipstream.telemetry.cpus import Cpus
from slipstream.telemetry.nvml import Gpus
from slipstream.types import EngineWork

_log = logging.getLogger(__name__)

TakeWork = Callable[[], tuple[EngineWork, ...]]
"""What an engine did since the last call."""

_END_S = 2.0
"""How long the end of a run waits for a driver that hangs; after that the thread is abandoned."""


class MachineProbe:
    """Reads this machine, as far as this process may use it, for one thread. The first reading only starts the
    counting."""

    def __init__(
        self, *, cpus: Cpus | None = None, gpus: Gpus | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cpus = Cpus() if cpus is None else cpus
        self._gpus = Gpus.find(visible=os.environ.get("CUDA_VISIBLE_DEVICES")) if gpus is None else gpus
        self._clock = clock
        self._last_s: float | None = None

    def read(self) -> HardwareSample | None:
        """A sample of the time since the last call; None the first time."""
        now_s = self._clock()
        cpu = self._cpus.read()
        last_s, self._last_s = self._last_s, now_s
        if last_s is None or now_s <= last_s:
            return None
        return HardwareSample(at_s=now_s, seconds=now_s - last_s, cpu=cpu, gpus=self._gpus.read())

    def close(self) -> None:
        self._gpus.close()


class SampleStore(Protocol):
    def add_sample(self, sample: HardwareSample) -> bool:
        """Keep a sample, from any thread; False once the store takes no more."""
        ...


@asynccontextmanager
async def sampling(
    store: SampleStore,
    every_s: float,
    *,
    take_work: TakeWork = lambda: (),
    open_machine: Callable[[], MachineProbe] = MachineProbe,
) -> AsyncIterator[None]:
    """Sample while the context is open; not at all if `every_s` is 0."""
    if every_s <= 0 or not _is_real_time():
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(
        target=_sample, args=(store, every_s, open_machine, take_work, stop), name="hardware sampler", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        await asyncio.to_thread(thread.join, _END_S)


def _is_real_time() -> bool:
    return abs(asyncio.get_running_loop().time() - time.monotonic()) < 1.0


def _sample(
    store: SampleStore,
    every_s: float,
    open_machine: Callable[[], MachineProbe],
    take_work: TakeWork,
    stop: threading.Event,
) -> None:
    try:
        machine = open_machine()
        try:
            machine.read()
            take_work()
            is_over = False
            while not is_over:
                is_over = stop.wait(every_s)  # the last, shorter period is sampled too
                sample = machine.read()
                if sample is not None and not store.add_sample(replace(sample, work=take_work())):
                    return
        finally:
            machine.close()
    except Exception as raised:  # this thread's boundary: no figure is worth a run
        _log.warning("stopped sampling the machine: %s: %s", type(raised).__name__, raised)
