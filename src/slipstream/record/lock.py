"""One writer per run: a lock on the run's folder.

A folder enters, and a held lock leaves, or a ConfigError that names who holds it. The kernel drops the lock with the
process, however that ends, so a lock file that is left behind means nothing by itself.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.record.schema import LOCK_NAME


class RunLock:
    """The right to write a run, held until `release`."""

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
