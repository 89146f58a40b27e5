"""How many cores this process and its sandboxes can use.

Input: the affinity mask and our control groups. Output: a number, fractional if a quota is. Invariants: it is positive,
and at most what the mask and the tightest quota allow; what cannot be read sets no limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from slipstream.sandbox.metering.cgroup_tree import V2, Hierarchy, Kernel, mounted_trees


def num_cores(
    *, num_in_mask: int | None = None, found: Iterable[Hierarchy] | None = None, kernel: Kernel | None = None
) -> float:
    """The cores available here; tests pass other values."""
    cores = float(_num_in_mask() if num_in_mask is None else num_in_mask)
    kernel = kernel or Kernel()
    for tree in mounted_trees() if found is None else found:
        for folder in _up_from(tree):
            cores = min(cores, _quota(tree, folder, kernel) or cores)
    return cores


def _num_in_mask() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _up_from(tree: Hierarchy) -> Iterator[str]:
    """Our group and its visible parents: the quota of each applies to all groups below it."""
    folder = tree.own
    while folder != tree.mount:
        yield folder
        folder = folder.rpartition("/")[0]
    yield folder


def _quota(tree: Hierarchy, folder: str, kernel: Kernel) -> float | None:
    """A group's quota in cores: `150000 100000` is 1.5 cores; `max 100000` and `-1 100000` mean no quota."""
    names = ("cpu.max",) if tree.kind == V2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    words = [word for name in names for word in kernel.read(f"{folder}/{name}").split()]
    try:
        quota_us, period_us = (int(word) for word in words)
    except ValueError:
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None
