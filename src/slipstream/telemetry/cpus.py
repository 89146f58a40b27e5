"""The host's CPU: how many cores this process may use, and how busy they were since the last call.

Input: /proc and the cgroups, below a root folder that tests may choose. Output: a CpuSample per period. Invariants:
only the cores of the affinity mask count. Where the cgroup has a smaller quota, the number of cores is that quota and
usage is the cgroup's, since on a shared host /proc/stat includes other tenants. A kernel whose /proc/stat is empty
(gVisor) is asked for the time of every process. What cannot be read is left out.

The run's own usage is the CPU time of its main process and of the processes it started over a link. Those are known by
pid, since sandboxes descend from the same processes. The time of children that were waited for is in neither.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slipstream.link import linked_pids
from slipstream.record.hardware import CpuSample

_IDLE, _IO_WAIT, _NUM_TIMES = 3, 4, 8
"""Places in a line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. Guests are in user already."""
_PROCESS_TIMES = (11, 12, 13, 14)
"""Places after the name in /proc/PID/stat: user and system time, then those of children that were waited for."""
_PROCESS_CLOCK = 2
"""The lowest bits of the number of the clock that Linux has for each process; above them is the process, inverted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How much CPU a cgroup may use."""

    cores: float
    usage: Path
    """The file with what it has used,"""
    field: str
    """under this name; empty if the file holds just the number."""
    per_s: float
    """Units per second in that file."""


def process_s(pid: int) -> float:
    """CPU seconds of a process so far, over all its threads, without its children. OSError if it is gone, or if the
    kernel has no such clock."""
    return time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)


class CpuTimes:
    """CPU seconds so far of processes that come and go, without their children: `CpuTimes(linked_pids)()`.

    The total never falls. What a process did between the last call and its end is lost.
    """

    def __init__(self, pids: Callable[[], Iterable[int]], *, process_s: Callable[[int], float] = process_s) -> None:
        self._pids, self._process_s = pids, process_s
        self._total_s = 0.0
        self._last_s: dict[int, float] = {}

    def __call__(self) -> float:
        found: dict[int, float] = {}
        for pid in self._pids():
            with suppress(OSError):
                found[pid] = self._process_s(pid)
        for pid, now_s in found.items():
            last_s = self._last_s.get(pid, 0.0)
            self._total_s += now_s - last_s if now_s >= last_s else now_s  # else the pid was reused
        self._last_s = found
        return self._total_s


class Cpus:
    """`Cpus().read()` covers the time since the last call, so the first returns None."""

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        mask: Collection[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
        own_s: Callable[[], float] = time.process_time,
        helpers_s: Callable[[], float] | None = None,
    ) -> None:
        """`own_s` and `helpers_s`: CPU seconds so far of this process, and of the run's others."""
        self._proc = root / "proc"
        self._mask = frozenset(_affinity() if mask is None else mask)
        self._quota = find_quota(root)
        if self._quota is not None and self._quota.cores >= len(self._mask):
            self._quota = None
        self.cores = float(len(self._mask)) if self._quota is None else self._quota.cores
        self._clock, self._own_s = clock, own_s
        self._helpers_s = CpuTimes(linked_pids) if helpers_s is None else helpers_s
        self._sums_processes = self._quota is None and self._from_stat() is None
        self._last: tuple[float, float, float, float] | None = None

    def read(self) -> CpuSample | None:
        """How busy the cores were since the last call; None if that is not known."""
        counted = self._counted()
        if counted is None:
            return None
        busy_s, passed_s = counted
        own_s, helpers_s = self._own_s(), self._helpers_s()
        last, self._last = self._last, (busy_s, passed_s, own_s, helpers_s)
        if last is None or passed_s <= last[1]:
            return None
        seconds = passed_s - last[1]
        return CpuSample(
            percent=min(100.0, max(0.0, 100 * (busy_s - last[0]) / (seconds * self.cores))),
            cores=self.cores,
            own_cores=max(0.0, own_s - last[2]) / seconds,
            helper_cores=max(0.0, helpers_s - last[3]) / seconds,
        )

    def _counted(self) -> tuple[float, float] | None:
        """Busy seconds so far, summed over the cores, and seconds passed."""
        if self._quota is None and not self._sums_processes:
            return self._from_stat()
        now_s = self._clock()
        used_s = _of_processes(self._proc) if self._quota is None else _of_cgroup(self._quota)
        return None if used_s is None else (used_s, now_s)

    def _from_stat(self) -> tuple[float, float] | None:
        try:
            return _of_stat((self._proc / "stat").read_bytes(), self._mask)
        except (OSError, ValueError, IndexError):
            return None


def _affinity() -> Collection[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _of_stat(text: bytes, mask: frozenset[int]) -> tuple[float, float] | None:
    """Over the cores of the mask: busy seconds of all together, and seconds passed for one."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    busy = total = 0
    for line in text.splitlines()[1:]:
        if not line.startswith(b"cpu"):
            break
        name, *fields = line.split()
        if int(name[3:]) in mask:
            times = [int(field) for field in fields[:_NUM_TIMES]]
            total += sum(times)
            busy += sum(times) - times[_IDLE] - times[_IO_WAIT]
    return (busy / ticks_per_s, total / ticks_per_s / len(mask)) if total else None


def _of_processes(proc: Path) -> float | None:
    """Busy seconds of all living processes, and of their children that ended and were waited for."""
    ticks: int | None = None
    try:
        names = [entry.name for entry in os.scandir(proc) if entry.name.isdecimal()]
    except OSError:
        return None
    for name in names:
        try:
            after_name = (proc / name / "stat").read_bytes().rpartition(b")")[2].split()
            ticks = (ticks or 0) + sum(int(after_name[place]) for place in _PROCESS_TIMES)
        except (OSError, ValueError, IndexError):  # it is gone
            continue
    return None if ticks is None else ticks / os.sysconf("SC_CLK_TCK")


def _of_cgroup(quota: Quota) -> float | None:
    try:
        text = quota.usage.read_text()
        if quota.field:
            text = dict(line.split() for line in text.splitlines())[quota.field]
        return int(text) / quota.per_s
    except (OSError, ValueError, KeyError):
        return None


def find_quota(root: Path) -> Quota | None:
    """The tightest quota of the process's cgroup and its ancestors that also reports usage."""
    found = [quota for quota in _quotas(root) if quota.usage.is_file()]
    return min(found, key=lambda quota: quota.cores, default=None)


def _quotas(root: Path) -> Iterator[Quota]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mounted = root / "sys/fs/cgroup"
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, inside = rest.partition(":")
        if not controllers:
            for folder in _up_from(mounted, inside):
                if (cores := _cores(_words(folder / "cpu.max"))) is not None:
                    yield Quota(cores=cores, usage=folder / "cpu.stat", field="usage_usec", per_s=1e6)
        elif "cpu" in controllers.split(","):
            for folder in _up_from(mounted / "cpu", inside):
                quota = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
                if (cores := _cores(quota)) is not None:
                    usage = mounted / "cpuacct" / folder.relative_to(mounted / "cpu") / "cpuacct.usage"
                    yield Quota(cores=cores, usage=usage, field="", per_s=1e9)


def _up_from(mounted: Path, inside: str) -> Iterator[Path]:
    """A cgroup's folder and its ancestors. In a container the path may be the host's: then only the top exists."""
    folder = mounted / inside.lstrip("/")
    while folder != mounted:
        yield folder
        folder = folder.parent
    yield mounted


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _cores(words: list[str]) -> float | None:
    """`150000 100000` is one and a half cores; `max 100000` and `-1 100000` mean no quota."""
    try:
        quota_us, period_us = (int(word) for word in words)
    except ValueError:
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None
