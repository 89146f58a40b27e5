"""Reads a sandbox's files from outside, through a descriptor of its root.

Input: the descriptor, and paths relative to it, with or without a leading slash. Output: bytes, `FileTree`s and
listings. Invariants: opening is as safe as in `safe_open.py`; no program runs; files that vanish, grow or change their
type while they are read are left out or are an error, never a hang; time and memory are bounded by the arguments,
however many files there are and however deep. Everything blocks; call it in a thread.

Names that are not UTF-8 are decoded with `os.fsdecode`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.errors import SandboxFileError, SandboxLimitError
from slipstream.sandbox.files.safe_open import FOLDER, PLACE, is_kernel_file, open_inside, open_regular
from slipstream.types import File, FileTree

READ_BYTES = 1 << 20
MAX_ENTRIES = 200_000
MAX_DEPTH = 256
LIMIT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


class Stat(NamedTuple):
    """A file's metadata, without opening it. Programs inside cannot set `ctime_ns`."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Everything below a folder, except folders."""

    entries: list[Stat]
    """In no order."""
    left_out: dict[str, str]
    """Folders that were not read, and why."""


# ---------------------------------------------------------------- reading


@contextmanager
def sandbox_file_errors(path: str) -> Iterator[None]:
    """Turns OSError and ValueError into errors that the agent reads."""
    try:
        yield
    except OSError as error:
        kind = SandboxLimitError if error.errno in LIMIT_ERRNOS else SandboxFileError
        raise kind(f"{printable_path(path)}: {_why(error)}") from error
    except ValueError as error:
        raise SandboxFileError(f"{printable_path(path)}: not a path: {error}") from error


def printable_path(path: str) -> str:
    """A path for a message, with unprintable characters escaped."""
    return path if path.isprintable() else repr(path)


def _why(error: OSError) -> str:
    if error.errno == errno.EAGAIN:
        return "a program inside has a lease on it"
    return error.strerror or str(error)


def read_file(root_fd: int, path: str, max_bytes: int) -> bytes:
    """The bytes of a regular file; links are followed inside. Raises SandboxFileError."""
    with sandbox_file_errors(path):
        place = open_inside(root_fd, os.fsencode(path), PLACE)
        try:
            data = _read(place, max_bytes)
        finally:
            os.close(place)
    if data is None:
        raise SandboxFileError(f"{printable_path(path)}: larger than {max_bytes} bytes")
    return data


def _read(place: int, max_bytes: int) -> bytes | None:
    """The content of the file behind an O_PATH descriptor; None if it is too large."""
    fd = open_regular(place)
    try:
        size = os.fstat(fd).st_size
        if size > max_bytes:
            return None
        data = os.read(fd, min(size + 1, READ_BYTES))
        if len(data) == size:  # read past the end: it did not grow
            return data
        pieces, num_bytes = [data], len(data)
        while data and num_bytes <= max_bytes:
            data = os.read(fd, min(READ_BYTES, max_bytes + 1 - num_bytes))
            pieces.append(data)
            num_bytes += len(data)
        return None if num_bytes > max_bytes else b"".join(pieces)
    finally:
        os.close(fd)


def read_tree(
    root_fd: int,
    path: str,
    max_bytes: int = 64 << 20,
    max_files: int = 10_000,
    *,
    skip: Collection[str] = (),
    max_entries: int = MAX_ENTRIES,
) -> FileTree:
    """The files and links below a folder, like `Sandbox.read_tree`; links count as files. Folders named in `skip` are
    not entered. Raises SandboxFileError."""
    with sandbox_file_errors(path):
        folder = open_inside(root_fd, os.fsencode(path), FOLDER)
    try:
        listing = list_folder(folder, skip, max_entries)
        return read_entries(folder, listing, max_bytes, max_files)
    finally:
        os.close(folder)


def read_entries(folder: int, listing: Listing, max_bytes: int, max_files: int) -> FileTree:
    """Read the listed entries of an open folder in path order, as far as they fit."""
    files: dict[str, File] = {}
    links: dict[str, str] = {}
    left_out = dict(listing.left_out)
    room = max_bytes
    for entry in sorted(listing.entries):
        path, mode = entry.path, entry.mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            left_out[path] = _kind(mode)
        elif len(files) + len(links) >= max_files:
            left_out[path] = f"more than {max_files} files"
        elif entry.size > room:
            left_out[path] = f"its {entry.size} bytes exceed the total of {max_bytes}"
        else:
            try:
                found = _read_entry(folder, path, room)
            except OSError as error:
                left_out[path] = _why(error)
                continue
            if isinstance(found, str):
                links[path] = found
                room -= len(os.fsencode(found))
            elif found is None:
                left_out[path] = f"it grew and exceeds the total of {max_bytes} bytes"
            else:
                files[path] = found
                room -= len(found.data)
    return FileTree(files=files, links=links, left_out=left_out)


def _read_entry(folder: int, path: str, max_bytes: int) -> File | str | None:
    """A file, the target of a link, or None if it is too large. Follows no link in the path."""
    place = open_inside(folder, os.fsencode(path), PLACE | os.O_NOFOLLOW, links=False)
    try:
        mode = os.fstat(place).st_mode
        if stat.S_ISLNK(mode):
            return os.fsdecode(os.readlink(b"", dir_fd=place))
        data = _read(place, max_bytes)
        return None if data is None else File(data=data, mode=mode & 0o777)
    finally:
        os.close(place)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    return kinds.get(stat.S_IFMT(mode), "not a regular file")


# ---------------------------------------------------------------- listing


def stat_tree(root_fd: int, path: str, *, skip: Collection[str] = (), max_entries: int = MAX_ENTRIES) -> Listing:
    """List what is below a folder, without opening files. Raises SandboxFileError."""
    with sandbox_file_errors(path):
        folder = open_inside(root_fd, os.fsencode(path), FOLDER)
    try:
        return list_folder(folder, skip, max_entries)
    finally:
        os.close(folder)


def list_folder(folder: int, skip: Collection[str], max_entries: int, folders: set[str] | None = None) -> Listing:
    """List what is below an open folder. The paths of entered folders are added to `folders`.

    Uses one descriptor at a time: each folder is opened by its path from the first, without following links.
    """
    entries: list[Stat] = []
    left_out: dict[str, str] = {}
    todo = [""]
    num_left = max_entries
    while todo:
        path = todo.pop()
        try:
            fd = _open_folder(folder, path)
        except OSError as error:
            left_out[path or "."] = _why(error)
            continue
        try:
            num_left -= _look_into(fd, f"{path}/" if path else "", skip, entries, todo, num_left)
            if folders is not None and path:
                folders.add(path)
        except OSError as error:
            left_out[path or "."] = _why(error)
        finally:
            os.close(fd)
        if num_left <= 0:
            left_out |= dict.fromkeys([path or ".", *todo], f"more than {max_entries} names in total")
            break
    return Listing(entries=entries, left_out=left_out)


def _open_folder(folder: int, path: str) -> int:
    if path.count("/") >= MAX_DEPTH:
        raise OSError(errno.ELOOP, f"nested deeper than {MAX_DEPTH} folders")
    name = os.fsencode(path) or b"."
    try:
        if path:
            return open_inside(folder, name, FOLDER | os.O_NOFOLLOW, links=False, mounts=False)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    fd = open_inside(folder, name, FOLDER | os.O_NOFOLLOW, links=False)
    if is_kernel_file(fd):
        os.close(fd)
        raise OSError(errno.EACCES, "a kernel folder")
    return fd


def _look_into(
    fd: int, prefix: str, skip: Collection[str], entries: list[Stat], folders: list[str], max_entries: int
) -> int:
    """Add one folder's entries to the lists; returns the number of names."""
    num_seen = 0
    with os.scandir(fd) as found:
        for entry in found:
            if num_seen >= max_entries:
                break
            num_seen += 1
            name = entry.name
            if entry.is_dir(follow_symlinks=False):
                if name not in skip:
                    folders.append(prefix + name)
                continue
            try:
                known = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            entries.append(
                Stat(
                    prefix + name,
                    known.st_size,
                    known.st_mtime_ns,
                    known.st_ctime_ns,
                    known.st_ino,
                    known.st_mode,
                )
            )
    return num_seen
