"""Processors, read from files of a machine that is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_machine import Clock, put, stat

from slipstream.record.hardware import CpuSample
from slipstream.telemetry.cpus import Cpus, CpuTimes, find_quota

TICKS = os.sysconf("SC_CLK_TCK")


def test_processors_tell_of_the_time_since_they_were_last_asked(tmp_path: Path) -> None:
    own = Clock(now_s=5.0)
    put(tmp_path, {"proc/stat": stat((100, 100), (100, 100))})
    cpus = Cpus(tmp_path, mask={0, 1}, own_s=own)
    assert cpus.read() is None
    put(tmp_path, {"proc/stat": stat((100 + TICKS, 100), (100 + TICKS // 2, 100 + TICKS // 2))})
    own.now_s += 0.25
    assert cpus.read() == CpuSample(percent=75.0, cores=2, own_cores=0.25)


def test_only_the_processors_of_the_mask_count(tmp_path: Path) -> None:
    put(tmp_path, {"proc/stat": stat((0, 1), (0, 1), (0, 1))})
    cpus = Cpus(tmp_path, mask={2})
    cpus.read()
    put(tmp_path, {"proc/stat": stat((TICKS, 1), (TICKS, 1), (TICKS // 4, 1 + 3 * TICKS // 4))})
    found = cpus.read()
    assert found is not None
    assert (found.percent, found.cores) == (25.0, 1)


V2 = {
    "proc/self/cgroup": "0::/pod/run\n",
    "sys/fs/cgroup/cpu.max": "800000 100000\n",
    "sys/fs/cgroup/cpu.stat": "usage_usec 0\n",
    "sys/fs/cgroup/pod/cpu.max": "200000 100000\n",
    "sys/fs/cgroup/pod/cpu.stat": "usage_usec 1000000\nuser_usec 9\n",
    "sys/fs/cgroup/pod/run/cpu.max": "max 100000\n",
    "sys/fs/cgroup/pod/run/cpu.stat": "usage_usec 500000\n",
}
V1 = {
    "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/docker/abc\n0::/\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpuacct/cpuacct.usage": "1000000000\n",
}


@pytest.mark.parametrize(
    ("files", "then"),
    [
        (V2, {"sys/fs/cgroup/pod/cpu.stat": "usage_usec 2500000\n"}),
        (V1, {"sys/fs/cgroup/cpuacct/cpuacct.usage": "2500000000\n"}),
    ],
)
def test_under_a_quota_there_are_as_many_cores_as_it_allows_and_only_what_is_under_it_counts(
    tmp_path: Path, files: dict[str, str], then: dict[str, str]
) -> None:
    clock = Clock()
    put(tmp_path, {**files, "proc/stat": stat(*[(TICKS, TICKS)] * 64)})
    cpus = Cpus(tmp_path, mask=range(64), clock=clock)
    assert cpus.cores == 2.0
    assert cpus.read() is None
    put(tmp_path, then)
    clock.now_s = 1.0
    found = cpus.read()
    assert found is not None
    assert (found.percent, found.cores) == (75.0, 2.0)


UNBOUNDED = {name: "max 100000\n" if name.endswith("cpu.max") else text for name, text in V2.items()}


@pytest.mark.parametrize("files", [{}, UNBOUNDED, {"proc/self/cgroup": "?"}])
def test_without_a_quota_the_mask_decides(tmp_path: Path, files: dict[str, str]) -> None:
    put(tmp_path, files)
    assert find_quota(tmp_path) is None
    assert Cpus(tmp_path, mask={0, 5}).cores == 2


def test_a_quota_above_the_mask_is_none(tmp_path: Path) -> None:
    put(tmp_path, V2)
    assert Cpus(tmp_path, mask={0}).cores == 1


@pytest.mark.parametrize("text", ["", "cpu  1 2\n", "cpu  0\ncpu0 x y\n", "cpu  0\ncpu0 0 0 0 0 0 0 0 0 0 0\n"])
def test_what_cannot_be_read_is_left_out(tmp_path: Path, text: str) -> None:
    put(tmp_path, {"proc/stat": text})
    cpus = Cpus(tmp_path, mask={0})
    assert (cpus.read(), cpus.read()) == (None, None)


def process(*times: int) -> str:
    return f"7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 {' '.join(map(str, times))} 20 0 1 0 50\n"


def test_where_the_kernel_counts_no_processors_the_time_of_all_processes_is_taken(tmp_path: Path) -> None:
    clock = Clock()
    silent = "cpu  0\ncpu0 0 0 0 0 0 0 0 0 0 0\n"
    put(tmp_path, {"proc/stat": silent, "proc/7/stat": process(10, 10, 0, 0), "proc/8/stat": process(TICKS, 0, 0, 0)})
    cpus = Cpus(tmp_path, mask={0, 1}, clock=clock)
    assert cpus.read() is None
    # One ended, and its parent, which waited for it, has its time; the other went on.
    (tmp_path / "proc/8/stat").unlink()
    put(tmp_path, {"proc/7/stat": process(10 + TICKS // 4, 10 + TICKS // 4, TICKS, TICKS // 2)})
    clock.now_s = 1.0
    found = cpus.read()
    assert found is not None and found.percent == pytest.approx(50.0)


def test_the_runs_other_processes_are_told_beside_its_own(tmp_path: Path) -> None:
    own, helpers = Clock(now_s=5.0), Clock(now_s=70.0)
    put(tmp_path, {"proc/stat": stat((0, 1), (0, 1))})
    cpus = Cpus(tmp_path, mask={0, 1}, own_s=own, helpers_s=helpers)
    cpus.read()
    put(tmp_path, {"proc/stat": stat((TICKS, 1), (TICKS, 1))})
    own.now_s, helpers.now_s = 5.5, 70.25
    assert cpus.read() == CpuSample(percent=100.0, cores=2, own_cores=0.5, helper_cores=0.25)


def test_the_time_of_processes_never_falls_while_they_come_and_go() -> None:
    living = {7: 10.0}
    pids = [7]

    def process_s(pid: int) -> float:
        if pid not in living:
            raise ProcessLookupError(pid)
        return living[pid]

    times = CpuTimes(lambda: pids, process_s=process_s)
    assert times() == 10.0
    pids.append(8)
    living.update({7: 11.0, 8: 2.0, 9: 50.0})
    assert times() == 13.0, "all that the new one did is new, and the third is not the run's"
    del living[7]
    assert times() == 13.0
    living[8] = 1.0
    assert times() == 14.0, "the number was given to another process"
