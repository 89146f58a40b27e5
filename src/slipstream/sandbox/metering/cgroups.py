"""Control groups, version 1 and 2: one group `slipstream/<lease>/<n>` for each sandbox, below the group we run in.

Input: what a Tally is to be held to. Output: a meter whose limits the kernel holds.
CPU time is counted and limited, not shared out: programs in sandboxes run beside ours as any other.
Invariants: groups are made below our own, so that limits put on us bind our sandboxes too; nothing but groups of this
lease is touched. In version 2 a group that hands limits down may have no processes of its own: where this process is
the only one, it moves into a group `slipstream-run` beside, and nowhere else.
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
    here_surely,
    kill_all,
    remove_all,
    remove_some,
    waits,
)
from slipstream.sandbox.metering.usage import MB, SPARE_PROCESSES, Limit, Usage, UsageMeter
from slipstream.sandbox.metering.watchdog import LiveProcess, is_well, see
from slipstream.types import SandboxLimits

logger = logging.getLogger(__name__)

KINDS = (V2, V1)
RUN = "slipstream-run"
INTERVAL_S = 0.25
"""The kernel holds memory and processes by itself: this is for CPU time, and to give word."""
NEARLY = 0.98
"""Of its limit: where a group that was at it may have been seen."""
TRIES = 10
SHARES = 32 * 1024


# ---------------------------------------------------------------- what the two versions call things


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Files of a group and what they say; each file but `door` belongs to the controller before its first dot."""

    needed: tuple[str, ...]
    memory_limits: tuple[str, ...]
    """The first is needed, the rest are set where they exist."""
    memory_peak: tuple[str, ...]
    """The first that exists."""
    kills: Callable[[Callable[[str, str], str], int], int]
    """How many were killed for memory, if the group itself was ever at its limit; given its bytes."""
    cpu_time: Callable[[Callable[[str, str], str]], float]
    """In seconds, given a way to read a controller's file."""
    door: str
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
        door="tasks",
    ),
    V2: Names(
        needed=("memory", "pids"),
        memory_limits=("memory.max", "memory.swap.max"),
        memory_peak=("memory.peak", "memory.current"),
        kills=lambda read, _: (
            _field(read("memory", "memory.events"), "oom_kill") if _field(read("memory", "memory.events"), "oom") else 0
        ),
        cpu_time=lambda read: _field(read("memory", "cpu.stat"), "usage_usec") / 1e6,
        door=PROCS,
    ),
}


def _number(text: str) -> int:
    text = text.strip()
    return int(text) if text.isdigit() else 0


def _field(text: str, name: str) -> int:
    """A number from lines of names and numbers."""
    return next((_number(line[len(name) :]) for line in text.splitlines() if line.startswith(name + " ")), 0)


# ---------------------------------------------------------------- all groups of a lease


class Groups:
    """Makes groups of one kind. Raises OSError, with the reason, if that does not work here, which is tried out."""

    interval_s = INTERVAL_S

    def __init__(
        self, lease: str, kind: str, *, kernel: Kernel | None = None, found: Iterable[Hierarchy] | None = None
    ) -> None:
        self.kind = kind
        self.names = NAMES[kind]
        self.kernel = kernel or Kernel()
        self._open: set[GroupMeter] = set()
        self._numbers = itertools.count(1)
        trees = [tree for tree in (here_surely() if found is None else found) if tree.kind == kind]
        if not trees:
            raise OSError(errno.ENOENT, "no such groups are mounted here")
        self._folders = self._prepare_v2(trees[0], lease) if kind == V2 else self._prepare_v1(trees, lease)
        try:
            self._try_out()
        except BaseException:
            self._remove_own()
            raise

    def _prepare_v1(self, trees: list[Hierarchy], lease: str) -> dict[str, str]:
        """Controller -> the lease's folder."""
        by_name = {name: tree for tree in trees for name in tree.controllers}
        if missing := [name for name in self.names.needed if name not in by_name]:
            raise OSError(errno.ENOENT, f"without the controllers {', '.join(missing)}")
        folders = {name: f"{by_name[name].own}/{TOP}/{lease}" for name in self.names.needed}
        for folder in folders.values():
            self._have_both(folder, [])
        if "cpu" in by_name["cpuacct"].controllers:
            self._share_out(folders["cpuacct"])
        return folders

    def _share_out(self, folder: str) -> None:
        """Where CPU time cannot be counted without being shared out, all sandboxes together would get what one process
        gets. So they get what many do."""
        for place in (folder.rpartition("/")[0], folder):
            with contextlib.suppress(OSError):
                self.kernel.write(f"{place}/cpu.shares", str(SHARES))

    def _prepare_v2(self, tree: Hierarchy, lease: str) -> dict[str, str]:
        own = tree.own.removesuffix(f"/{RUN}")
        there = self.kernel.read_surely(f"{own}/cgroup.controllers").split()
        if missing := [name for name in self.names.needed if name not in there]:
            raise OSError(
                errno.ENOENT,
                f"the controllers {', '.join(missing)} are not handed down to us: start with "
                "`systemd-run --user --scope -p Delegate=yes`",
            )
        used = list(self.names.needed)
        self._hand_down(own, used)
        self._have_both(f"{own}/{TOP}/{lease}", used)
        return dict.fromkeys(used, f"{own}/{TOP}/{lease}")

    def _hand_down(self, folder: str, controllers: list[str]) -> None:
        path = f"{folder}/cgroup.subtree_control"
        if set(controllers) <= set(self.kernel.read_surely(path).split()):
            return
        if self.kernel.read_surely(f"{folder}/{PROCS}").split() == [str(os.getpid())]:
            self._have(f"{folder}/{RUN}")
            self.kernel.write(f"{folder}/{RUN}/{PROCS}", str(os.getpid()))
        try:
            self.kernel.write(path, " ".join(f"+{name}" for name in controllers))
        except OSError as error:
            reason = "other processes run in our group" if error.errno == errno.EBUSY else str(error.strerror)
            raise OSError(error.errno, f"{reason}: start with `systemd-run --user --scope -p Delegate=yes`") from error

    def _have_both(self, folder: str, controllers: list[str]) -> None:
        """Make the folder of a lease and the one above it, which another run may remove as soon as it is empty."""
        for last in (False,) * TRIES + (True,):
            try:
                for place in (folder.rpartition("/")[0], folder):
                    self._have(place)
                    self._hand_down(place, controllers)
                return
            except FileNotFoundError:
                if last:
                    raise

    def _have(self, folder: str) -> None:
        with contextlib.suppress(FileExistsError):
            self.kernel.make(folder)

    def _try_out(self) -> None:
        """Put a process into a group."""
        meter = self.open(UsageMeter(limits=SandboxLimits()), 1)
        try:
            with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
                meter.attach(process.pid)
                is_in = meter.holds(process.pid)
            if not is_in:
                raise OSError(errno.EPERM, "a process that was put into a group did not stay there")
        finally:
            remove_all(meter.folders, self.kernel)
            self._open.discard(meter)

    def open(self, tally: UsageMeter, num_own: int) -> GroupMeter:
        number = next(self._numbers)
        meter = GroupMeter(self, {name: f"{folder}/{number}" for name, folder in self._folders.items()}, tally, num_own)
        self._open.add(meter)
        return meter

    def forget(self, meter: GroupMeter) -> None:
        self._open.discard(meter)

    def look(self) -> bool:
        meters = list(self._open)
        for meter in meters:
            meter.look()
            meter.look_whether_well()
        return bool(meters)

    async def aclose(self) -> None:
        for meter in list(self._open):
            await meter.aclose()
        self._remove_own()

    def _remove_own(self) -> None:
        for folder in dict.fromkeys(self._folders.values()):
            with contextlib.suppress(OSError):
                self.kernel.remove(folder)
                self.kernel.remove(folder.rpartition("/")[0])  # refused while other leases have groups there


class GroupMeter:
    """A Meter. Its group is made with its limits."""

    def __init__(self, groups: Groups, by_controller: Mapping[str, str], tally: UsageMeter, num_own: int) -> None:
        self.kind = groups.kind
        self._groups = groups
        self._kernel = groups.kernel
        self._names = groups.names
        self._by_controller = by_controller
        self.folders = tuple(dict.fromkeys(by_controller.values()))
        self._tally = tally
        self._num_full = tally.limits.processes + num_own
        self._first: LiveProcess | None = None
        self._num_killed = 0
        """For memory."""
        self._num_killed_before = 0
        """One look ago: whoever is killed takes a moment to be dead."""
        self._num_outlived = 0
        """After so many the first process was seen alive and well."""
        self._closed = False
        made: list[str] = []
        try:
            for folder in self.folders:
                self._kernel.make(folder)
                made.append(folder)
            self._limit(tally.limits.memory_mb * MB)
        except BaseException:
            for folder in made:
                self._kernel.remove(folder)
            raise

    def _limit(self, memory_bytes: int) -> None:
        names, folders = self._names, self._by_controller
        needed, *others = names.memory_limits
        self._kernel.write(f"{folders['memory']}/{needed}", str(memory_bytes))
        for name in others:
            with contextlib.suppress(FileNotFoundError, PermissionError):  # none is counted, or nothing can be swapped
                value = "0" if "swap" in name else str(memory_bytes)
                self._kernel.write(f"{folders['memory']}/{name}", value)
        self._kernel.write(f"{folders['pids']}/pids.max", str(self._num_full + SPARE_PROCESSES))

    def _read(self, controller: str, name: str) -> str:
        return self._kernel.read(f"{self._by_controller[controller]}/{name}")

    def open_doors(self) -> list[int]:
        fds: list[int] = []
        try:
            for folder in self.folders:
                fds.append(os.open(f"{folder}/{self._names.door}", os.O_WRONLY | os.O_CLOEXEC))
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
        self._first = see(pid)

    def look(self) -> None:
        """See what is used, and act on it."""
        if self._closed:
            return
        peak = next(filter(None, (self._read("memory", name) for name in self._names.memory_peak)), "")
        cpu_s = self._names.cpu_time(self._read)
        num_processes = _number(self._read("pids", "pids.current"))
        most = max(num_processes, _number(self._read("pids", "pids.peak")))
        self._tally.see(memory_mb=_number(peak) / MB, cpu_s=cpu_s, num_processes=num_processes)
        self._num_killed = max(self._num_killed, self._names.kills(self._read, self._tally.limits.memory_mb * MB))
        if self._num_killed:
            self._tally.hit(Limit.MEMORY)
        if most >= self._num_full or _field(self._read("pids", "pids.events"), "max"):
            self._tally.hit(Limit.PROCESSES)
        if cpu_s > self._tally.limits.cpu_s:
            self._tally.hit(Limit.CPU)
            kill_all(self.folders[0], self._kernel)

    def look_whether_well(self) -> None:
        """Processes that were killed, and with them not the first, have nothing to do with an end that is to come."""
        if self._num_killed > self._num_outlived and is_well(self._first):
            self._num_outlived = self._num_killed_before
        self._num_killed_before = self._num_killed

    def exceeded(self) -> Limit | None:
        self.look()
        return self._tally.gravest()

    def ended_by(self) -> Limit | None:
        self.look()
        if self._tally.gravest() is Limit.CPU:
            return Limit.CPU
        return Limit.MEMORY if self._num_killed > self._num_outlived and not is_well(self._first) else None

    def usage(self) -> Usage:
        self.look()
        return self._tally.usage

    async def aclose(self) -> None:
        if self._closed:
            return
        self.look()
        self._tally.see(memory_mb=0, cpu_s=0, num_processes=0)
        self._closed = True
        for wait_s in waits():
            if not remove_some(self.folders, self._kernel):
                self._groups.forget(self)
                return
            kill_all(self.folders[0], self._kernel, rounds=1)
            await asyncio.sleep(wait_s)
        self._groups.forget(self)
        logger.warning("the groups of a closed sandbox stay, since something in them would not die: %s", self.folders)
