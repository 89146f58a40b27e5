"""Measures what a container uses, from the host and without the engine.

Input: the pid of its first program. Output: numbers. Invariants: what cannot be read is None, never an error, since a
container may end at any moment.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from pathlib import Path

from slipstream.sandbox.files.safe_open import FOLDER, open_inside

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
BLOCK_BYTES = 512
NEARLY = 0.98
"""A peak of this share of the limit counts as having reached it."""


MAX_DEPTH = 256


class TooDeep(Exception):
    """Folders are nested deeper than MAX_DEPTH."""


class Watch:
    """The counters of one container."""

    def __init__(self, pid: int, *, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._folders = cgroup_folders(_text(proc / str(pid) / "cgroup") or "", cgroups)
        self.upper = upper_folder(_text(proc / str(pid) / "mountinfo") or "")

    def cpu_s(self) -> float | None:
        """CPU time of all its processes so far."""
        usage = self._number("cpuacct", "cpuacct.usage", r"^(\d+)$")
        if usage is not None:
            return usage / 1e9
        usage = self._number("", "cpu.stat", r"^usage_usec (\d+)$")
        return None if usage is None else usage / 1e6

    def num_killed(self) -> int:
        """How many of its processes were OOM-killed if the container reached its own memory limit. Kills because the
        whole machine ran out of memory do not count."""
        if (killed := self._number("memory", "memory.oom_control", r"^oom_kill (\d+)$")) is not None:
            most = self._number("memory", "memory.max_usage_in_bytes", r"^(\d+)$") or 0
            limit = self._number("memory", "memory.limit_in_bytes", r"^(\d+)$") or 0
            return killed if most >= NEARLY * limit else 0
        killed = self._number("", "memory.events", r"^oom_kill (\d+)$") or 0
        return killed if self._number("", "memory.events", r"^oom (\d+)$") else 0

    def disk_bytes(self) -> int | None:
        """The size of its writable layer, if all of it is readable. Call it in a thread. Raises TooDeep."""
        return None if self.upper is None else folder_bytes(self.upper)

    def _number(self, controller: str, name: str, pattern: str) -> int | None:
        folder = self._folders.get(controller)
        text = None if folder is None else _text(folder / name)
        found = re.search(pattern, text, re.MULTILINE) if text is not None else None
        return None if found is None else int(found[1])


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def cgroup_folders(told: str, root: Path) -> dict[str, Path]:
    """The folders of a process's cgroups by controller; cgroup v2, which has them all, has the empty name."""
    found: dict[str, Path] = {}
    for line in told.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if not path.startswith("/"):
            continue
        for name in names.split(","):
            found[name] = root.joinpath(names, path.lstrip("/"))
    return found


def upper_folder(mounts: str) -> Path | None:
    """The writable layer of a process's root, from its mountinfo, if it is an overlay that we may read."""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) > 6 and fields[4] == "/" and " - overlay " in line:
            found = re.search(r"[ ,]upperdir=([^, ]+)", line)
            folder = Path(found[1]) if found is not None else None
            if folder is not None and folder.is_absolute() and os.access(folder, os.R_OK | os.X_OK):
                return folder
    return None


def folder_bytes(folder: Path) -> int | None:
    """The disk space of the files below a folder; None if not all of it is readable. Links are not followed, and only
    folders are opened. Raises TooDeep."""
    total = 0
    counted: set[tuple[int, int]] = set()
    try:
        root = os.open(folder, FOLDER)
    except OSError:
        return None
    try:
        todo = [b"."]
        while todo:
            path = todo.pop()
            try:
                found = _look_into(root, path)
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    raise TooDeep from error
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # it is already gone
                    continue
                return None
            for name, facts in found:
                if stat.S_ISDIR(facts.st_mode):
                    todo.append(path + b"/" + name)
                elif facts.st_nlink > 1:
                    if (facts.st_dev, facts.st_ino) in counted:
                        continue
                    counted.add((facts.st_dev, facts.st_ino))
                total += facts.st_blocks * BLOCK_BYTES
    finally:
        os.close(root)
    return total


def _look_into(root: int, path: bytes) -> list[tuple[bytes, os.stat_result]]:
    if path.count(b"/") > MAX_DEPTH:
        raise TooDeep
    folder = open_inside(root, path, FOLDER | os.O_NOFOLLOW, links=False)
    try:
        found = []
        for name in os.listdir(folder):  # noqa: PTH208  a descriptor
            with contextlib.suppress(OSError):
                found.append((os.fsencode(name), os.stat(name, dir_fd=folder, follow_symlinks=False)))
        return found
    finally:
        os.close(folder)
