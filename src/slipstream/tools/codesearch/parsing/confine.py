"""Confines the parsing process: drops every privilege it does not need before it reads untrusted bytes.

A standalone module: `worker.py` loads it by path. After `confine` the process is the user nobody (if it was root), has
limits on files, processes and memory, and may make only the system calls in `ALLOWED`: all others fail with EPERM. On a
machine whose call numbers are not known here, the first two still hold.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct

NOBODY = 65534
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
KILL_PROCESS, REFUSE, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
NUMBER_AT, ARCH_AT, FIRST_ARGUMENT_AT = 0, 4, 16

ALLOWED = {
    "x86_64": (
        0xC000003E,
        # read write close fstat lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn sched_yield
        # mremap madvise exit getrlimit getrusage setrlimit futex restart_syscall clock_gettime exit_group getrandom
        (0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 28, 60, 97, 98, 160, 202, 219, 228, 231, 318),
        302,
    ),
    "aarch64": (
        0xC00000B7,
        # close lseek read write fstat exit exit_group futex clock_gettime sched_yield restart_syscall rt_sigaction
        # rt_sigprocmask rt_sigreturn getrlimit setrlimit getrusage brk munmap mremap mmap mprotect madvise getrandom
        (
            57,
            62,
            63,
            64,
            80,
            93,
            94,
            98,
            113,
            124,
            128,
            134,
            135,
            139,
            163,
            164,
            165,
            214,
            215,
            216,
            222,
            226,
            233,
            278,
        ),
        261,
    ),
}
"""By machine: its audit number, the calls, and the number of prlimit64, which is allowed for the process itself."""


def confine(max_memory_bytes: int) -> None:
    """Raises OSError if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    program = filter_of(platform.machine())
    for which, limit in (
        (resource.RLIMIT_NOFILE, 3),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, max_memory_bytes),
    ):
        resource.setrlimit(which, (limit, limit))
    if os.geteuid() == 0:  # the limit on processes does not apply to root
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    _checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if program:
        lines = ctypes.create_string_buffer(program, len(program))
        handed = struct.pack("HP", len(program) // 8, ctypes.addressof(lines))
        _checked(libc.prctl(PR_SET_SECCOMP, FILTER, handed, 0, 0))


def filter_of(machine: str) -> bytes:
    """The filter as the kernel reads it; empty if the numbers are not known."""
    if machine not in ALLOWED:
        return b""
    arch, numbers, prlimit = ALLOWED[machine]
    lines = [(LOAD, 0, 0, ARCH_AT), (JUMP_EQUAL, 1, 0, arch), (RETURN, 0, 0, KILL_PROCESS), (LOAD, 0, 0, NUMBER_AT)]
    for number in numbers:
        lines += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    own = [(LOAD, 0, 0, FIRST_ARGUMENT_AT), (JUMP_EQUAL, 0, 1, 0), (RETURN, 0, 0, ALLOW)]
    lines += [(JUMP_EQUAL, 0, len(own), prlimit), *own, (RETURN, 0, 0, REFUSE | errno.EPERM)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
