"""Folders that appear whole or not at all.

A folder is made beside its place, given to the disk, and renamed. One that is replaced stands aside until then, and is
taken back if the process died between the two renamings. One process writes a place at a time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slipstream.errors import LearnerError


@contextmanager
def whole_folder(target: Path, *, what: str) -> Iterator[Path]:
    """An empty folder that becomes `target` when all went well; `what` it is, for the message if the disk refuses."""
    part, aside = target.parent / f".{target.name}.part", _aside(target)
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        yield part
        _sync_folder(part)
        if target.exists():
            shutil.rmtree(aside, ignore_errors=True)
            target.rename(aside)
        part.rename(target)
        _sync_folder(target.parent)
        shutil.rmtree(aside, ignore_errors=True)
    except OSError as raised:
        with suppress(OSError):
            take_back(target)
        reason = raised.strerror or str(raised)
        raise LearnerError(
            f"{what} {target} was not written ({reason}): make room there, or write to another disk; "
            "what was there before is untouched"
        ) from raised
    finally:
        shutil.rmtree(part, ignore_errors=True)


def take_back(target: Path) -> None:
    """What stood aside when a process died goes back to its place."""
    aside = _aside(target)
    if aside.exists() and not target.exists():
        aside.rename(target)


def write_file(path: Path, data: bytes) -> str:
    """Write and give to the disk; returns the sha256."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(data).hexdigest()


def _aside(target: Path) -> Path:
    return target.parent / f".{target.name}.old"


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
