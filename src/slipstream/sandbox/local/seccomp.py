"""The seccomp filter: the system calls that programs in a sandbox may not make.

Input: the name of a machine. Output: a classic BPF program, as the bytes that `bwrap --seccomp FD` reads. Invariants:
calls not listed here are allowed, so ordinary programs never notice; a refused call returns an error and does nothing;
calls of another architecture, whose numbers mean other things, kill the process.

The filter is a second line of defence behind the namespaces: it removes the parts of the kernel that only
administrators, debuggers and attackers use. `chmod` with setuid bits is allowed, since nothing inside can gain
privileges by executing a file. A filter sees a call's numeric arguments, not the memory they point to: so `clone3`,
whose flags are in memory, returns ENOSYS, and C libraries use `clone` instead.
"""

from __future__ import annotations

import errno
import functools
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass

Instruction = tuple[int, int, int, int]
"""Operation, jump distance if true, jump distance if false, operand."""

LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
KILL_PROCESS, REFUSE, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
NUMBER_AT, ARCH_AT, ARGS_AT, ARG_BYTES = 0, 4, 16, 8
X32_NUMBERS, NO_NUMBER = 0x40000000, 0xFFFFFFFF

NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET. NEWTIME cannot be asked of `clone`."""
PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux, 32-bit Linux, either with an old version number, and the query of the current one."""
TERMINAL_REQUESTS = (0x5412, 0x541C)
"""TIOCSTI, which types into a terminal, and TIOCLINUX, which pastes into one."""
FILE_KIND, DEVICES = 0o170000, (0o020000, 0o060000)
FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK (which tells a program its own network interfaces)."""
PRIO_USER = 2
"""PRIO_USER: all processes of a user."""
SUPERVISOR = 1
"""The process whose affinity must not change. Programs set the affinity of their own threads by thread id."""
RENAME_WHITEOUT = 4
"""Leaves a device node behind."""

SET_LEASE = 1024
"""F_SETLEASE makes others wait when they open the file; some files are shared with other sandboxes of the same user."""

X86_64: Mapping[str, int] = {
    "ioctl": 16,
    "shmget": 29,
    "socket": 41,
    "socketpair": 53,
    "clone": 56,
    "semget": 64,
    "msgget": 68,
    "fcntl": 72,
    "ptrace": 101,
    "syslog": 103,
    "mknod": 133,
    "uselib": 134,
    "personality": 135,
    "setpriority": 141,
    "sched_setparam": 142,
    "sched_setscheduler": 144,
    "vhangup": 153,
    "pivot_root": 155,
    "_sysctl": 156,
    "adjtimex": 159,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "iopl": 172,
    "ioperm": 173,
    "create_module": 174,
    "init_module": 175,
    "delete_module": 176,
    "get_kernel_syms": 177,
    "query_module": 178,
    "quotactl": 179,
    "nfsservctl": 180,
    "sched_setaffinity": 203,
    "lookup_dcookie": 212,
    "clock_settime": 227,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "ioprio_set": 251,
    "migrate_pages": 256,
    "mknodat": 259,
    "unshare": 272,
    "move_pages": 279,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "prlimit64": 302,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "clock_adjtime": 305,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "sched_setattr": 314,
    "renameat2": 316,
    "memfd_create": 319,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "open_tree_attr": 467,
}

AARCH64: Mapping[str, int] = {
    "lookup_dcookie": 18,
    "fcntl": 25,
    "ioctl": 29,
    "ioprio_set": 30,
    "mknodat": 33,
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "nfsservctl": 42,
    "vhangup": 58,
    "quotactl": 60,
    "acct": 89,
    "personality": 92,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "clock_settime": 112,
    "syslog": 116,
    "ptrace": 117,
    "sched_setparam": 118,
    "sched_setscheduler": 119,
    "sched_setaffinity": 122,
    "setpriority": 140,
    "reboot": 142,
    "settimeofday": 170,
    "adjtimex": 171,
    "msgget": 186,
    "semget": 190,
    "shmget": 194,
    "socket": 198,
    "socketpair": 199,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "clone": 220,
    "swapon": 224,
    "swapoff": 225,
    "migrate_pages": 238,
    "move_pages": 239,
    "perf_event_open": 241,
    "prlimit64": 261,
    "fanotify_init": 262,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "clock_adjtime": 266,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273,
    "sched_setattr": 274,
    "renameat2": 276,
    "memfd_create": 279,
    "bpf": 280,
    "userfaultfd": 282,
    "kexec_file_load": 294,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "open_tree_attr": 467,
}

TARGET_ARGUMENT: Mapping[str, int] = {
    "prlimit64": 0,
    "sched_setparam": 0,
    "sched_setscheduler": 0,
    "sched_setattr": 0,
    "setpriority": 1,
}
"""Calls that a process may make about itself, and the argument that names the target; 0 is the caller. With another
target they would let the agent starve the supervisor, which has the same user."""
REFUSED_BY_ARGUMENT = frozenset(
    {
        "clone",
        "personality",
        "fcntl",
        "ioctl",
        "mknod",
        "mknodat",
        "renameat2",
        "sched_setaffinity",
        "shmget",
        "socket",
        "socketpair",
    }
    | set(TARGET_ARGUMENT)
)
"""Refused only for some arguments."""
UNCOUNTED_MEMORY_CALLS = frozenset({"memfd_create", "msgget", "semget", "shmget"})
"""They allocate memory that belongs to no process and no disk of the sandbox. A control group counts it; without one
nothing does, and then these calls are refused. Programs use files in /dev/shm or /tmp instead, which the disk limit
bounds."""
ABSENT = UNCOUNTED_MEMORY_CALLS - {"shmget"} | {"clone3", "io_uring_setup", "io_uring_enter", "io_uring_register"}
"""These return ENOSYS, so that programs fall back to another way. All others return EPERM."""
SMALL_SEGMENT_BYTES = 4096
"""The largest System V shared memory segment allowed where nothing counts it: some servers use one as a lock. There can
be 4,096 of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyscallTable:
    arch: int
    """The kernel's AUDIT_ARCH_... constant."""
    numbers: Mapping[str, int]
    has_x32: bool = False
    """Whether a second set of calls, with high numbers, shares the same `arch`."""


MACHINES: Mapping[str, SyscallTable] = {
    "x86_64": SyscallTable(arch=0xC000003E, numbers=X86_64, has_x32=True),
    "aarch64": SyscallTable(arch=0xC00000B7, numbers=AARCH64),
}


@functools.cache
def program(machine: str | None = None, *, memory_is_metered: bool = True) -> bytes | None:
    """The filter for a machine, by default this one. None if its call numbers are not listed here. Without
    `memory_is_metered`, calls whose memory only a control group counts are refused too."""
    known = MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    left_out = UNCOUNTED_MEMORY_CALLS if memory_is_metered else frozenset()
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in _instructions(known, left_out))


def _instructions(machine: SyscallTable, left_out: frozenset[str]) -> list[Instruction]:
    lines: list[Instruction] = [(LOAD, 0, 0, ARCH_AT), (JUMP_EQUAL, 1, 0, machine.arch), (RETURN, 0, 0, KILL_PROCESS)]
    lines += [(LOAD, 0, 0, NUMBER_AT)]
    if machine.has_x32:
        lines += [(JUMP_EQUAL, 0, 1, NO_NUMBER), _refuse(errno.ENOSYS)]
        lines += [(JUMP_AT_LEAST, 0, 1, X32_NUMBERS), (RETURN, 0, 0, KILL_PROCESS)]
    for name, number in machine.numbers.items():
        if name in left_out:
            continue
        body = _by_argument(name) if name in REFUSED_BY_ARGUMENT else [_refuse(_error(name))]
        lines += [(JUMP_EQUAL, 0, len(body), number), *body]
    return [*lines, (RETURN, 0, 0, ALLOW)]


def _by_argument(name: str) -> list[Instruction]:
    """The instructions for a call that is refused only for some arguments. The kernel, too, uses only the lower half of
    these arguments."""
    if name == "clone":
        return [_load(0), (JUMP_ANY_BIT, 0, 1, NAMESPACE_FLAGS), _refuse(errno.EPERM), _allow()]
    if name in TARGET_ARGUMENT:
        of_users = [_load(0), (JUMP_EQUAL, 0, 1, PRIO_USER), _refuse(errno.EPERM)] if name == "setpriority" else []
        return [*of_users, _load(TARGET_ARGUMENT[name]), (JUMP_EQUAL, 1, 0, 0), _refuse(errno.EPERM), _allow()]
    if name == "sched_setaffinity":
        return [_load(0), *_if_one_of((SUPERVISOR,), _refuse(errno.EPERM)), _allow()]
    if name == "shmget":  # the size; its upper half is checked too
        upper = [(LOAD, 0, 0, ARGS_AT + ARG_BYTES + 4), (JUMP_EQUAL, 1, 0, 0), _refuse(errno.EINVAL)]
        return [*upper, _load(1), (JUMP_AT_LEAST, 0, 1, SMALL_SEGMENT_BYTES + 1), _refuse(errno.EINVAL), _allow()]
    if name == "renameat2":
        return [_load(4), (JUMP_ANY_BIT, 0, 1, RENAME_WHITEOUT), _refuse(errno.EPERM), _allow()]
    if name == "fcntl":
        return [_load(1), *_if_one_of((SET_LEASE,), _refuse(errno.EPERM)), _allow()]
    if name == "ioctl":
        return [_load(1), *_if_one_of(TERMINAL_REQUESTS, _refuse(errno.EPERM)), _allow()]
    if name in ("mknod", "mknodat"):
        kind = [_load(1 if name == "mknod" else 2), (AND, 0, 0, FILE_KIND)]
        return [*kind, *_if_one_of(DEVICES, _refuse(errno.EPERM)), _allow()]
    if name == "personality":
        return [_load(0), *_if_one_of(PERSONALITIES, _allow()), _refuse(errno.EPERM)]
    return [_load(0), *_if_one_of(FAMILIES, _allow()), _refuse(_error(name))]


def _error(name: str) -> int:
    if name in ABSENT:
        return errno.ENOSYS
    return errno.EAFNOSUPPORT if name in ("socket", "socketpair") else errno.EPERM


def _if_one_of(values: tuple[int, ...], then: Instruction) -> list[Instruction]:
    return [line for value in values for line in ((JUMP_EQUAL, 0, 1, value), then)]


def _load(argument: int) -> Instruction:
    """The lower half of an argument, which comes first on both machines."""
    return (LOAD, 0, 0, ARGS_AT + ARG_BYTES * argument)


def _refuse(number: int) -> Instruction:
    return (RETURN, 0, 0, REFUSE | number)


def _allow() -> Instruction:
    return (RETURN, 0, 0, ALLOW)
