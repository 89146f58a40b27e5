"""Copies files into layers: from the host, and from one layer to another. Standalone (Python 3.8+, standard library
only).

Invariants: no link in an agent's files is followed; what cannot be copied is skipped, unless there is no room.
"""

# ruff: noqa: PTH120

from __future__ import annotations

import errno
import os
import stat

COPY_BYTES = 1 << 20
OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""These fail a copy; any other error only skips one entry."""
OVERLAY_XATTRS = ("user.overlay.opaque", "user.overlay.redirect", "user.overlay.metacopy")
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def copy_of_host(path: str, target: str) -> None:
    """Copy a host path; skipped if it does not exist or is not readable."""
    folder, name = os.path.split(path)
    try:
        here = os.open(folder, FOLDER)
    except OSError:
        return
    there = os.open(os.path.dirname(target), FOLDER)
    try:
        below = copy_entry(name, here, there)
        if below:
            copy_folder(*below)
            for fd in below:
                os.close(fd)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EACCES):
            raise
    finally:
        os.close(here)
        os.close(there)


def copy_folder(source: int, target: int) -> None:
    """Copy a folder's files, links, folders and overlay whiteouts into another; skips everything else.

    The files belong to an agent and may change while they are read.
    """
    copy_marks(source, target)
    todo = [(os.dup(source), os.dup(target), names_in(source))]
    """The path from the top to the current folder, with the names left to copy: descriptors grow with depth only."""
    try:
        while todo:
            here, there, names = todo[-1]
            if not names:
                todo.pop()
                os.close(here)
                os.close(there)
                continue
            try:
                below = copy_entry(names.pop(), here, there)
            except OSError as error:
                if error.errno in OUT_OF_ROOM:
                    raise
                continue  # it vanished or changed its type
            if below:
                todo.append((*below, []))
                todo[-1][2].extend(names_in(below[0]))
    except OSError:
        for here, there, _ in todo:
            os.close(here)
            os.close(there)
        raise


def names_in(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def copy_entry(name: str, here: int, there: int) -> tuple[int, int] | None:
    """Copy one entry. A folder is created empty, and its (source, target) descriptors are returned."""
    facts = os.stat(name, dir_fd=here, follow_symlinks=False)
    mode = stat.S_IMODE(facts.st_mode)
    if stat.S_ISLNK(facts.st_mode):
        os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
    elif stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0:
        os.mknod(name, stat.S_IFCHR, 0, dir_fd=there)
    elif stat.S_ISREG(facts.st_mode):
        copy_file(name, here, there, facts)
    elif stat.S_ISDIR(facts.st_mode):
        source = os.open(name, FOLDER, dir_fd=here)
        try:
            os.mkdir(name, 0o700, dir_fd=there)
            target = os.open(name, FOLDER, dir_fd=there)
        except OSError:
            os.close(source)
            raise
        os.fchmod(target, mode)
        copy_marks(source, target)
        return source, target
    return None


def copy_file(name: str, here: int, there: int, facts: os.stat_result) -> None:
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            return
        target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=there)
        try:
            while os.sendfile(target, source, None, COPY_BYTES):
                pass
            os.fchmod(target, stat.S_IMODE(facts.st_mode))
            os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        finally:
            os.close(target)
    finally:
        os.close(source)


def copy_marks(source: int, target: int) -> None:
    for name in OVERLAY_XATTRS:
        try:
            value = os.getxattr(source, name)
        except OSError:
            continue
        os.setxattr(target, name, value)
