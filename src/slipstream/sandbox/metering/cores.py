"""How many cores this process, and the sandboxes that it starts, can keep busy.

Input: the affinity mask, and the control groups that we are in. Output: a number, with a fraction where a quota has
one. Invariants: it is above 0, and never more than the mask or the tightest quota allows; what cannot be read binds
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from slipstream.sandbox.metering.cgroup_tree import V2, Hierarchy, Kernel, here


def num_cores(
    *, num_in_mask: int | None = None, found: Iterable[Hierarchy] | None = None, kernel: Kernel | None = None
) -> float:
    """Those of this machine, unless a test gives others."""
    cores = float(_num_in_mask() if num_in_mask is None else num_in_mask)
    kernel = kernel or Kernel()
    for tree in here() if found is None else found:
        for folder in _up_from(tree):
            cores = min(cores, _quota(tree, folder, kernel) or cores)
    return cores


def _num_in_mask() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _up_from(tree: Hierarchy) -> Iterator[str]:
    """The group that we are in and those around it, as far as they are shown here: each binds all below it."""
    folder = tree.own
    while folder != tree.mount:
        yield folder
        folder = folder.rpartition("/")[0]
    yield folder


def _quota(tree: Hierarchy, folder: str, kernel: Kernel) -> float | None:
    """Of one group, in cores: `150000 100000` is a core and a half; `max 100000` and `-1 100000` are no quota."""
    names = ("cpu.max",) if tree.kind == V2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    words = [word for name in names for word in kernel.read(f"{folder}/{name}").split()]
    try:
        quota_us, period_us = (int(word) for word in words)
    except ValueError:
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None
