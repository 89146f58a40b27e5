"""Files and folders that appear complete or not at all, and that survive a power cut.

Each is written beside its place, flushed to disk, then renamed into it. Invariants: what was at the place stays there,
or comes back, if anything fails; what a killed process leaves behind is named `.NAME.part-*`, and for folders the next
process that writes the same place removes it.
"""

from __future__ import annotations

import fcntl
import glob
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and flush it to disk, in place: for files inside a folder that is not there yet."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Where to write a file that becomes `path` if the block ends well."""
    part = path.with_name(f"{_prefix(path)}{secrets.token_hex(4)}")
    try:
        yield part
        sync(part)
        part.replace(path)
        sync(path.parent)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """An empty folder that becomes `path` if the block ends well. Its files are not flushed one by one."""
    with scratch_folder(path) as scratch:
        part = scratch / path.name
        part.mkdir()
        yield part
        replace_folder(part, path)


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path`, on the same disk, that is removed at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    folder, descriptor = _locked_folder(path)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def replace_folder(new: Path, path: Path) -> None:
    """Rename the folder `new` to `path`. What is there is moved aside, and restored if the renaming fails."""
    sync(new)
    aside = _aside(path)
    if path.exists():
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
    try:
        new.rename(path)
    finally:
        recover_folder(path)
    sync(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def recover_folder(path: Path) -> None:
    """Restore what was moved aside, if a process died while it replaced the folder."""
    aside = _aside(path)
    if aside.exists() and not path.exists():
        aside.rename(path)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _prefix(path: Path) -> str:
    return f".{path.name}.part-"


def _locked_folder(path: Path) -> tuple[Path, int]:
    """A new folder, and the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_prefix(path), dir=path.parent))
        with suppress(FileNotFoundError):  # another process took it for abandoned before it was locked
            descriptor = os.open(folder, os.O_RDONLY)
            with suppress(OSError):  # a disk without locks: what a kill leaves there is not removed
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.exists():
                return folder, descriptor
            os.close(descriptor)


def _remove_abandoned(path: Path) -> None:
    """Remove what killed processes left: nobody holds its lock."""
    for folder in path.parent.glob(f"{glob.escape(_prefix(path))}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
