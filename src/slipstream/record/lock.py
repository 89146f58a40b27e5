"""One writer per run: a lock on the run's folder.

A lock that is taken raises a ConfigError that names its holder. The kernel releases the lock when the process ends,
however it ends, so a lock file that is left behind is harmless.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.record.schema import LOCK_NAME


class RunLock:
    """The lock on a run, held until `release`."""

    def __init__(self, folder: Path) -> None:
        try:
            descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as raised:
            raise ConfigError(f"run {folder} cannot be written ({raised}): choose a folder that can be") from raised
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode() or "(unknown)"
            os.close(descriptor)
            raise ConfigError(
                f"run {folder.name} is in use by process {holder}: wait until it ends, or stop it"
            ) from None
        except OSError as raised:
            os.close(descriptor)
            raise ConfigError(f"run {folder} cannot be locked ({raised}): move it to a local disk") from raised
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def is_being_written(folder: Path) -> bool:
    """Whether a process of this machine holds the lock of a run. It is not tried, which could hinder one that starts;
    where the kernel does not list its locks, no run is taken to be written."""
    try:
        lock = folder / LOCK_NAME
        inode, holder = lock.stat().st_ino, lock.read_text().strip()
        held = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    # `12: FLOCK  ADVISORY  WRITE 4711 00:2f:1234 0 EOF`
    return any(
        fields[1] == "FLOCK" and fields[4] == holder and fields[5].rpartition(":")[2] == str(inode)
        for fields in map(str.split, held)
        if len(fields) > 5
    )
