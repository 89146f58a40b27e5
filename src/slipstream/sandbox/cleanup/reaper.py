"""The reaper: finds and removes what killed runs left behind, and nothing else.

Input: Slipstream's home folder. Output: a ReapReport of what was removed, by kind. Invariants: only what has the id of
a dead lease of this user is touched, and the lease is held meanwhile, so two reapers never work on the same one; a
process is killed through a pidfd, after its arguments were read again; a lease of which something could not be removed
stays for the next time. What has no lease below this folder belongs to another installation and is left alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import re
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slipstream.errors import SlipstreamError
from slipstream.sandbox.cleanup.lease import (
    ARGUMENT,
    LEASES,
    Lease,
    is_of_another_machine,
    lease_folders,
    read_facts,
    remove_tree,
    take_dead,
)

NOBODY = 65534
"""The user that root's sandboxes run as."""
PROC = Path("/proc")
KILL_TIMEOUT_S = 5.0
ROUNDS = 20
"""How often to look for processes until none is left."""
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
_OUR_PROGRAM = re.compile(r"(.*/)?(bwrap|python[0-9.]*|setpriv)|/proc/self/fd/[0-9]+")
"""The executables of our processes: a process that only mentions a lease, such as `grep`, is not one of them."""

Remover = Callable[[str], int]
"""Removes everything of one kind that has the id of a lease, and returns how many there were.

Raises OSError or SlipstreamError if something could not be removed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapReport:
    """What dead runs left behind and was removed."""

    leases: tuple[str, ...] = ()
    """The leases of dead runs that were cleaned up."""
    num_processes: int = 0
    num_mounts: int = 0
    num_folders: int = 0
    num_containers: int = 0
    num_cgroups: int = 0
    num_live: int = 0
    """Leases in use, which were left alone."""
    problems: tuple[str, ...] = ()
    """What could not be removed, and why. The next reaper tries again."""


def reap(
    home: Path, *, containers: Remover | None = None, cgroups: Remover | None = None, proc: Path = PROC
) -> ReapReport:
    """Remove what dead runs left behind. Blocks; fast if no run was killed.

    `containers` and `cgroups` replace the removers of the OCI provider and of the meter; `proc` is the /proc to read.
    """
    report = ReapReport()
    others = {
        "num_containers": containers or _remover("slipstream.sandbox.oci.provider", home, "oci"),
        "num_cgroups": cgroups or _remover("slipstream.sandbox.metering.meter", home),
    }
    for folder in lease_folders(home):
        if is_of_another_machine(read_facts(folder)):
            continue
        lease = take_dead(folder)
        if lease is None:
            report = replace(report, num_live=report.num_live + folder.exists())
            continue
        report = _reap_one(lease, report, others, proc)
    return report if cgroups is not None else _reap_orphans(report)


def _reap_orphans(report: ReapReport) -> ReapReport:
    """Remove the cgroups of providers without a lease whose process is dead. Everything else died with it."""
    from slipstream.sandbox.metering import meter

    for name in meter.orphans():
        try:
            report = replace(report, num_cgroups=report.num_cgroups + meter.remove(name))
        except OSError as raised:
            report = replace(report, problems=(*report.problems, f"{name}: {raised}"))
    return report


def _reap_one(lease: Lease, report: ReapReport, others: Mapping[str, Remover], proc: Path) -> ReapReport:
    """Clean up one dead lease. Processes go first, since they keep the rest busy."""
    removers: dict[str, Remover] = {
        "num_processes": lambda _: kill_processes(lease.id, proc),
        **others,
        "num_mounts": lambda _: unmount_below(lease.folder, proc),
    }
    problems = []
    for kind, remove in removers.items():
        try:
            report = replace(report, **{kind: getattr(report, kind) + remove(lease.id)})
        except (OSError, SlipstreamError) as raised:
            problems.append(f"lease {lease.id}: {raised}")
    if not problems:
        try:
            num_folders = _remove_folders(lease.folder)
            lease.release()
            return replace(report, leases=(*report.leases, lease.id), num_folders=report.num_folders + num_folders + 1)
        except OSError as raised:
            problems.append(f"lease {lease.id}: {raised}")
    lease.unlock()
    return replace(report, problems=(*report.problems, *problems))


def _remove_folders(folder: Path) -> int:
    """Remove the folders in a lease's folder; returns how many there were."""
    there = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.is_symlink()]
    for path in there:
        remove_tree(path)
    return len(there)


def _remover(module: str, home: Path, trace: str = "") -> Remover:
    """A Remover from a module's `leftovers` and `remove`. A module that cannot be imported left nothing behind.

    `trace`: a folder in the lease's folder; if it does not exist, the module is not loaded.
    """

    def remove(lease: str) -> int:
        if not (home / LEASES / lease / trace).is_dir():
            return 0
        try:
            there = importlib.import_module(module)
        except ImportError:
            return 0
        found: Sequence[object] = there.leftovers(lease)
        if found:
            there.remove(lease)
        return len(found)

    return remove


# ---------------------------------------------------------------- processes


def find_processes(lease: str, proc: Path = PROC) -> list[int]:
    """The processes of this user's sandboxes with the lease among their arguments."""
    return [pid for pid in _pids(proc) if pid != os.getpid() and _carries(pid, lease, proc)]


def kill_processes(lease: str, proc: Path = PROC) -> int:
    """Kill them and wait until they are gone; returns how many there were."""
    killed: set[int] = set()
    for _ in range(ROUNDS):  # a killed process may just have started another
        found = find_processes(lease, proc)
        if not found:
            return len(killed)
        for pid in found:
            if _kill(pid, lease, proc):
                killed.add(pid)
    raise OSError(f"processes {found} do not end, or keep starting new ones")


def _pids(proc: Path) -> list[int]:
    return sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()) if proc.is_dir() else []


def _carries(pid: int, lease: str, proc: Path) -> bool:
    try:
        arguments = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
        if f"{ARGUMENT}{lease}".encode() not in arguments[1:]:
            return False
        status = (proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended
        return False
    owner = re.search(r"^Uid:\s+(\d+)\s+(\d+)", status, re.MULTILINE)
    ours = {os.geteuid()} | ({NOBODY} if os.geteuid() == 0 else set())
    if owner is None or not {int(owner[1]), int(owner[2])} <= ours:
        return False
    return _OUR_PROGRAM.fullmatch(os.fsdecode(arguments[0])) is not None


def _kill(pid: int, lease: str, proc: Path) -> bool:
    """Kill a process, if the pid still belongs to it, and wait for its end."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not _carries(pid, lease, proc):  # the pid may have been reused
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(KILL_TIMEOUT_S * 1000):
            raise OSError(f"process {pid} was still running {KILL_TIMEOUT_S:g} s after it was killed")
        return True
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------- mounts


def find_mounts(folder: Path, proc: Path = PROC) -> list[Path]:
    """The mounts below a folder, as this process sees them, innermost first."""
    try:
        lines = (proc / "self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    places = [Path(_plain(fields[4])) for line in lines if len(fields := line.split(" ")) > 4]
    below = folder.resolve()
    return [place for place in reversed(places) if place.is_relative_to(below)]


def unmount_below(folder: Path, proc: Path = PROC) -> int:
    """Unmount everything below a folder; returns the number of mounts."""
    found = find_mounts(folder, proc)
    libc = ctypes.CDLL(None, use_errno=True) if found else None
    for place in found:
        assert libc is not None
        if libc.umount2(os.fsencode(place), MNT_DETACH | UMOUNT_NOFOLLOW) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot unmount {place}: {os.strerror(number)}")
    return len(found)


def _plain(escaped: str) -> str:
    """Unescape a path of mountinfo, in which blanks are octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), escaped)
