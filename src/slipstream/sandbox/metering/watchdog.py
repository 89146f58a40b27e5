"""The watchdog: holds sandboxes to their limits from outside, where no control groups can be made.

Input: the first process of each sandbox. Output: a meter that looks at all its descendants, many times a second.
Invariants: a process is killed only through a descriptor of it, opened while it was seen to be the sandbox's; over
the memory limit the largest goes first, and all of them if that did not help; the first process, with which all the
others end, goes with all of them and never alone.

What it cannot see: files in memory, which the disk limit bounds; buffers of pipes, which the kernel bounds for a user;
what was swapped out; and processes that came and went between two looks, but for their CPU time, which parents inherit.
Files in memory without a place (memfd, System V) are not to be had where it watches (`seccomp.UNSEEN`). Sockets beyond
the first few count with the most that their buffers may hold.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from dataclasses import dataclass

from slipstream.errors import is_shortage
from slipstream.sandbox.metering.usage import MB, SPARE_PROCESSES, Limit, Usage, UsageMeter

KIND = "watchdog"
INTERVAL_S = 0.05
PATIENCE = 4
"""Looks in a row at which a sandbox may be over its memory limit, each costing it a process, before all are killed."""
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / MB if hasattr(os, "sysconf") else 0.0
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_EXITING = 4
_KILLED = 1 << signal.SIGKILL - 1
FREE_SOCKETS = 64
"""Of a sandbox, which count for nothing: few programs have more."""
_OWN_PAGES = (b"Pss_Anon", b"Pss_Shmem", b"SwapPss")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveProcess:
    """A live process."""

    pid: int
    parent: int
    start: int
    """With the pid, what tells it from any other."""
    own_s: float
    inherited_s: float
    """CPU time of children that were waited for."""
    num_threads: int
    resident_mb: float
    """With what it shares with others, such as libraries."""
    is_dying: bool = False
    """It was killed, and is not gone yet."""


def _file(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 14)
    finally:
        os.close(fd)


def see(pid: int) -> LiveProcess | None:
    """None if it is dead. Raises OSError if the host is only short of something: the living are not to be missed."""
    try:
        fields = _file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError as error:
        if is_shortage(error):
            raise
        return None
    if len(fields) < 29 or fields[0] in (b"Z", b"X"):
        return None
    return LiveProcess(
        pid=pid,
        parent=int(fields[1]),
        start=int(fields[19]),
        own_s=(int(fields[11]) + int(fields[12])) / _TICKS,
        inherited_s=(int(fields[13]) + int(fields[14])) / _TICKS,
        num_threads=int(fields[17]),
        resident_mb=int(fields[21]) * _PAGE_MB,
        is_dying=bool(int(fields[6]) & _EXITING or int(fields[28]) & _KILLED),
    )


def is_well(seen: LiveProcess | None) -> bool:
    """Whether it still lives, and is not about to be dead."""
    now = None if seen is None else see(seen.pid)
    return seen is not None and now is not None and now.start == seen.start and not now.is_dying


def families() -> dict[int, list[LiveProcess]]:
    """Every live process of this machine, by its parent."""
    found: dict[int, list[LiveProcess]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and (seen := see(int(name))):
            found.setdefault(seen.parent, []).append(seen)
    return found


def own_memory_mb(seen: LiveProcess) -> float:
    """What would be free again without it: shared pages count in part. The dearer way to ask."""
    try:
        lines = _file(f"/proc/{seen.pid}/smaps_rollup").splitlines()
    except OSError:
        return seen.resident_mb
    counts = dict(line.split(b":", 1) for line in lines if line.startswith(_OWN_PAGES))
    return sum(int(value.split()[0]) for value in counts.values()) / 1024 if counts else seen.resident_mb


def socket_memory_mb(pid: int) -> float:
    """What the sockets of a network namespace may hold in their buffers. Those of Unix sockets cannot be asked, so that
    each beyond the first few counts as full; TCP can hold more than that, and tells."""
    try:
        used = _file(f"/proc/{pid}/net/sockstat").split(maxsplit=3)[2]
        queued = sum(_queued(f"/proc/{pid}/net/{name}") for name in ("tcp", "tcp6"))
    except (OSError, IndexError):
        return 0.0
    return (max(0, int(used) - FREE_SOCKETS) * _max_buffer_bytes() + queued) / MB


def _queued(path: str) -> int:
    """Bytes that wait in the connections of a table: the fifth column is what is to be sent and what came, in hex."""
    with open(path, "rb") as table:  # noqa: PTH123
        rows = [line.split(maxsplit=5)[4].split(b":") for line in table.readlines()[1:]]
    return sum(int(sent, 16) + int(came, 16) for sent, came in rows)


@functools.cache
def _max_buffer_bytes() -> int:
    """Of one socket: the kernel doubles what is asked for."""
    try:
        return 2 * int(_file("/proc/sys/net/core/wmem_max"))
    except OSError:
        return 2 * 212_992


def kill(seen: LiveProcess) -> None:
    """Kill this process, and not another that has got its number."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(seen.pid)
        try:
            now = see(seen.pid)
            if now is not None and now.start == seen.start:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)


class SandboxCpuTime:
    """CPU time of a sandbox, the dead included: the larger of two counts, each of which can miss some. What the living
    have used and inherited misses children that nobody waited for; what each was last seen with, the short-lived."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], float] = {}
        self._gone_s = 0.0

    def total_s(self, members: list[LiveProcess]) -> float:
        now = {(seen.pid, seen.start): seen.own_s for seen in members}
        self._gone_s += sum(own_s for key, own_s in self._last.items() if key not in now)
        self._last = now
        return max(sum(seen.own_s + seen.inherited_s for seen in members), self._gone_s + sum(now.values()))


class Watchdog:
    kind = KIND
    interval_s = INTERVAL_S

    def __init__(self) -> None:
        self._open: set[WatchMeter] = set()

    def open(self, tally: UsageMeter, num_own: int) -> WatchMeter:
        meter = WatchMeter(self, tally, num_own)
        self._open.add(meter)
        return meter

    def forget(self, meter: WatchMeter) -> None:
        self._open.discard(meter)

    def look(self) -> bool:
        meters = list(self._open)
        if any(meter.is_attached for meter in meters):
            table = families()
            for meter in meters:
                meter.look(table)
        return bool(meters)

    async def aclose(self) -> None:
        for meter in list(self._open):
            await meter.aclose()


class WatchMeter:
    """A Meter."""

    kind = KIND

    def __init__(self, watchdog: Watchdog, tally: UsageMeter, num_own: int) -> None:
        self._watchdog = watchdog
        self._tally = tally
        self._num_full = tally.limits.processes + num_own
        self._first: LiveProcess | None = None
        self._num_over = 0
        self._ended_by: Limit | None = None
        self._times = SandboxCpuTime()
        self._closed = False
        self._looking = threading.Lock()

    @property
    def is_attached(self) -> bool:
        return self._first is not None

    def open_doors(self) -> list[int]:
        return []

    def attach(self, pid: int) -> None:
        self._first = see(pid)
        if self._first is None:
            raise ProcessLookupError(f"process {pid} is gone")

    def look(self, table: dict[int, list[LiveProcess]]) -> None:
        """See what is used, and act on it."""
        with self._looking:
            self._look(table)

    def _look(self, table: dict[int, list[LiveProcess]]) -> None:
        members = self._members(table)
        if not members or self._closed:
            return
        cpu_s = self._times.total_s(members)
        num_processes = sum(seen.num_threads for seen in members)
        limit_mb = self._tally.limits.memory_mb
        sizes = {seen: seen.resident_mb for seen in members}
        if sum(sizes.values()) > limit_mb:
            sizes = {seen: own_memory_mb(seen) for seen in members}
        memory_mb = sum(sizes.values()) + socket_memory_mb(members[0].pid)
        self._tally.see(memory_mb=memory_mb, cpu_s=cpu_s, num_processes=num_processes)
        if num_processes >= self._num_full:
            self._tally.hit(Limit.PROCESSES)
        self._num_over = self._num_over + 1 if memory_mb > limit_mb else 0
        if self._num_over:
            self._tally.hit(Limit.MEMORY)
        ended_by = Limit.PROCESSES if num_processes > self._num_full + SPARE_PROCESSES else None
        if self._num_over > PATIENCE:
            ended_by = Limit.MEMORY
        if cpu_s > self._tally.limits.cpu_s:
            self._tally.hit(Limit.CPU)
            ended_by = Limit.CPU
        if ended_by is not None:
            self._ended_by = ended_by
            for seen in members:
                kill(seen)
        elif self._num_over:
            kill(max(members[1:] or members, key=sizes.__getitem__))

    def _members(self, table: dict[int, list[LiveProcess]]) -> list[LiveProcess]:
        """The first process, as it is now, and all below it. Orphans come to it, since its pids are a namespace."""
        first = see(self._first.pid) if self._first is not None else None
        if self._first is None or first is None or first.start != self._first.start:
            return []
        members, place = [first], 0
        known = {first.pid}
        while place < len(members):
            below = [seen for seen in table.get(members[place].pid, ()) if seen.pid not in known]
            known.update(seen.pid for seen in below)
            members += below
            place += 1
        return members

    def exceeded(self) -> Limit | None:
        return self._tally.gravest()

    def ended_by(self) -> Limit | None:
        is_over = self._num_over > 0 and not is_well(self._first)
        return self._ended_by or (Limit.MEMORY if is_over else None)

    def usage(self) -> Usage:
        if not self._closed:
            self.look(families())
        return self._tally.usage

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watchdog.forget(self)
        self._tally.see(memory_mb=0, cpu_s=0, num_processes=0)
