"""Meters: hold each sandbox to its limits on memory, processes and CPU time, and say afterwards which it ran into.

Input: SandboxLimits and the first process of a sandbox. Output: a Meter for each.
Invariants: the host stays usable whatever runs inside; a limit on memory or processes costs the sandbox a process or
a fork, the limit on CPU time all its processes; what a meter said last it still says once it is closed.

Control groups do this best, and the kernel holds the limits (`cgroups`). Where none can be made, a thread watches from
outside (`watchdog`): it comes a moment late, and does not see files in memory, which the disk limit bounds.
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
"""What the name of a provider begins with that has no lease: its process and a number follow. The name of its groups
ends with the namespace in which that is the number of a process."""
IDLE_SHARE = 10
"""Looking takes at most one part in so many of a core."""
_UNLEASED = re.compile(UNLEASED + r"([0-9]{1,9})-[0-9]+-([0-9]+)")
_LEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Meter(Protocol):
    """Holds one sandbox to its limits. Every method may be called from any thread."""

    @property
    def kind(self) -> str:
        """`cgroup v2`, `cgroup v1` or `watchdog`."""
        ...

    def open_doors(self) -> list[int]:
        """Descriptors, the caller's to close, to each of which a process writes `0` to put itself under this meter
        before it starts anything. None if the meter has no such way. It takes some microseconds under `cgroup v1`,
        where `attach` takes milliseconds. `attach` is needed afterwards all the same."""
        ...

    def attach(self, pid: int) -> None:
        """Take the sandbox's first process, as the host sees it, under the meter, before anything of the agent's runs.

        May wait some milliseconds for the kernel: call it in a thread beside the rest of a start. Raises OSError if
        the process is gone or the kernel refuses.
        """
        ...

    def exceeded(self) -> Limit | None:
        """The gravest of the limits that were run into so far."""
        ...

    def ended_by(self) -> Limit | None:
        """Of a sandbox that has ended: the limit that it ended by, None if by none. A program that was killed for its
        memory, and that the sandbox outlived, was no end. Raises OSError if the host is too short of something to say.
        """
        ...

    def usage(self) -> Usage: ...

    async def aclose(self) -> None:
        """Let go, once all processes are dead. A second time does nothing."""
        ...


class Backend(Protocol):
    """One way to meter."""

    @property
    def kind(self) -> str: ...
    @property
    def interval_s(self) -> float: ...
    def open(self, tally: UsageMeter, num_own: int) -> Meter: ...
    def look(self) -> bool:
        """See what every open meter's sandbox uses, and act on it. Whether there was any."""
        ...

    async def aclose(self) -> None: ...


class Meters:
    """The meters of one provider. `lease` names its groups; `kind` forces one, else it is the best that works here.

    Raises ConfigError if the forced kind does not work, and OSError if the host is too short of something for it to be
    tried: that decides nothing.
    """

    def __init__(self, lease: str, *, kind: str | None = None) -> None:
        if not _LEASE.fullmatch(lease):
            raise ConfigError(f"{lease!r} cannot name a lease: use letters, digits, dots, dashes and underscores")
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
                raise ConfigError(f"sandboxes cannot be metered with {kind!r} here ({'; '.join(reasons) or 'unknown'})")
            backend = watchdog.Watchdog()
        self._backend = backend
        self.kind: str = backend.kind
        self.reason: str = "; ".join(reasons)
        """Why it is not a better kind; empty if there is none, or it was not to be tried."""
        self._open_one = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def open(
        self, limits: SandboxLimits, on_exceeded: Callable[[str], None] | None = None, *, num_own: int = 1
    ) -> Meter:
        """A meter for one sandbox. `on_exceeded` is called once for each limit that is run into, in the running event
        loop if there is one. `num_own` says how many of the processes that will be under it are ours.

        Raises OSError if the group cannot be made.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        meter = self._backend.open(UsageMeter(limits=limits, on_exceeded=on_exceeded, loop=loop), num_own)
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="slipstream-meters", daemon=True)
            self._thread.start()
        self._open_one.set()
        return meter

    def _watch(self) -> None:
        """A thread, so that limits hold while the event loop is busy with something else. It outlives every failure."""
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
                        logger.exception("sandboxes could not be held to their limits for a moment")
                    has_failed = True
                took_s = time.monotonic() - began_s
                self._closed.wait(max(self._backend.interval_s, IDLE_SHARE * took_s))

    async def aclose(self) -> None:
        """Close every meter that is open, and remove the lease's groups. A second time does nothing."""
        self._closed.set()
        self._open_one.set()
        await self._backend.aclose()


def orphans(holders: Iterable[str] | None = None) -> list[str]:
    """Those of all holders of groups who had no lease, are named by their process, and are dead. Of processes in other
    namespaces nothing is known, and so nothing said."""
    here = _pid_namespace()
    names = sorted(cgroup_tree.holders() if holders is None else holders)
    named = [(name, _UNLEASED.fullmatch(name)) for name in names]
    return [name for name, match in named if match and int(match[2]) == here != 0 and not _is_alive(int(match[1]))]


def _pid_namespace() -> int:
    """The one that we are in, by its number; 0 if it cannot be told."""
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
    """The groups that carry the id of a lease, on this whole machine, children first."""
    return cgroup_tree.left_by(lease) if _LEASE.fullmatch(lease) else []


def remove(lease: str) -> int:
    """Kill what still runs in the groups of a lease and remove them; how many there were. Blocks for a moment.

    Raises OSError if a group stays.
    """
    found = leftovers(lease)
    cgroup_tree.remove_all(found)
    return len(found)
