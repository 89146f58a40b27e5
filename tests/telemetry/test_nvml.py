"""GPUs, read through a fake NVML."""

from __future__ import annotations

import pytest
from fake_machine import FakeNvml

from slipstream.record.hardware import GpuSample
from slipstream.telemetry.nvml import Gpus, visible_gpus


def test_every_gpu_tells_how_busy_it_is_and_what_of_its_memory_is_used() -> None:
    gpus = Gpus.find(FakeNvml(busy=[[35, 90], [0]], used_mb=2_048))
    assert gpus.read() == (GpuSample(gpu=0, percent=35, memory_mb=2_048), GpuSample(gpu=1, percent=0, memory_mb=2_049))
    assert [sample.percent for sample in gpus.read()] == [90, 0]


def test_a_gpu_that_cannot_tell_is_left_out() -> None:
    gpus = Gpus.find(FakeNvml(busy=[[35], [60]], silent={0}))
    assert [sample.gpu for sample in gpus.read()] == [1]


@pytest.mark.parametrize("library", [FakeNvml(can_start=False, busy=[[35]]), FakeNvml()])
def test_without_a_driver_or_a_gpu_there_is_nothing_to_read(library: FakeNvml) -> None:
    gpus = Gpus.find(library)
    assert gpus.read() == ()
    gpus.close()


def test_the_driver_is_let_go_of_once() -> None:
    library = FakeNvml(busy=[[35]])
    gpus = Gpus.find(library)
    assert library.num_open == 1
    gpus.close()
    gpus.close()
    assert library.num_open == 0
    assert gpus.read() == ()


UUIDS = {0: "GPU-8932f937-d72c-4106", 1: "GPU-4a1b", 2: "GPU-4a1c", 5: ""}


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [
        ("0", {0}),
        ("2,0", {0, 2}),
        (" 1 , 5 ", {1, 5}),
        ("1,1", {1}),
        ("GPU-8932f937-d72c-4106", {0}),
        ("GPU-89,GPU-4a1c", {0, 2}),
        ("GPU-4a1b,0", {0, 1}),
        ("", set()),
        ("-1", set()),
        ("NoDevFiles", set()),
        ("0,-1,1", {0}),
        ("0,3,1", {0}),
        ("1,,2", {1}),
        ("0,GPU-4a,1", {0}),
        ("GPU-none", set()),
        ("MIG-4a1b", set()),
        ("MIG-GPU-4a1b/1/0", set()),
        ("²", set()),
    ],
)
def test_the_gpus_of_a_process_are_those_that_cuda_lets_it_see(visible: str, numbers: set[int]) -> None:
    assert set(visible_gpus(visible, UUIDS)) == numbers


def test_gpus_that_the_process_may_not_use_are_not_read_and_the_others_keep_their_number() -> None:
    def read(visible: str | None, uuids: list[str]) -> list[tuple[int, float]]:
        library = FakeNvml(busy=[[10], [20], [30]], uuids=uuids)
        return [(sample.gpu, sample.percent) for sample in Gpus.find(library, visible=visible).read()]

    assert read(None, []) == [(0, 10), (1, 20), (2, 30)]
    assert read("2,1", []) == [(1, 20), (2, 30)]
    assert read("GPU-b", ["GPU-a0", "GPU-b0", "GPU-c0"]) == [(1, 20)]
    assert read("", ["GPU-a0", "GPU-b0", "GPU-c0"]) == []
