"""Opens a path inside a folder whose contents an attacker may change at the same time.

Input: the descriptor of a folder, and a path that is resolved with that folder as root. Output: a descriptor.
Invariants: nothing outside the folder is opened, whatever links, `..` and renames say; only regular files and folders
are opened for reading (FIFOs and devices are only opened with O_PATH, which has no effect on them); kernel files
(/proc, /sys and so on) are not opened either, although they claim to be regular.

The kernel resolves the path if it can (openat2 with RESOLVE_IN_ROOT); otherwise it is resolved here, one component at a
time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import platform
import stat
import struct
from collections.abc import Iterator

OPENAT2 = 437
"""The same number on every architecture."""
NO_MOUNTS, NO_MAGIC_LINKS, NO_LINKS, IN_ROOT = 0x01, 0x02, 0x04, 0x10
MAX_TRIES = 16
"""openat2 fails with EAGAIN, and can be retried, if a rename anywhere on the machine races with a `..`."""
MAX_LINKS = 40
ALWAYS = os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
PLACE = os.O_PATH | os.O_CLOEXEC
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
KERNEL_FILES = frozenset(
    {
        0x9FA0,  # proc
        0x62656572,  # sysfs
        0x27E0EB,  # cgroup
        0x63677270,  # cgroup2
        0x64626720,  # debugfs
        0x74726163,  # tracefs
        0x73636673,  # securityfs
        0x62656570,  # configfs
        0xCAFE4A11,  # bpf
        0x42494E4D,  # binfmt_misc
        0x6165676C,  # pstore
        0x1CD1,  # devpts
        0x19800202,  # mqueue
    }
)
SETGROUPS = {"x86_64": 116, "aarch64": 159, "riscv64": 159}


@functools.cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def failed(number: int, path: str | bytes = "") -> OSError:
    return OSError(number, os.strerror(number), path)


class OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@functools.cache
def _how(flags: int, links: bool, mounts: bool) -> tuple[object, int]:
    resolve = IN_ROOT | NO_MAGIC_LINKS | (0 if links else NO_LINKS) | (0 if mounts else NO_MOUNTS)
    how = OpenHow(flags, 0, resolve)
    return ctypes.byref(how), ctypes.sizeof(how)


def open_by_kernel(root_fd: int, path: bytes, flags: int, *, links: bool = True, mounts: bool = True) -> int:
    """openat2 below `root_fd`."""
    how, size = _how(flags, links, mounts)
    for _ in range(MAX_TRIES):
        fd: int = libc().syscall(OPENAT2, root_fd, path, how, size)
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            raise failed(number, path)
    return open_by_hand(root_fd, path, flags, links=links, mounts=mounts)


def open_by_hand(root_fd: int, path: bytes, flags: int, *, links: bool = True, mounts: bool = True) -> int:
    """Like `open_by_kernel`, without openat2: `..` goes back to the descriptor the folder was entered from."""
    folders = [os.dup(root_fd)]
    todo = _names(path) if path else [b""]
    num_links = 0
    try:
        while todo:
            name = todo.pop()
            last = not todo
            if name == b"..":
                if len(folders) > 1:
                    os.close(folders.pop())
                continue
            if name == b".":
                continue
            place = os.open(name, PLACE | os.O_NOFOLLOW, dir_fd=folders[-1])
            folders.append(place)  # so that it is closed whatever happens
            known = os.fstat(place)
            kind = known.st_mode
            if not mounts and known.st_dev != os.fstat(root_fd).st_dev:
                raise failed(errno.EXDEV, path)
            if stat.S_ISLNK(kind) and not (last and flags & os.O_NOFOLLOW):
                num_links += 1
                if not links or num_links > MAX_LINKS or is_kernel_file(place):
                    raise failed(errno.ELOOP, path)
                target = os.readlink(b"", dir_fd=place)
                os.close(folders.pop())
                if target.startswith(b"/"):
                    while len(folders) > 1:
                        os.close(folders.pop())
                todo += _names(target)
            elif last:
                return os.open(name, flags | os.O_NOFOLLOW, dir_fd=folders[-2])
            elif not stat.S_ISDIR(kind):
                raise failed(errno.ENOTDIR, path)
        return os.open(b".", flags, dir_fd=folders[-1])
    finally:
        for fd in folders:
            os.close(fd)


def _names(path: bytes) -> list[bytes]:
    """The components of a path, in reverse. A trailing slash becomes `.`, since it must be a folder."""
    names = [name for name in path.split(b"/") if name]
    if path.endswith(b"/"):
        names.append(b".")
    return names[::-1]


@functools.cache
def kernel_resolves() -> bool:
    """Whether openat2 is available; a container's filter may forbid it."""
    how, size = _how(PLACE, True, True)
    fd: int = libc().syscall(OPENAT2, -100, b"/", how, size)
    if fd < 0:
        return False
    os.close(fd)
    return True


def open_inside(root_fd: int, path: bytes, flags: int, *, links: bool = True, mounts: bool = True) -> int:
    """Open below `root_fd`, with O_PATH or as a folder. Raises OSError.

    Without `links`, a link anywhere in the path is an error, unless it is the last component and O_NOFOLLOW with O_PATH
    asks for the link itself. Without `mounts`, crossing into another file system is an error.
    """
    if b"\0" in path:  # the kernel would cut it there
        raise failed(errno.EINVAL, path)
    opener = open_by_kernel if kernel_resolves() else open_by_hand
    return opener(root_fd, path, flags, links=links, mounts=mounts)


def is_kernel_file(fd: int) -> bool:
    """Whether it is on one of the kernel's own file systems. Works for O_PATH descriptors."""
    buffer = ctypes.create_string_buffer(256)
    if libc().fstatfs(fd, buffer):
        raise failed(ctypes.get_errno())
    return struct.unpack_from("l", buffer)[0] & 0xFFFFFFFF in KERNEL_FILES


def open_regular(place: int) -> int:
    """Open the file behind an O_PATH descriptor for reading. Raises OSError if it is not a regular file."""
    kind = os.fstat(place).st_mode
    if stat.S_ISDIR(kind):
        raise OSError(errno.EISDIR, "not a regular file but a folder")
    if not stat.S_ISREG(kind) or is_kernel_file(place):
        raise OSError(errno.EINVAL, "not a regular file")
    return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | ALWAYS)


@contextlib.contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """Give this thread the file rights of another user, who also owns the files it creates.

    Needed if we run as root: a link inside to a file that the sandbox can see but not read (/etc/shadow of a base) must
    not be followed with our rights. Otherwise nothing changes: we already are the user who started the sandbox.
    """
    number = SETGROUPS.get(platform.machine())
    if os.geteuid() != 0:
        yield
        return
    if number is None or struct.calcsize("P") != 8:
        raise OSError(errno.ENOTSUP, f"root cannot access files as another user on {platform.machine()}")
    groups = os.getgroups()
    try:
        _set_groups(number, [])
        libc().setfsgid(gid)
        libc().setfsuid(uid)
        if libc().setfsuid(-1) != uid or libc().setfsgid(-1) != gid:
            raise failed(errno.EPERM)
        yield
    finally:
        libc().setfsuid(os.geteuid())
        libc().setfsgid(os.getegid())
        _set_groups(number, groups)


def _set_groups(number: int, groups: list[int]) -> None:
    """Only for this thread; the C library's function would change all threads."""
    array = (ctypes.c_uint32 * len(groups))(*groups)
    if libc().syscall(number, len(groups), array):
        raise failed(ctypes.get_errno())
