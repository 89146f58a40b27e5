"""Copies a folder of the user into a layer, so that the sandboxes' user owns the copy.

Input: descriptors of both folders. Invariants: files are read with our own rights and written with the other user's;
links are copied as links; anything that is not a file, link or folder is skipped.

The source is trusted: it does not belong to an agent. Blocks; call it in a thread.
"""

from __future__ import annotations

import os
import stat

from slipstream.sandbox.files.safe_open import acting_as

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
COPY_BYTES = 1 << 24


def copy_tree(source_fd: int, target_fd: int, *, uid: int, gid: int) -> None:
    """Copy a folder's contents into an empty folder. Raises OSError."""
    todo = [_Open(os.dup(source_fd), os.dup(target_fd))]
    """The path from the top to the current folder: descriptors grow with depth only."""
    try:
        while todo:
            folder = todo[-1]
            if not folder.names:
                todo.pop().close()
                continue
            below = _copy(folder.names.pop(), folder.source, folder.target, uid, gid)
            if below is not None:
                todo.append(_Open(*below))
    finally:
        for folder in todo:
            folder.close()


class _Open:
    """A folder being copied: both sides, and the names left to copy. Owns both descriptors."""

    def __init__(self, source: int, target: int) -> None:
        self.source, self.target = source, target
        try:
            with os.scandir(source) as entries:
                self.names = sorted((entry.name for entry in entries), reverse=True)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self.source)
        os.close(self.target)


def _copy(name: str, here: int, there: int, uid: int, gid: int) -> tuple[int, int] | None:
    """Copy one entry. A folder is created empty, and its (source, target) descriptors are returned."""
    facts = os.stat(name, dir_fd=here, follow_symlinks=False)
    mode = stat.S_IMODE(facts.st_mode)
    if stat.S_ISLNK(facts.st_mode):
        target = os.readlink(name, dir_fd=here)
        with acting_as(uid, gid):
            os.symlink(target, name, dir_fd=there)
    elif stat.S_ISREG(facts.st_mode):
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
        try:
            with acting_as(uid, gid):
                _write(source, name, there, facts)
        finally:
            os.close(source)
    elif stat.S_ISDIR(facts.st_mode):
        source = os.open(name, FOLDER, dir_fd=here)
        try:
            with acting_as(uid, gid):
                os.mkdir(name, 0o700, dir_fd=there)
                target_fd = os.open(name, FOLDER, dir_fd=there)
                os.fchmod(target_fd, mode | stat.S_IRWXU)
        except BaseException:
            os.close(source)
            raise
        return source, target_fd
    return None


def _write(source: int, name: str, there: int, facts: os.stat_result) -> None:
    target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=there)
    try:
        while os.sendfile(target, source, None, COPY_BYTES):
            pass
        os.fchmod(target, stat.S_IMODE(facts.st_mode) & ~(stat.S_ISUID | stat.S_ISGID))
        os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    finally:
        os.close(target)
