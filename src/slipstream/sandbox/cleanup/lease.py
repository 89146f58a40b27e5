"""A lease ties sandboxes to the run that opened them: whatever has the id of a dead lease was left behind.

Input: Slipstream's home folder. Output: a Lease, held until it is released or the process dies. Invariants: a folder
with a lease's name contains a lock that was taken before the folder got its name; the kernel drops the lock when the
process ends, however it ends. So a lease is dead as soon as its lock can be taken, and whoever takes it may clean up.
The facts beside the lock are informational.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from slipstream.errors import ConfigError

LEASES = "leases"
LOCK = "lock"
FACTS = "facts.json"
NEW = ".new-"
"""The name prefix of a lease that is being created."""
ARGUMENT = "slipstream-lease="
"""Every process of a local sandbox has this among its arguments, followed by the id."""
LABEL = "slipstream.lease"
"""The same for a container."""
_ID = re.compile(r"[0-9a-f]{16}")
_TRIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOwner:
    """Who took a lease."""

    pid: int
    start_ticks: int
    """When that process started, from its /proc entry; 0 if there is none."""
    boot_id: str
    host: str


class Lease:
    """A held lease, from `take_lease`, or from `take_dead` for a lease that another process left."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.id = folder.name.removeprefix(NEW)
        self.folder = folder
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Remove the folder and drop the lock, once nothing of the lease is left. Calling it twice is fine.

        Raises OSError if something in the folder cannot be removed. The lock is dropped even then, so that the next
        start tries again.
        """
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            _remove(self.folder)
        finally:
            os.close(descriptor)

    def unlock(self) -> None:
        """Drop the lock but leave the folder, to be cleaned up later."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def take_lease(home: Path) -> Lease:
    """A new lease for this process, with a private folder below `home`."""
    try:
        _private(home / LEASES)
        for _ in range(_TRIES):
            if (lease := _make(home / LEASES)) is not None:
                return lease
    except OSError as raised:
        raise ConfigError(
            f"the lease of this run's sandboxes cannot be created in {home} ({raised}): set SLIPSTREAM_HOME to a "
            "folder of your own on a local disk"
        ) from raised
    raise ConfigError(f"new files in {home / LEASES} disappear at once: set SLIPSTREAM_HOME to another folder")


def lease_folders(home: Path) -> list[Path]:
    """The folders of all leases: live, dead, or being created."""
    try:
        there = sorted((home / LEASES).iterdir())
    except OSError:
        return []
    return [folder for folder in there if _ID.fullmatch(folder.name.removeprefix(NEW))]


def take_dead(folder: Path) -> Lease | None:
    """Take over the lease in `folder` if its holder is dead; None if it is alive, or if the lease is gone.

    Never waits. There is at most one holder.
    """
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            return None
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:  # half removed; or new, and its creator tries again
        with contextlib.suppress(OSError):
            folder.rmdir()
        return None
    except OSError:
        return None
    if not _lock(folder / LOCK, descriptor):
        return None
    return Lease(folder, descriptor)


def read_facts(folder: Path) -> LeaseOwner | None:
    try:
        return LeaseOwner(**json.loads((folder / FACTS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def is_of_another_machine(facts: LeaseOwner | None) -> bool:
    """Whether the holder may be alive on another machine, where its lock is not visible from here (a shared disk)."""
    here = own_facts()
    return facts is not None and facts.boot_id != here.boot_id and facts.host != here.host


def own_facts() -> LeaseOwner:
    return LeaseOwner(pid=os.getpid(), start_ticks=_start_ticks(), boot_id=_boot_id(), host=os.uname().nodename)


# ---------------------------------------------------------------- implementation


def _make(leases: Path) -> Lease | None:
    """A new lease; None if a reaper mistook it for a dead one while it was being created."""
    name = secrets.token_hex(8)
    folder = leases / f"{NEW}{name}"
    folder.mkdir(mode=0o700)
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    if not _lock(folder / LOCK, descriptor):
        return None
    try:
        (folder / FACTS).write_text(json.dumps(asdict(own_facts())) + "\n", encoding="utf-8")
        folder.rename(leases / name)
    except BaseException:
        os.close(descriptor)
        raise
    return Lease(leases / name, descriptor)


def _lock(path: Path, descriptor: int) -> bool:
    """Take the lock and check that the file is still in place; otherwise close the descriptor."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            return True
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return False


def _remove(folder: Path) -> None:
    """Remove a held lease's folder. The lock goes last, so that nobody mistakes the rest for a new lease."""
    for path in list(folder.iterdir()):
        if path.name != LOCK:
            remove_tree(path)
    (folder / LOCK).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):  # another process saw it without its lock and removed it first
        folder.rmdir()


def remove_tree(path: Path) -> None:
    """Remove a file or a folder. Links are not followed; folders without permissions are made accessible first."""

    def retry(function: Callable[..., object], name: str, _: object) -> None:
        for folder in (Path(name).parent, Path(name)):
            if folder.is_dir() and not folder.is_symlink():
                folder.chmod(0o700)
        if function in (os.open, os.scandir, os.listdir):  # it was not accessible before
            remove_tree(Path(name))
        else:
            function(name)

    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    elif sys.version_info >= (3, 12):
        shutil.rmtree(path, onexc=retry)
    else:
        shutil.rmtree(path, onerror=retry)


def _private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise PermissionError(f"{folder} is not a folder that you own")
    if stat.S_IMODE(facts.st_mode) & 0o077:
        folder.chmod(0o700)


def _start_ticks() -> int:
    try:
        return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
