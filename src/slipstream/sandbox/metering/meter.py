"""Meters enforce each sandbox's limits on memory, processes and CPU time, and report which ones it reached.

Input: SandboxLimits and a sandbox's process 1. Output: a Meter for each sandbox. Invariants: the host stays usable
whatever runs inside; exceeding a limit on memory or processes costs the sandbox a process or a fork, exceeding the CPU
time all its processes; a closed meter keeps its last values.

Control groups do this best: the kernel enforces the limits (`cgroups`). Where none can be created, a thread watches
from outside (`watchdog`): it reacts with a short delay, and does not see files in memory, which the disk limit bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from slipstream.errors import ConfigError, is_shortage
from slipstream.sandbox.metering import cgroup_tree, cgroups, watchdog
from slipstream.sandbox.metering.usage import Limit, Usage, UsageMeter
from slipstream.types import SandboxLimits

__all__ = ["Limit", "Meter", "Meters", "Usage", "leftovers", "remove"]

logger = logging.getLogger(__name__)

UNLEASED = "without-"
"""The name prefix of a provider without a lease; its pid and a number follow. The names of its groups end with the pid
namespace in which that pid is valid."""
IDLE_SHARE = 10
"""Polling takes at most one part in this many of a core."""
_UNLEASED = re.compile(UNLEASED + r"([0-9]{1,9})-[0-9]+-([0-9]+)")
_LEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Meter(Protocol):
    """Enforces the limits of one sandbox. Every method is thread-safe."""

    @property
    def kind(self) -> str:
        """`cgroup v2`, `cgroup v1` or `watchdog`."""
        ...

    def open_join_fds(self) -> list[int]:
        """Descriptors, closed by the caller, to each of which a process writes `0` to join this meter before it starts
        anything; none if the meter does not need that. Joining takes microseconds under `cgroup v1`, where `attach`
        takes milliseconds. `attach` is still required afterwards."""
        ...

    def attach(self, pid: int) -> None:
        """Attach the sandbox's process 1 (host pid) before any program of the agent runs.

        May wait milliseconds for the kernel: call it in a thread. Raises OSError if the process is gone or the kernel
        refuses.
        """
        ...

    def exceeded(self) -> Limit | None:
        """The most severe limit reached so far."""
        ...

    def ended_by(self) -> Limit | None:
        """For a sandbox that has ended: the limit that ended it, or None. An OOM kill that the sandbox survived does
        not count. Raises OSError if the host is too short of resources to tell."""
        ...

    def usage(self) -> Usage: ...

    async def aclose(self) -> None:
        """Release the meter, once all processes are dead. Calling it twice is fine."""
        ...


class Backend(Protocol):
    """One way to implement meters."""

    @property
    def kind(self) -> str: ...
    @property
    def interval_s(self) -> float: ...
    def open(self, usage_meter: UsageMeter) -> Meter: ...
    def look(self) -> bool:
        """Update every open meter and enforce its limits. Returns whether there was any."""
        ...

    async def aclose(self) -> None: ...


class Meters:
    """The meters of one provider. `lease` names its groups; `kind` forces a kind, otherwise the best that works is
    used.

    Raises ConfigError if a forced kind does not work, and OSError if the host is too short of resources to test it.
    """

    def __init__(self, lease: str, *, kind: str | None = None) -> None:
        if not _LEASE.fullmatch(lease):
            raise ConfigError(f"{lease!r} is not a valid lease name: use letters, digits, dots, dashes and underscores")
        if lease.startswith(UNLEASED):
            lease = f"{lease}-{_pid_namespace()}"
        reasons: list[str] = []
        backend: Backend | None = None
        for candidate in cgroups.KINDS if kind is None else [name for name in cgroups.KINDS if name == kind]:
            try:
                backend = cgroups.Groups(lease, candidate)
                break
            except OSError as error:
                if is_shortage(error):
                    raise
                reasons.append(f"{candidate}: {error.strerror or error}")
        if backend is None:
            if kind not in (None, watchdog.KIND):
                raise ConfigError(
                    f"sandboxes cannot be metered with {kind!r} on this machine ({'; '.join(reasons) or 'unknown'})"
                )
            backend = watchdog.Watchdog()
        self._backend = backend
        self.kind: str = backend.kind
        self.reason: str = "; ".join(reasons)
        """Why no better kind is used; empty if there is none, or if `kind` was forced."""
        self._open_one = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, limits: SandboxLimits, on_exceeded: Callable[[str], None] | None = None) -> Meter:
        """A meter for one sandbox. `on_exceeded` is called once for each limit that is reached, in the running event
        loop if there is one.

        Raises OSError if the group cannot be created.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        meter = self._backend.open(UsageMeter(limits=limits, on_exceeded=on_exceeded, loop=loop))
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="slipstream-meters", daemon=True)
            self._thread.start()
        self._open_one.set()
        return meter

    def _watch(self) -> None:
        """Runs in a thread, so that limits hold while the event loop is busy. Survives every failure."""
        has_failed = False
        while not self._closed.is_set():
            self._open_one.wait()
            self._open_one.clear()
            while not self._closed.is_set():
                began_s = time.monotonic()
                try:
                    if not self._backend.look():
                        break
                except Exception:
                    if not has_failed:
                        logger.exception("the limits of sandboxes could not be enforced for a moment")
                    has_failed = True
                took_s = time.monotonic() - began_s
                self._closed.wait(max(self._backend.interval_s, IDLE_SHARE * took_s))

    async def aclose(self) -> None:
        """Close every open meter, and remove the lease's groups. Calling it twice is fine."""
        self._closed.set()
        self._open_one.set()
        await self._backend.aclose()


def orphans(holders: Iterable[str] | None = None) -> list[str]:
    """Group owners without a lease whose process is dead. Processes in other pid namespaces are unknown, so their
    groups are not listed."""
    here = _pid_namespace()
    names = sorted(cgroup_tree.group_owners() if holders is None else holders)
    named = [(name, _UNLEASED.fullmatch(name)) for name in names]
    return [name for name, match in named if match and int(match[2]) == here != 0 and not _is_alive(int(match[1]))]


def _pid_namespace() -> int:
    """The inode of our pid namespace; 0 if unknown."""
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116
    return 0


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def leftovers(lease: str) -> list[str]:
    """The groups of a lease on this machine, children first."""
    return cgroup_tree.groups_of_lease(lease) if _LEASE.fullmatch(lease) else []


def remove(lease: str) -> int:
    """Kill what still runs in the groups of a lease and remove them; returns how many there were. Blocks briefly.

    Raises OSError if a group cannot be removed.
    """
    found = leftovers(lease)
    cgroup_tree.remove_all(found)
    return len(found)
