"""The system calls of the keeper for which Python has no function. Standalone (Python 3.8+, standard library only).

Invariants: a call that fails raises OSError with what it was for.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import ctypes
import errno
import os

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 8, 0x20, 0x1000, 0x4000
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 22, 24, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL, SECCOMP_MODE_FILTER = 4, 2
CAPABILITY_VERSION = 0x20080522
PIDFD_OPEN = 434
"""The number of a call that Python 3.8 lacks, the same on every machine."""
CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220, "ppc64le": 120, "armv7l": 120, "i686": 120}
"""The number of `clone` by machine."""
BPF_BYTES = 8

libc = ctypes.PyDLL(None, use_errno=True)
"""It keeps the interpreter's lock: a fork must, and nothing else runs here."""
USED = ("capset", "mount", "pivot_root", "prctl", "syscall", "umount2", "unshare")
FORKING = ("PyOS_BeforeFork", "PyOS_AfterFork_Child", "PyOS_AfterFork_Parent")
for _name in USED + FORKING:  # found here once, and not by every fork
    getattr(libc, _name)


class Filter(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, place: str, kind: str, flags: int, options: str = "") -> None:
    result = libc.mount(os.fsencode(source), os.fsencode(place), kind.encode(), flags, os.fsencode(options))
    checked(result, f"mounting {place}")


def unmount(place: str) -> None:
    """Detach a mount; whoever uses it keeps it."""
    checked(libc.umount2(os.fsencode(place), MNT_DETACH), f"unmounting {place}")


def unshare(flags: int, what: str) -> None:
    checked(libc.unshare(flags), what)


def prctl(option: int, value: int) -> int:
    return int(libc.prctl(option, value, 0, 0, 0))


def change_root(folder: str) -> None:
    """Make a mount the root, with the old root mounted over it: a descriptor leads there, and so does `/..`."""
    os.chdir(folder)
    checked(libc.pivot_root(b".", b"."), "changing the root")


def drop_capabilities() -> None:
    """All of them, and the possibility of getting any back."""
    checked(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "dropping ambient capabilities")
    drop, number = libc.prctl, 0
    while drop(PR_CAPBSET_DROP, number) == 0:  # the kernel refuses the first that it does not know
        number += 1
    if number == 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    checked(libc.capset(header, (ctypes.c_uint32 * 6)()), "dropping capabilities")


def set_filter(instructions: bytes) -> None:
    """Install a seccomp filter for this process and all that it starts."""
    program = Filter(len(instructions) // BPF_BYTES, instructions)
    result = libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
    checked(result, "filtering system calls")


def pidfd_open(pid: int) -> int:
    fd = int(libc.syscall(PIDFD_OPEN, pid, 0))
    checked(min(fd, 0), "opening a pidfd")
    os.set_inheritable(fd, False)
    return fd


def fork_into(flags: int) -> int:
    """Like `os.fork`, with the child in new namespaces. A child of `fork` after `unshare` would need one more process
    between the two, since a pid namespace can be entered by children only."""
    number = CLONE.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"the system calls of {os.uname().machine} are not known")
    libc.PyOS_BeforeFork()
    pid = int(libc.syscall(number, flags | int(_signal.SIGCHLD), 0, 0, 0, 0))
    number = ctypes.get_errno()
    if pid == 0:
        libc.PyOS_AfterFork_Child()
        return 0
    libc.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, f"starting process 1: {os.strerror(number)}")
    return pid
