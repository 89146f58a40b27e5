"""The watchdog: enforces the limits of sandboxes from outside, where no control groups can be created.

Input: process 1 of each sandbox. Output: a meter that polls all its descendants, many times a second. Invariants: a
process is killed only through a pidfd, opened while it was known to belong to the sandbox; above the memory limit the
largest process is killed first, and all of them if that did not help; process 1, with which all others end, is only
killed together with them.

It cannot see files in memory, which the disk limit bounds; pipe buffers, which the kernel bounds per user; swapped-out
memory; and processes that start and end between two polls, except for their CPU time, which parents inherit. Anonymous
memory files (memfd, System V) are refused where it is used (`seccomp.UNCOUNTED_MEMORY_CALLS`). Sockets beyond the first
few count as if their buffers were full.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from dataclasses import dataclass

from slipstream.errors import is_shortage
from slipstream.sandbox.metering.usage import MB, OWN_PROCESSES, SPARE_PROCESSES, Limit, Usage, UsageMeter

KIND = "watchdog"
INTERVAL_S = 0.05
PATIENCE = 4
"""Consecutive polls above the memory limit, each costing a process, before all are killed."""
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / MB if hasattr(os, "sysconf") else 0.0
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_EXITING = 4
_KILLED = 1 << signal.SIGKILL - 1
FREE_SOCKETS = 64
"""Per sandbox, not counted: few programs have more."""
_OWN_PAGES = (b"Pss_Anon", b"Pss_Shmem", b"SwapPss")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveProcess:
    """A live process."""

    pid: int
    parent: int
    start: int
    """The start time, which together with the pid identifies it."""
    own_s: float
    inherited_s: float
    """CPU time of reaped children."""
    num_threads: int
    resident_mb: float
    """Including shared memory, such as libraries."""
    is_dying: bool = False
    """It was killed, but is not gone yet."""


def _file(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 14)
    finally:
        os.close(fd)


def read_process(pid: int) -> LiveProcess | None:
    """A live process; None if it is dead. Raises OSError if the host is short of resources, so that no live process is
    missed."""
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


def is_still_running(process: LiveProcess | None) -> bool:
    """Whether it is alive and not about to die."""
    now = None if process is None else read_process(process.pid)
    return process is not None and now is not None and now.start == process.start and not now.is_dying


def processes_by_parent() -> dict[int, list[LiveProcess]]:
    """All live processes of this machine, by parent pid."""
    found: dict[int, list[LiveProcess]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and (process := read_process(int(name))):
            found.setdefault(process.parent, []).append(process)
    return found


def own_memory_mb(process: LiveProcess) -> float:
    """The memory that its end would free: shared pages count in part. The more expensive measurement."""
    try:
        lines = _file(f"/proc/{process.pid}/smaps_rollup").splitlines()
    except OSError:
        return process.resident_mb
    counts = dict(line.split(b":", 1) for line in lines if line.startswith(_OWN_PAGES))
    return sum(int(value.split()[0]) for value in counts.values()) / 1024 if counts else process.resident_mb


def socket_memory_mb(pid: int) -> float:
    """An upper bound of the socket buffers in a network namespace. Unix sockets do not report theirs, so each beyond
    the first few counts as full; TCP can hold more, and reports it."""
    try:
        used = _file(f"/proc/{pid}/net/sockstat").split(maxsplit=3)[2]
        queued = sum(_queued(f"/proc/{pid}/net/{name}") for name in ("tcp", "tcp6"))
    except (OSError, IndexError):
        return 0.0
    return (max(0, int(used) - FREE_SOCKETS) * _max_buffer_bytes() + queued) / MB


def _queued(path: str) -> int:
    """The queued bytes in a connection table: the fifth column is `send:receive`, in hex."""
    with open(path, "rb") as table:  # noqa: PTH123
        rows = [line.split(maxsplit=5)[4].split(b":") for line in table.readlines()[1:]]
    return sum(int(sent, 16) + int(came, 16) for sent, came in rows)


@functools.cache
def _max_buffer_bytes() -> int:
    """Per socket: the kernel doubles the requested size."""
    try:
        return 2 * int(_file("/proc/sys/net/core/wmem_max"))
    except OSError:
        return 2 * 212_992


def kill(process: LiveProcess) -> None:
    """Kill this process, and not another one that reuses its pid."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(process.pid)
        try:
            now = read_process(process.pid)
            if now is not None and now.start == process.start:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)


class SandboxCpuTime:
    """CPU time of a sandbox, dead processes included: the larger of two counts, each of which can miss some. The time
    of live processes and what they inherited misses children that were not reaped; the last seen time of each process
    misses short-lived ones."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], float] = {}
        self._gone_s = 0.0

    def total_s(self, members: list[LiveProcess]) -> float:
        now = {(process.pid, process.start): process.own_s for process in members}
        self._gone_s += sum(own_s for key, own_s in self._last.items() if key not in now)
        self._last = now
        return max(sum(process.own_s + process.inherited_s for process in members), self._gone_s + sum(now.values()))


class Watchdog:
    kind = KIND
    interval_s = INTERVAL_S

    def __init__(self) -> None:
        self._open: set[WatchMeter] = set()

    def open(self, usage_meter: UsageMeter) -> WatchMeter:
        meter = WatchMeter(self, usage_meter)
        self._open.add(meter)
        return meter

    def forget(self, meter: WatchMeter) -> None:
        self._open.discard(meter)

    def look(self) -> bool:
        meters = list(self._open)
        if any(meter.is_attached for meter in meters):
            table = processes_by_parent()
            for meter in meters:
                meter.look(table)
        return bool(meters)

    async def aclose(self) -> None:
        for meter in list(self._open):
            await meter.aclose()


class WatchMeter:
    """A Meter."""

    kind = KIND

    def __init__(self, watchdog: Watchdog, usage_meter: UsageMeter) -> None:
        self._watchdog = watchdog
        self._usage_meter = usage_meter
        self._num_full = usage_meter.limits.processes + OWN_PROCESSES
        self._first: LiveProcess | None = None
        self._num_over = 0
        self._ended_by: Limit | None = None
        self._times = SandboxCpuTime()
        self._closed = False
        self._looking = threading.Lock()

    @property
    def is_attached(self) -> bool:
        return self._first is not None

    def open_join_fds(self) -> list[int]:
        return []

    def attach(self, pid: int) -> None:
        self._first = read_process(pid)
        if self._first is None:
            raise ProcessLookupError(f"process {pid} is gone")

    def look(self, table: dict[int, list[LiveProcess]]) -> None:
        """Update the usage, and enforce the limits."""
        with self._looking:
            self._look(table)

    def _look(self, table: dict[int, list[LiveProcess]]) -> None:
        members = self._members(table)
        if not members or self._closed:
            return
        cpu_s = self._times.total_s(members)
        num_processes = sum(process.num_threads for process in members)
        limit_mb = self._usage_meter.limits.memory_mb
        sizes = {process: process.resident_mb for process in members}
        if sum(sizes.values()) > limit_mb:
            sizes = {process: own_memory_mb(process) for process in members}
        memory_mb = sum(sizes.values()) + socket_memory_mb(members[0].pid)
        self._usage_meter.record(memory_mb=memory_mb, cpu_s=cpu_s, num_processes=num_processes)
        if num_processes >= self._num_full:
            self._usage_meter.hit(Limit.PROCESSES)
        self._num_over = self._num_over + 1 if memory_mb > limit_mb else 0
        if self._num_over:
            self._usage_meter.hit(Limit.MEMORY)
        ended_by = Limit.PROCESSES if num_processes > self._num_full + SPARE_PROCESSES else None
        if self._num_over > PATIENCE:
            ended_by = Limit.MEMORY
        if cpu_s > self._usage_meter.limits.cpu_s:
            self._usage_meter.hit(Limit.CPU)
            ended_by = Limit.CPU
        if ended_by is not None:
            self._ended_by = ended_by
            for process in members:
                kill(process)
        elif self._num_over:
            kill(max(members[1:] or members, key=sizes.__getitem__))

    def _members(self, table: dict[int, list[LiveProcess]]) -> list[LiveProcess]:
        """Process 1 in its current state, and all its descendants. It adopts orphans, since it has its own pid
        namespace."""
        first = read_process(self._first.pid) if self._first is not None else None
        if self._first is None or first is None or first.start != self._first.start:
            return []
        members, place = [first], 0
        known = {first.pid}
        while place < len(members):
            below = [process for process in table.get(members[place].pid, ()) if process.pid not in known]
            known.update(process.pid for process in below)
            members += below
            place += 1
        return members

    def exceeded(self) -> Limit | None:
        return self._usage_meter.most_severe()

    def ended_by(self) -> Limit | None:
        is_over = self._num_over > 0 and not is_still_running(self._first)
        return self._ended_by or (Limit.MEMORY if is_over else None)

    def usage(self) -> Usage:
        if not self._closed:
            self.look(processes_by_parent())
        return self._usage_meter.usage

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watchdog.forget(self)
        self._usage_meter.record(memory_mb=0, cpu_s=0, num_processes=0)
