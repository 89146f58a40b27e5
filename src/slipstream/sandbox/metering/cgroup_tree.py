"""The kernel's trees of control groups: where we are in them, and how groups are emptied and removed.

Input: what /proc tells of mounts and memberships. Output: the trees that are mounted here, of version 1 and 2.
Invariants: only groups below a folder `slipstream/<lease>` are listed, emptied or removed; a process is killed
through a descriptor of it, after it was seen in the group again.
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
    """The kernel's folders of groups. A test gives another."""

    def read(self, path: str) -> str:
        """Empty if there is no such file, or it cannot be read now."""
        try:
            return self.read_surely(path)
        except OSError:
            return ""

    def read_surely(self, path: str) -> str:
        """Empty if there is no such file. Raises OSError if the host is only short of something."""
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
        except BlockingIOError as error:  # which here is said of a limit, and does not pass
            raise OSError(errno.EDQUOT, "no more groups may be made here") from error

    def remove(self, path: str) -> None:
        os.rmdir(path)  # noqa: PTH106

    def below(self, path: str) -> Iterator[str]:
        """All groups at and below a folder, children first."""
        for place, _, _ in os.walk(path, topdown=False):
            yield place


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """One tree of groups."""

    kind: str
    controllers: frozenset[str]
    """Of version 1, which has a tree for each or some; version 2 has one tree, and says itself what is in it."""
    mount: str
    own: str
    """The folder of the group that we are in."""


def hierarchies(mountinfo: str, memberships: str) -> list[Hierarchy]:
    """What /proc/self/mountinfo and /proc/self/cgroup say together. A tree is told once."""
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
        if root != "/":  # a part of the tree is mounted
            path = path[len(root) :] if path == root or path.startswith(root + "/") else "/"
        version = V1 if kind == "cgroup" else V2
        own = mount + path.rstrip("/")
        found[controllers] = Hierarchy(kind=version, controllers=controllers, mount=mount, own=own)
    return list(found.values())


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def here() -> list[Hierarchy]:
    """None if that cannot be told now."""
    try:
        return here_surely()
    except OSError:
        return []


def here_surely() -> list[Hierarchy]:
    """Raises OSError if the host is only short of something."""
    mounts = []
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            mounts = [line for line in file if " - cgroup" in line]
    except OSError as error:
        if is_shortage(error):
            raise
        return []
    return hierarchies("".join(mounts), Kernel().read_surely("/proc/self/cgroup"))


def kill_all(folder: str, kernel: Kernel, rounds: int = KILL_ROUNDS) -> None:
    """Kill all processes of a group, those too that they start meanwhile."""
    try:
        kernel.write(f"{folder}/cgroup.kill", "1")
        return
    except OSError:
        pass  # there is no such file in version 1, nor before Linux 5.14
    for _ in range(rounds):
        pids = _processes(folder, kernel)
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(pid)
                try:
                    if pid in _processes(folder, kernel):  # else another has got its number
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                finally:
                    os.close(fd)


def _processes(folder: str, kernel: Kernel) -> set[int]:
    return {int(text) for text in kernel.read(f"{folder}/{PROCS}").split()} - {0}


def waits() -> Iterator[float]:
    """How long to wait between attempts to remove a group: the dead take a moment to leave it."""
    waited, wait_s = 0.0, 0.0005
    while waited < REMOVE_S:
        yield wait_s
        waited += wait_s
        wait_s = min(2 * wait_s, 0.05)


def remove_some(folders: Iterable[str], kernel: Kernel) -> list[str]:
    """Remove groups; those that stay."""
    stay = []
    for folder in folders:
        try:
            kernel.remove(folder)
        except FileNotFoundError:
            continue
        except OSError:
            stay.append(folder)
    return stay


def left_by(lease: str, found: Iterable[Hierarchy] | None = None, kernel: Kernel | None = None) -> list[str]:
    """Groups of a lease anywhere on this machine, children first: a run may have been in another group than we are."""
    ending = f"/{TOP}/{lease}"
    kernel = kernel or Kernel()
    return [
        place
        for tree in (here() if found is None else found)
        for place in kernel.below(tree.mount)
        if place.endswith(ending) or f"{ending}/" in place
    ]


def holders(found: Iterable[Hierarchy] | None = None, kernel: Kernel | None = None) -> set[str]:
    """Whoever has groups of ours on this machine, by name."""
    kernel = kernel or Kernel()
    places = (place for tree in (here() if found is None else found) for place in kernel.below(tree.mount))
    return {place.rpartition("/")[2] for place in places if place.rpartition("/")[0].endswith(f"/{TOP}")}


def remove_all(folders: Iterable[str], kernel: Kernel | None = None) -> None:
    """Kill what is in these groups and remove them. Raises OSError if one stays."""
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
        raise OSError(errno.EBUSY, f"groups that would not go: {', '.join(stay)}")
    for top in tops:
        if top.endswith(f"/{TOP}"):
            with contextlib.suppress(OSError):
                kernel.remove(top)
