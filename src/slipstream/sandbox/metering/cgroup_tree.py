"""The kernel's cgroup hierarchies: which are mounted, where we are in them, and how groups are emptied and removed.

Input: mounts and memberships from /proc. Output: the mounted hierarchies, of version 1 and 2. Invariants: only groups
below a folder `slipstream/<lease>` are listed, emptied or removed; a process is killed through a pidfd, after checking
again that it is in the group.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slipstream.errors import is_shortage

V2, V1 = "cgroup v2", "cgroup v1"
TOP = "slipstream"
PROCS = "cgroup.procs"
REMOVE_S = 2.0
KILL_ROUNDS = 50


class Kernel:
    """Access to the kernel's cgroup files; tests substitute their own."""

    def read(self, path: str) -> str:
        """The content of a file; empty if it does not exist or cannot be read now."""
        try:
            return self.read_or_raise(path)
        except OSError:
            return ""

    def read_or_raise(self, path: str) -> str:
        """The content of a file; empty if it does not exist. Raises OSError if the host is short of resources."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(fd, 1 << 16).decode("utf-8", "replace")
            finally:
                os.close(fd)
        except OSError as error:
            if is_shortage(error):
                raise
            return ""

    def write(self, path: str, text: str) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def make(self, path: str) -> None:
        try:
            os.mkdir(path)  # noqa: PTH102
        except BlockingIOError as error:  # EAGAIN: here it means a limit, which is not temporary
            raise OSError(errno.EDQUOT, "no more groups can be created here") from error

    def remove(self, path: str) -> None:
        os.rmdir(path)  # noqa: PTH106

    def below(self, path: str) -> Iterator[str]:
        """A group and all groups below it, children first."""
        for place, _, _ in os.walk(path, topdown=False):
            yield place


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """One mounted hierarchy."""

    kind: str
    controllers: frozenset[str]
    """For version 1, which has a tree for each or several; version 2 has one tree, which lists its controllers
    itself."""
    mount: str
    own: str
    """The folder of our own group."""


def hierarchies(mountinfo: str, memberships: str) -> list[Hierarchy]:
    """The hierarchies described by /proc/self/mountinfo and /proc/self/cgroup, each once."""
    paths: dict[frozenset[str], str] = {}
    for line in memberships.splitlines():
        _, names, path = line.split(":", 2)
        paths[frozenset(filter(None, names.split(",")))] = path
    found: dict[frozenset[str], Hierarchy] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, mount = (_unescaped(text) for text in before.split(" ")[3:5])
        wanted = frozenset(options.split(",")) if kind == "cgroup" else frozenset[str]()
        controllers = next((some for some in paths if some <= wanted and bool(some) == bool(wanted)), None)
        if controllers is None or controllers in found:
            continue
        path = paths[controllers]
        if root != "/":  # only a part of the tree is mounted
            path = path[len(root) :] if path == root or path.startswith(root + "/") else "/"
        version = V1 if kind == "cgroup" else V2
        own = mount + path.rstrip("/")
        found[controllers] = Hierarchy(kind=version, controllers=controllers, mount=mount, own=own)
    return list(found.values())


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mounted_trees() -> list[Hierarchy]:
    """The mounted hierarchies; none if they cannot be read now."""
    try:
        return mounted_trees_or_raise()
    except OSError:
        return []


def mounted_trees_or_raise() -> list[Hierarchy]:
    """The mounted hierarchies. Raises OSError if the host is short of resources."""
    mounts = []
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            mounts = [line for line in file if " - cgroup" in line]
    except OSError as error:
        if is_shortage(error):
            raise
        return []
    return hierarchies("".join(mounts), Kernel().read_or_raise("/proc/self/cgroup"))


def kill_all(folder: str, kernel: Kernel, rounds: int = KILL_ROUNDS) -> None:
    """Kill all processes of a group, including those they start meanwhile."""
    try:
        kernel.write(f"{folder}/cgroup.kill", "1")
        return
    except OSError:
        pass  # version 1, and Linux before 5.14, do not have this file
    for _ in range(rounds):
        pids = _processes(folder, kernel)
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(pid)
                try:
                    if pid in _processes(folder, kernel):  # otherwise the pid was reused
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                finally:
                    os.close(fd)


def _processes(folder: str, kernel: Kernel) -> set[int]:
    return {int(text) for text in kernel.read(f"{folder}/{PROCS}").split()} - {0}


def waits() -> Iterator[float]:
    """How long to wait between attempts to remove a group: dead processes take a moment to leave it."""
    waited, wait_s = 0.0, 0.0005
    while waited < REMOVE_S:
        yield wait_s
        waited += wait_s
        wait_s = min(2 * wait_s, 0.05)


def remove_some(folders: Iterable[str], kernel: Kernel) -> list[str]:
    """Remove groups; returns those that could not be removed."""
    stay = []
    for folder in folders:
        try:
            kernel.remove(folder)
        except FileNotFoundError:
            continue
        except OSError:
            stay.append(folder)
    return stay


def groups_of_lease(lease: str, found: Iterable[Hierarchy] | None = None, kernel: Kernel | None = None) -> list[str]:
    """All groups of a lease on this machine, children first: the run may have been in another group than ours."""
    ending = f"/{TOP}/{lease}"
    kernel = kernel or Kernel()
    return [
        place
        for tree in (mounted_trees() if found is None else found)
        for place in kernel.below(tree.mount)
        if place.endswith(ending) or f"{ending}/" in place
    ]


def group_owners(found: Iterable[Hierarchy] | None = None, kernel: Kernel | None = None) -> set[str]:
    """The names (leases) that own groups on this machine."""
    kernel = kernel or Kernel()
    places = (place for tree in (mounted_trees() if found is None else found) for place in kernel.below(tree.mount))
    return {place.rpartition("/")[2] for place in places if place.rpartition("/")[0].endswith(f"/{TOP}")}


def remove_all(folders: Iterable[str], kernel: Kernel | None = None) -> None:
    """Kill the processes in these groups and remove the groups. Raises OSError if one cannot be removed."""
    kernel = kernel or Kernel()
    stay = list(folders)
    tops = {folder.rpartition("/")[0] for folder in stay}
    for wait_s in waits():
        for folder in stay:
            kill_all(folder, kernel, rounds=1)
        stay = remove_some(stay, kernel)
        if not stay:
            break
        time.sleep(wait_s)
    if stay:
        raise OSError(errno.EBUSY, f"these groups cannot be removed: {', '.join(stay)}")
    for top in tops:
        if top.endswith(f"/{TOP}"):
            with contextlib.suppress(OSError):
                kernel.remove(top)
