"""The sampler's thread, and what of it is in the store."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from fake_machine import Clock, FakeNvml, put, stat
from record_samples import job_events

from slipstream.record import RunStore
from slipstream.record.hardware import CpuSample, GpuSample, HardwareSample
from slipstream.seams import LearnerWork, LearnerWorked
from slipstream.simulate.clock import run_virtual
from slipstream.telemetry.cpus import Cpus
from slipstream.telemetry.nvml import Gpus
from slipstream.telemetry.sampler import MachineProbe, sampling
from slipstream.types import EngineWork

TICKS = os.sysconf("SC_CLK_TCK")
SAMPLES = [
    HardwareSample(
        at_s=float(number),
        seconds=1.0,
        cpu=CpuSample(percent=10.0 * number, cores=4.0, own_cores=0.5, helper_cores=0.25),
        gpus=(GpuSample(gpu=0, percent=50, memory_mb=7.5), GpuSample(gpu=1, percent=0, memory_mb=1.0)),
    )
    for number in range(1, 4)
]


class Scripted(MachineProbe):
    """Gives these samples one by one, and says when it has none left, and when it was closed."""

    def __init__(self, samples: list[HardwareSample]) -> None:
        super().__init__(cpus=Cpus(mask={0}), gpus=Gpus(None, {}))
        self._left = list(samples)
        self.is_empty = threading.Event()
        self.is_closed = threading.Event()

    def read(self) -> HardwareSample | None:
        if not self._left:
            self.is_empty.set()
            return None
        return self._left.pop(0)

    def close(self) -> None:
        self.is_closed.set()


def test_a_sample_stands_for_the_time_since_the_last(tmp_path: Path) -> None:
    clock = Clock(now_s=10.0)
    put(tmp_path, {"proc/stat": stat((0, 1))})
    cpus = Cpus(tmp_path, mask={0}, own_s=Clock())
    machine = MachineProbe(cpus=cpus, gpus=Gpus.find(FakeNvml(busy=[[40]])), clock=clock)
    assert machine.read() is None
    put(tmp_path, {"proc/stat": stat((TICKS // 2, 1 + TICKS // 2))})
    clock.now_s = 10.5
    assert machine.read() == HardwareSample(
        at_s=10.5,
        seconds=0.5,
        cpu=CpuSample(percent=50.0, cores=1, own_cores=0.0),
        gpus=(GpuSample(gpu=0, percent=40, memory_mb=1_000),),
    )


def test_this_machine_can_be_read() -> None:
    machine = MachineProbe()
    machine.read()
    sample = machine.read()
    assert sample is not None and sample.seconds > 0
    machine.close()


def test_samples_are_in_the_store_in_epoch_seconds_beside_the_events(tmp_path: Path) -> None:
    machine = Scripted([SAMPLES[0], *SAMPLES])

    async def check() -> None:
        async with RunStore.create(tmp_path / "run", config={}, clock_offset_s=1000.0) as store:
            async with sampling(store, 0.001, open_machine=lambda: machine):
                for event in job_events():
                    store.append(event)
                assert await asyncio.to_thread(machine.is_empty.wait, 60)
            assert machine.is_closed.is_set()
            await store.flush()
            assert [sample.at_s for sample in store.hardware()] == [1001.0, 1002.0, 1003.0]

    asyncio.run(check())
    first, *_ = RunStore.read(tmp_path / "run").hardware()
    assert (first.seconds, first.cpu, first.gpus) == (1.0, SAMPLES[0].cpu, SAMPLES[0].gpus)


def test_a_sample_without_a_gpu_or_without_processors_comes_back_as_it_was(tmp_path: Path) -> None:
    parts = [
        HardwareSample(at_s=1.0, seconds=0.5, cpu=SAMPLES[0].cpu),
        HardwareSample(at_s=2.0, seconds=0.5, gpus=SAMPLES[0].gpus[1:]),
    ]

    async def write() -> None:
        async with RunStore.create(tmp_path / "run", config={}, clock_offset_s=0.0) as store:
            for sample in parts:
                assert store.add_sample(sample)

    asyncio.run(write())
    assert list(RunStore.read(tmp_path / "run").hardware()) == parts


WORK = tuple(
    EngineWork(num_steps=num, num_rows=8 * num, num_held=99, num_prompt=7, seconds=0.5, cpu_s=0.25) for num in (1, 2)
)


def test_what_the_engine_did_is_kept_beside_the_machine_but_not_what_it_did_before(tmp_path: Path) -> None:
    machine = Scripted(SAMPLES)
    told = [(WORK[1],), WORK, (), WORK[:1]]

    async def check() -> None:
        async with RunStore.create(tmp_path / "run", config={}, clock_offset_s=0.0) as store:
            async with sampling(store, 0.001, take_work=lambda: told.pop(0), open_machine=lambda: machine):
                assert await asyncio.to_thread(machine.is_empty.wait, 60)

    asyncio.run(check())
    found = list(RunStore.read(tmp_path / "run").hardware())
    assert [sample.work for sample in found] == [WORK, ()]
    assert [(sample.cpu, sample.gpus) for sample in found] == [(sample.cpu, sample.gpus) for sample in SAMPLES[1:]]


def test_what_the_engine_did_is_kept_where_nothing_else_could_be_measured(tmp_path: Path) -> None:
    sample = HardwareSample(at_s=1.0, seconds=0.5, work=WORK)

    async def write() -> None:
        async with RunStore.create(tmp_path / "run", config={}, clock_offset_s=0.0) as store:
            assert store.add_sample(sample)

    asyncio.run(write())
    assert list(RunStore.read(tmp_path / "run").hardware()) == [sample]


def test_a_closed_store_ends_the_sampling(tmp_path: Path) -> None:
    machine = Scripted(SAMPLES * 100)

    async def check() -> None:
        store = RunStore.create(tmp_path / "run", config={})
        await store.aclose()
        assert not store.add_sample(SAMPLES[0])
        async with sampling(store, 0.001, open_machine=lambda: machine):
            assert await asyncio.to_thread(machine.is_closed.wait, 60)
        assert not machine.is_empty.is_set()

    asyncio.run(check())


def test_whatever_goes_wrong_with_it_the_run_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tried = threading.Event()

    def broken() -> MachineProbe:
        tried.set()
        raise RuntimeError("no machine")

    async def check() -> None:
        async with RunStore.create(tmp_path / "run", config={}) as store, sampling(store, 0.001, open_machine=broken):
            assert await asyncio.to_thread(tried.wait, 60)
            for event in job_events():
                store.append(event)
            await store.flush()
            assert store.counts().rollouts == 1

    with caplog.at_level(logging.WARNING):
        asyncio.run(check())
    assert [record.getMessage() for record in caplog.records] == [
        "stopped sampling the machine: RuntimeError: no machine"
    ]


class Nothing:
    def add_sample(self, sample: HardwareSample) -> bool:
        raise AssertionError("nothing is to be sampled")


def never() -> MachineProbe:
    raise AssertionError("no machine is to be opened")


async def open_and_close(every_s: float) -> int:
    before = threading.active_count()
    async with sampling(Nothing(), every_s, open_machine=never):
        await asyncio.sleep(0)
        return threading.active_count() - before


def test_at_0_seconds_and_on_virtual_time_no_thread_is_started() -> None:
    assert asyncio.run(open_and_close(0.0)) == 0
    assert run_virtual(open_and_close(0.5)) == 0


def test_a_run_from_before_there_were_samples_is_read_without_and_gone_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    async def write(store: RunStore, sample: HardwareSample) -> None:
        async with store:
            store.add_sample(sample)
            store.append(LearnerWorked(step=0, work=LearnerWork.UPDATE, start_s=1.0, end_s=2.0))

    asyncio.run(write(RunStore.create(folder, config={}, clock_offset_s=0.0), SAMPLES[0]))
    with closing(sqlite3.connect(folder / "run.db")) as connection:
        for table in ("cpu_samples", "gpu_samples", "learner_work"):
            connection.execute(f"DROP TABLE {table}")
        connection.commit()
    run = RunStore.read(folder)
    assert (list(run.hardware()), run.learner_work()) == ([], ())
    asyncio.run(write(RunStore.open(folder, clock_offset_s=0.0), SAMPLES[1]))
    assert list(run.hardware()) == [SAMPLES[1]]
    assert [work.end_s for work in run.learner_work()] == [2.0]


def test_a_run_from_before_helpers_and_steps_were_counted_is_read_as_if_there_were_none(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    async def write(store: RunStore, sample: HardwareSample) -> None:
        async with store:
            store.add_sample(sample)

    asyncio.run(write(RunStore.create(folder, config={}, clock_offset_s=0.0), SAMPLES[0]))
    with closing(sqlite3.connect(folder / "run.db")) as connection:
        connection.execute("ALTER TABLE cpu_samples DROP COLUMN helper_cores")
        connection.execute("DROP TABLE engine_work")
        connection.commit()
    run = RunStore.read(folder)
    assert [sample.cpu and sample.cpu.helper_cores for sample in run.hardware()] == [0.0]
    asyncio.run(write(RunStore.open(folder, clock_offset_s=0.0), SAMPLES[1]))
    assert [sample.cpu and sample.cpu.helper_cores for sample in run.hardware()] == [0.0, 0.25]
