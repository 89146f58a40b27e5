"""How many cores there are for sandboxes: the mask, and quotas of both versions of control groups."""

from __future__ import annotations

import os
import sys

import pytest

from slipstream.sandbox.local.provider import max_concurrent_starts
from slipstream.sandbox.metering.cgroup_tree import Hierarchy, Kernel, hierarchies
from slipstream.sandbox.metering.cores import num_cores

TOP = "/sys/fs/cgroup"


class Written(Kernel):
    """A kernel whose files are these."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def read(self, path: str) -> str:
        return self._files.get(path, "")


def version_2(path: str, root: str = "/") -> list[Hierarchy]:
    return hierarchies(f"30 20 0:26 {root} {TOP} rw - cgroup2 cgroup2 rw\n", f"0::{path}\n")


def version_1(path: str) -> list[Hierarchy]:
    mounts = [
        f"31 20 0:27 / {TOP}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n",
        f"32 20 0:28 / {TOP}/memory rw - cgroup cgroup rw,memory\n",
    ]
    return hierarchies("".join(mounts), f"4:memory:/elsewhere\n2:cpu,cpuacct:{path}\n")


def cores(found: list[Hierarchy], files: dict[str, str], num_in_mask: int = 16) -> float:
    return num_cores(num_in_mask=num_in_mask, found=found, kernel=Written(files))


def test_without_a_quota_there_are_those_of_the_mask() -> None:
    assert cores([], {}) == 16
    assert cores(version_2("/"), {}) == 16
    assert cores(version_2("/pod"), {f"{TOP}/pod/cpu.max": "max 100000\n"}) == 16
    quiet = {f"{TOP}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n", f"{TOP}/cpu,cpuacct/cpu.cfs_period_us": "100000\n"}
    assert cores(version_1("/"), quiet) == 16


def test_the_tightest_quota_of_our_group_and_those_around_it_holds() -> None:
    files = {
        f"{TOP}/cpu.max": "800000 100000\n",
        f"{TOP}/pod/cpu.max": "150000 100000\n",
        f"{TOP}/pod/run/cpu.max": "max 100000\n",
        f"{TOP}/pod/other/cpu.max": "10000 100000\n",
    }
    assert cores(version_2("/pod/run"), files) == 1.5
    assert cores(version_2("/"), files) == 8
    assert cores(version_2("/"), files, num_in_mask=2) == 2, "a quota above the mask gives no more cores"


def test_a_group_of_version_1_has_its_quota_in_the_tree_of_the_processors() -> None:
    files = {
        f"{TOP}/cpu,cpuacct/box/cpu.cfs_quota_us": "250000\n",
        f"{TOP}/cpu,cpuacct/box/cpu.cfs_period_us": "50000\n",
    }
    assert cores(version_1("/box/run"), files) == 5


def test_where_a_part_of_the_tree_is_mounted_its_top_is_ours() -> None:
    files = {f"{TOP}/cpu.max": "300000 100000\n"}
    assert cores(version_2("/host/pod", root="/host/pod"), files) == 3
    assert cores(version_2("/../../other"), files) == 3, "our group is outside of what is shown"


@pytest.mark.parametrize("text", ["", "\n", "150000\n", "a b\n", "0 100000\n", "150000 0\n", "1 2 3\n"])
def test_what_cannot_be_read_binds_nothing(text: str) -> None:
    assert cores(version_2("/"), {f"{TOP}/cpu.max": text}) == 16


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="others have no mask")
def test_of_this_machine_there_are_no_more_than_the_mask_has() -> None:
    assert 0 < num_cores() <= len(os.sched_getaffinity(0))


def test_two_start_at_once_for_each_core_and_two_at_least() -> None:
    assert max_concurrent_starts(16, sharers=1) == 32
    assert max_concurrent_starts(16, sharers=3) == 10
    assert max_concurrent_starts(1.5, sharers=1) == 3
    assert max_concurrent_starts(0.25, sharers=1) == max_concurrent_starts(2, sharers=9) == 2
