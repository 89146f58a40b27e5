"""Control groups, version 1 and 2: one group `slipstream/<lease>/<n>` per sandbox, below the group we run in.

Input: the limits of a UsageMeter. Output: a meter whose limits the kernel enforces. CPU time is counted and limited in
total; it is not rationed: programs in sandboxes compete with ours like any other. Invariants: groups are created below
our own, so that limits on us apply to our sandboxes too; only groups of this lease are touched. In version 2 a group
that delegates controllers may have no processes: if this process is the only one there, it moves into a child group
`slipstream-run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from slipstream.sandbox.metering.cgroup_tree import (
    PROCS,
    TOP,
    V1,
    V2,
    Hierarchy,
    Kernel,
    kill_all,
    mounted_trees_or_raise,
    remove_all,
    remove_some,
    waits,
)
from slipstream.sandbox.metering.usage import MB, OWN_PROCESSES, SPARE_PROCESSES, Limit, Usage, UsageMeter
from slipstream.sandbox.metering.watchdog import LiveProcess, is_still_running, read_process
from slipstream.types import SandboxLimits

logger = logging.getLogger(__name__)

KINDS = (V2, V1)
RUN = "slipstream-run"
INTERVAL_S = 0.25
"""The kernel limits memory and processes by itself: this is for CPU time, and for notifications."""
NEARLY = 0.98
"""A peak of this share of the limit counts as having reached it."""
TRIES = 10
SHARES = 32 * 1024


# ---------------------------------------------------------------- file names of the two versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """A group's files and their meaning; each except `join_file` belongs to the controller before its first dot."""

    needed: tuple[str, ...]
    memory_limits: tuple[str, ...]
    """The first is required; the others are set if they exist."""
    memory_peak: tuple[str, ...]
    """The first that exists."""
    kills: Callable[[Callable[[str, str], str], int], int]
    """The number of OOM kills, if the group itself ever reached its limit (given in bytes)."""
    cpu_time: Callable[[Callable[[str, str], str]], float]
    """In seconds; given a function that reads a controller's file."""
    join_file: str
    """A process that writes `0` here joins."""


NAMES: Mapping[str, Names] = {
    V1: Names(
        needed=("memory", "pids", "cpuacct"),
        memory_limits=("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        memory_peak=("memory.max_usage_in_bytes",),
        kills=lambda read, limit: (
            _field(read("memory", "memory.oom_control"), "oom_kill")
            if _number(read("memory", "memory.max_usage_in_bytes")) >= NEARLY * limit
            else 0
        ),
        cpu_time=lambda read: _number(read("cpuacct", "cpuacct.usage")) / 1e9,
        join_file="tasks",
    ),
    V2: Names(
        needed=("memory", "pids"),
        memory_limits=("memory.max", "memory.swap.max"),
        memory_peak=("memory.peak", "memory.current"),
        kills=lambda read, _: (
            _field(read("memory", "memory.events"), "oom_kill") if _field(read("memory", "memory.events"), "oom") else 0
        ),
        cpu_time=lambda read: _field(read("memory", "cpu.stat"), "usage_usec") / 1e6,
        join_file=PROCS,
    ),
}


def _number(text: str) -> int:
    text = text.strip()
    return int(text) if text.isdigit() else 0


def _field(text: str, name: str) -> int:
    """A number from `name number` lines."""
    return next((_number(line[len(name) :]) for line in text.splitlines() if line.startswith(name + " ")), 0)


# ---------------------------------------------------------------- all groups of a lease


class Groups:
    """Creates groups of one kind. Raises OSError, with the reason, if a test shows that this does not work here."""

    interval_s = INTERVAL_S

    def __init__(
        self, lease: str, kind: str, *, kernel: Kernel | None = None, found: Iterable[Hierarchy] | None = None
    ) -> None:
        self.kind = kind
        self.names = NAMES[kind]
        self.kernel = kernel or Kernel()
        self._open: set[GroupMeter] = set()
        self._numbers = itertools.count(1)
        trees = [tree for tree in (mounted_trees_or_raise() if found is None else found) if tree.kind == kind]
        if not trees:
            raise OSError(errno.ENOENT, "not mounted here")
        self._folders = self._prepare_v2(trees[0], lease) if kind == V2 else self._prepare_v1(trees, lease)
        try:
            self._self_test()
        except BaseException:
            self._remove_own()
            raise

    def _prepare_v1(self, trees: list[Hierarchy], lease: str) -> dict[str, str]:
        """Create the lease's folders; returns them by controller."""
        by_name = {name: tree for tree in trees for name in tree.controllers}
        if missing := [name for name in self.names.needed if name not in by_name]:
            raise OSError(errno.ENOENT, f"missing controllers: {', '.join(missing)}")
        folders = {name: f"{by_name[name].own}/{TOP}/{lease}" for name in self.names.needed}
        for folder in folders.values():
            self._ensure_lease_group(folder, [])
        if "cpu" in by_name["cpuacct"].controllers:
            self._raise_cpu_shares(folders["cpuacct"])
        return folders

    def _raise_cpu_shares(self, folder: str) -> None:
        """Where CPU time can only be counted together with CPU shares, all sandboxes together would get the share of
        one process; this gives them the share of many."""
        for place in (folder.rpartition("/")[0], folder):
            with contextlib.suppress(OSError):
                self.kernel.write(f"{place}/cpu.shares", str(SHARES))

    def _prepare_v2(self, tree: Hierarchy, lease: str) -> dict[str, str]:
        own = tree.own.removesuffix(f"/{RUN}")
        there = self.kernel.read_or_raise(f"{own}/cgroup.controllers").split()
        if missing := [name for name in self.names.needed if name not in there]:
            raise OSError(
                errno.ENOENT,
                f"the controllers {', '.join(missing)} are not delegated to us: start with "
                "`systemd-run --user --scope -p Delegate=yes`",
            )
        used = list(self.names.needed)
        self._enable_controllers(own, used)
        self._ensure_lease_group(f"{own}/{TOP}/{lease}", used)
        return dict.fromkeys(used, f"{own}/{TOP}/{lease}")

    def _enable_controllers(self, folder: str, controllers: list[str]) -> None:
        path = f"{folder}/cgroup.subtree_control"
        if set(controllers) <= set(self.kernel.read_or_raise(path).split()):
            return
        if self.kernel.read_or_raise(f"{folder}/{PROCS}").split() == [str(os.getpid())]:
            self._ensure_group(f"{folder}/{RUN}")
            self.kernel.write(f"{folder}/{RUN}/{PROCS}", str(os.getpid()))
        try:
            self.kernel.write(path, " ".join(f"+{name}" for name in controllers))
        except OSError as error:
            reason = "other processes are in our group" if error.errno == errno.EBUSY else str(error.strerror)
            raise OSError(error.errno, f"{reason}: start with `systemd-run --user --scope -p Delegate=yes`") from error

    def _ensure_lease_group(self, folder: str, controllers: list[str]) -> None:
        """Create the folder of a lease and its parent, which another run may remove whenever it is empty."""
        for last in (False,) * TRIES + (True,):
            try:
                for place in (folder.rpartition("/")[0], folder):
                    self._ensure_group(place)
                    self._enable_controllers(place, controllers)
                return
            except FileNotFoundError:
                if last:
                    raise

    def _ensure_group(self, folder: str) -> None:
        with contextlib.suppress(FileExistsError):
            self.kernel.make(folder)

    def _self_test(self) -> None:
        """Test that a process can be put into a group."""
        meter = self.open(UsageMeter(limits=SandboxLimits()))
        try:
            with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
                meter.attach(process.pid)
                is_in = meter.holds(process.pid)
            if not is_in:
                raise OSError(errno.EPERM, "a process did not stay in the group it was put into")
        finally:
            remove_all(meter.folders, self.kernel)
            self._open.discard(meter)

    def open(self, usage_meter: UsageMeter) -> GroupMeter:
        number = next(self._numbers)
        meter = GroupMeter(self, {name: f"{folder}/{number}" for name, folder in self._folders.items()}, usage_meter)
        self._open.add(meter)
        return meter

    def forget(self, meter: GroupMeter) -> None:
        self._open.discard(meter)

    def look(self) -> bool:
        meters = list(self._open)
        for meter in meters:
            meter.look()
            meter.note_survivors()
        return bool(meters)

    async def aclose(self) -> None:
        for meter in list(self._open):
            await meter.aclose()
        self._remove_own()

    def _remove_own(self) -> None:
        for folder in dict.fromkeys(self._folders.values()):
            with contextlib.suppress(OSError):
                self.kernel.remove(folder)
                self.kernel.remove(folder.rpartition("/")[0])  # fails while other leases have groups there


class GroupMeter:
    """A Meter backed by a cgroup."""

    def __init__(self, groups: Groups, by_controller: Mapping[str, str], usage_meter: UsageMeter) -> None:
        self.kind = groups.kind
        self._groups = groups
        self._kernel = groups.kernel
        self._names = groups.names
        self._by_controller = by_controller
        self.folders = tuple(dict.fromkeys(by_controller.values()))
        self._usage_meter = usage_meter
        self._num_full = usage_meter.limits.processes + OWN_PROCESSES
        self._first: LiveProcess | None = None
        self._num_killed = 0
        """OOM kills so far."""
        self._num_killed_before = 0
        """At the previous update: a killed process takes a moment to die."""
        self._num_outlived = 0
        """After this many OOM kills, process 1 was seen running."""
        self._closed = False
        made: list[str] = []
        try:
            for folder in self.folders:
                self._kernel.make(folder)
                made.append(folder)
            self._limit(usage_meter.limits.memory_mb * MB)
        except BaseException:
            for folder in made:
                self._kernel.remove(folder)
            raise

    def _limit(self, memory_bytes: int) -> None:
        names, folders = self._names, self._by_controller
        needed, *others = names.memory_limits
        self._kernel.write(f"{folders['memory']}/{needed}", str(memory_bytes))
        for name in others:
            with contextlib.suppress(FileNotFoundError, PermissionError):  # not counted, or there is no swap
                value = "0" if "swap" in name else str(memory_bytes)
                self._kernel.write(f"{folders['memory']}/{name}", value)
        self._kernel.write(f"{folders['pids']}/pids.max", str(self._num_full + SPARE_PROCESSES))

    def _read(self, controller: str, name: str) -> str:
        return self._kernel.read(f"{self._by_controller[controller]}/{name}")

    def open_join_fds(self) -> list[int]:
        fds: list[int] = []
        try:
            for folder in self.folders:
                fds.append(os.open(f"{folder}/{self._names.join_file}", os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        return fds

    def holds(self, pid: int) -> bool:
        return all(str(pid) in self._kernel.read(f"{folder}/{PROCS}").split() for folder in self.folders)

    def attach(self, pid: int) -> None:
        if not self.holds(pid):
            for folder in self.folders:
                self._kernel.write(f"{folder}/{PROCS}", str(pid))
        self._first = read_process(pid)

    def look(self) -> None:
        """Update the usage, and enforce the limits."""
        if self._closed:
            return
        peak = next(filter(None, (self._read("memory", name) for name in self._names.memory_peak)), "")
        cpu_s = self._names.cpu_time(self._read)
        num_processes = _number(self._read("pids", "pids.current"))
        most = max(num_processes, _number(self._read("pids", "pids.peak")))
        self._usage_meter.record(memory_mb=_number(peak) / MB, cpu_s=cpu_s, num_processes=num_processes)
        self._num_killed = max(self._num_killed, self._names.kills(self._read, self._usage_meter.limits.memory_mb * MB))
        if self._num_killed:
            self._usage_meter.hit(Limit.MEMORY)
        if most >= self._num_full or _field(self._read("pids", "pids.events"), "max"):
            self._usage_meter.hit(Limit.PROCESSES)
        if cpu_s > self._usage_meter.limits.cpu_s:
            self._usage_meter.hit(Limit.CPU)
            kill_all(self.folders[0], self._kernel)

    def note_survivors(self) -> None:
        """OOM kills that process 1 survived will not explain a later end of the sandbox."""
        if self._num_killed > self._num_outlived and is_still_running(self._first):
            self._num_outlived = self._num_killed_before
        self._num_killed_before = self._num_killed

    def exceeded(self) -> Limit | None:
        self.look()
        return self._usage_meter.most_severe()

    def ended_by(self) -> Limit | None:
        self.look()
        if self._usage_meter.most_severe() is Limit.CPU:
            return Limit.CPU
        return Limit.MEMORY if self._num_killed > self._num_outlived and not is_still_running(self._first) else None

    def usage(self) -> Usage:
        self.look()
        return self._usage_meter.usage

    async def aclose(self) -> None:
        if self._closed:
            return
        self.look()
        self._usage_meter.record(memory_mb=0, cpu_s=0, num_processes=0)
        self._closed = True
        for wait_s in waits():
            if not remove_some(self.folders, self._kernel):
                self._groups.forget(self)
                return
            kill_all(self.folders[0], self._kernel, rounds=1)
            await asyncio.sleep(wait_s)
        self._groups.forget(self)
        logger.warning(
            "the groups of a closed sandbox could not be removed, since a process in them does not die: %s",
            self.folders,
        )
