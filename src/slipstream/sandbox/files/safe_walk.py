"""Reading and writing the files of a sandbox from outside, through a descriptor of its root.

Input: the descriptor, and paths that are taken below it, whether or not they begin with a slash. Output: bytes,
`FileTree`s and listings, as data. Invariants: what `safe_open.py` says of opening; no program runs; files that vanish,
grow or change their kind while they are read are left out or are an error, never a hang; time and memory are bounded
by the arguments, however many files there are and however deep they lie. Nothing here waits for another, so it belongs
into a thread.

Names that are not UTF-8 come as `os.fsdecode` gives them.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.errors import SandboxFileError, SandboxLimitError
from slipstream.sandbox.files.safe_open import FOLDER, MAX_LINKS, PLACE, is_kernel_file, open_inside, open_regular
from slipstream.types import File, FileTree

READ_BYTES = 1 << 20
MAX_ENTRIES = 200_000
MAX_DEPTH = 256
LIMIT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


class Stat(NamedTuple):
    """What is known of a file without opening it. `ctime_ns` is the one that programs inside cannot set."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All that lies below a folder and is no folder itself."""

    entries: list[Stat]
    """In no order."""
    left_out: dict[str, str]
    """Folders that were not looked into, and why."""


# ---------------------------------------------------------------- reading


@contextmanager
def told(path: str) -> Iterator[None]:
    """Errors as the agent should read them."""
    try:
        yield
    except OSError as error:
        kind = SandboxLimitError if error.errno in LIMIT_ERRNOS else SandboxFileError
        raise kind(f"{shown(path)}: {_why(error)}") from error
    except ValueError as error:
        raise SandboxFileError(f"{shown(path)}: not a path: {error}") from error


def shown(path: str) -> str:
    """A path in a message: what cannot be printed is spelt out."""
    return path if path.isprintable() else repr(path)


def _why(error: OSError) -> str:
    if error.errno == errno.EAGAIN:
        return "a program inside holds a lease on it"
    return error.strerror or str(error)


def read_file(root_fd: int, path: str, max_bytes: int) -> bytes:
    """The bytes of a regular file; links are followed inside. Raises SandboxFileError."""
    with told(path):
        place = open_inside(root_fd, os.fsencode(path), PLACE)
        try:
            data = _read(place, max_bytes)
        finally:
            os.close(place)
    if data is None:
        raise SandboxFileError(f"{shown(path)}: larger than {max_bytes} bytes")
    return data


def _read(place: int, max_bytes: int) -> bytes | None:
    """The bytes of what an O_PATH descriptor stands for; None if there are too many."""
    fd = open_regular(place)
    try:
        size = os.fstat(fd).st_size
        if size > max_bytes:
            return None
        data = os.read(fd, min(size + 1, READ_BYTES))
        if len(data) == size:  # it was read beyond its end, and did not grow
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
    """The files and links below a folder, as `Sandbox.read_tree` says; links count as files. Folders named in `skip`
    are not entered. Raises SandboxFileError."""
    with told(path):
        folder = open_inside(root_fd, os.fsencode(path), FOLDER)
    try:
        listing = list_folder(folder, skip, max_entries)
        return read_entries(folder, listing, max_bytes, max_files)
    finally:
        os.close(folder)


def read_entries(folder: int, listing: Listing, max_bytes: int, max_files: int) -> FileTree:
    """Read what was listed below an open folder, as far as it fits, in the order of the paths."""
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
            left_out[path] = f"{entry.size} bytes do not fit into {max_bytes} in all"
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
                left_out[path] = f"it grew, and does not fit into {max_bytes} bytes in all"
            else:
                files[path] = found
                room -= len(found.data)
    return FileTree(files=files, links=links, left_out=left_out)


def _read_entry(folder: int, path: str, max_bytes: int) -> File | str | None:
    """A file, the target of a link, or None for what is too large. No link on the way is followed."""
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
    """What lies below a folder, without a look into any file. Raises SandboxFileError."""
    with told(path):
        folder = open_inside(root_fd, os.fsencode(path), FOLDER)
    try:
        return list_folder(folder, skip, max_entries)
    finally:
        os.close(folder)


def list_folder(folder: int, skip: Collection[str], max_entries: int, folders: set[str] | None = None) -> Listing:
    """What lies below an open folder. Into `folders` go the paths of those entered.

    One descriptor at a time: each folder is opened by its path from the first, with no link on the way.
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
            left_out |= dict.fromkeys([path or ".", *todo], f"more than {max_entries} names in all")
            break
    return Listing(entries=entries, left_out=left_out)


def _open_folder(folder: int, path: str) -> int:
    if path.count("/") >= MAX_DEPTH:
        raise OSError(errno.ELOOP, f"deeper than {MAX_DEPTH} folders")
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
        raise OSError(errno.EACCES, "a folder of the kernel's")
    return fd


def _look_into(
    fd: int, prefix: str, skip: Collection[str], entries: list[Stat], folders: list[str], max_entries: int
) -> int:
    """Add what one folder holds to the lists; how many names that were."""
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


# ---------------------------------------------------------------- writing


def write_files(root_fd: int, files: Mapping[str, File]) -> None:
    """Write files, making folders as needed and replacing what is there; a link is written through, inside.

    Each file comes to its place by a rename, whole or not at all. Raises SandboxFileError, and SandboxLimitError if the
    disk is full; those before it are written then.
    """
    for path, file in files.items():
        with told(path):
            folder, name = _place_for(root_fd, os.fsencode(path))
            try:
                _put(folder, name, file)
            finally:
                os.close(folder)


def _place_for(root_fd: int, path: bytes) -> tuple[int, bytes]:
    """The folder in which a file is to be made, and its name there."""
    for _ in range(MAX_LINKS):
        above, _, name = path.rpartition(b"/")
        if name in (b"", b".", b".."):
            raise OSError(errno.EISDIR, "not the path of a file")
        folder = _make_folders(root_fd, above)
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(mode) else b""
        except FileNotFoundError:
            return folder, name
        except BaseException:
            os.close(folder)
            raise
        if stat.S_ISREG(mode):
            return folder, name
        os.close(folder)
        if not target:
            raise OSError(errno.EINVAL, "not a regular file")
        path = target if target.startswith(b"/") else (above or b".") + b"/" + target
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _make_folders(root_fd: int, path: bytes) -> int:
    """Open a folder, and make what is missing of it."""
    missing: list[bytes] = []
    while True:
        try:
            fd = open_inside(root_fd, path or b".", FOLDER)
            break
        except FileNotFoundError:
            path, _, name = path.rpartition(b"/")
            missing.append(name)
            if name == b".." or not (path or name):
                raise
    for name in reversed(missing):
        try:
            if name not in (b"", b"."):
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=fd)
                below = open_inside(fd, name, FOLDER | os.O_NOFOLLOW, links=False)
                os.close(fd)
                fd = below
        except BaseException:
            os.close(fd)
            raise
    return fd


def _put(folder: int, name: bytes, file: File) -> None:
    if is_kernel_file(folder):
        raise OSError(errno.EACCES, "not a place for files")
    temporary = b".slipstream-" + secrets.token_hex(8).encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        try:
            view = memoryview(file.data)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, file.mode & 0o777)
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
