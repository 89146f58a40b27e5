"""The filter of system calls: interpreted here, and held against the kernel."""

from __future__ import annotations

import errno
import json
import platform
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.sandbox.local import seccomp
from slipstream.sandbox.local.bwrap import find_bwrap

KILL, ALLOW = 0x80000000, 0x7FFF0000
ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386, ARM = 0x40000003, 0x40000028
MACHINES = sorted(ARCHES)

on_known_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() not in ARCHES, reason="no filter for this machine"
)


def verdict(machine: str, number: int, *args: int, arch: int | None = None) -> int:
    """What the kernel would answer: the program is run on the call as the kernel describes it."""
    code = seccomp.program(machine, memory_is_metered=False)
    assert code is not None
    lines = list(struct.iter_unpack("=HBBI", code))
    padded = [value & (1 << 64) - 1 for value in [*args, 0, 0, 0, 0, 0, 0][:6]]
    call = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, ARCHES[machine] if arch is None else arch, 0, *padded)
    value, place = 0, 0
    while True:
        operation, if_true, if_false, operand = lines[place]
        place += 1
        if operation == 0x06:
            return int(operand)
        if operation == 0x20:
            assert operand % 4 == 0
            value = struct.unpack_from("<I", call, operand)[0]
        elif operation == 0x54:
            value &= operand
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[operation]
            place += if_true if holds else if_false


def refused(number: int) -> int:
    return 0x00050000 | number


PLAIN = [
    (machine, name)
    for machine in MACHINES
    for name in seccomp.MACHINES[machine].numbers
    if name not in seccomp.REFUSED_BY_ARGUMENT
]


@pytest.mark.parametrize(("machine", "name"), PLAIN)
def test_a_call_that_nobody_needs_is_refused_whatever_its_arguments(machine: str, name: str) -> None:
    is_absent = name.startswith("io_uring") or name in ("clone3", "memfd_create", "msgget", "semget")
    expected = refused(errno.ENOSYS if is_absent else errno.EPERM)
    number = seccomp.MACHINES[machine].numbers[name]
    assert verdict(machine, number) == expected
    assert verdict(machine, number, *[-1] * 6) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_the_supervisor_alone_cannot_be_bound_to_cores(machine: str) -> None:
    number = seccomp.MACHINES[machine].numbers["sched_setaffinity"]
    assert verdict(machine, number, 1) == refused(errno.EPERM)
    assert verdict(machine, number, 0) == verdict(machine, number, 2) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_segments_of_shared_memory_are_small(machine: str) -> None:
    number = seccomp.MACHINES[machine].numbers["shmget"]
    assert verdict(machine, number, 0, 4096) == ALLOW
    for size in (4097, 1 << 31, 1 << 32, (1 << 40) + 1, -1):
        assert verdict(machine, number, 0, size) == refused(errno.EINVAL)


NEEDED = [
    "mount",
    "umount2",
    "pivot_root",
    "fsopen",
    "fsmount",
    "fsconfig",
    "fspick",
    "move_mount",
    "open_tree",
    "mount_setattr",
    "setns",
    "unshare",
    "clone",
    "clone3",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "kcmp",
    "pidfd_getfd",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "keyctl",
    "add_key",
    "request_key",
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "open_by_handle_at",
    "name_to_handle_at",
    "quotactl",
    "swapon",
    "swapoff",
    "reboot",
    "acct",
    "settimeofday",
    "clock_settime",
    "adjtimex",
    "clock_adjtime",
    "syslog",
    "vhangup",
    "nfsservctl",
    "lookup_dcookie",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "personality",
    "ioctl",
    "mknodat",
    "socket",
    "socketpair",
]


@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_is_missing_from_a_table(machine: str) -> None:
    numbers = seccomp.MACHINES[machine].numbers
    assert set(NEEDED) <= set(numbers)
    assert len(set(numbers.values())) == len(numbers)
    assert {"iopl", "ioperm", "mknod"} <= set(seccomp.X86_64)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("clone", (0x11,), ALLOW),
        ("clone", (0x3D0F00,), ALLOW),  # a thread
        *(("clone", (0x11 | 1 << bit,), refused(errno.EPERM)) for bit in (17, 25, 26, 27, 28, 29, 30)),
        ("personality", (0,), ALLOW),
        ("personality", (0xFFFFFFFF,), ALLOW),
        ("personality", (0x0400000,), refused(errno.EPERM)),
        ("personality", (0x0040000,), refused(errno.EPERM)),
        ("fcntl", (0, 1), ALLOW),
        ("fcntl", (0, 1024), refused(errno.EPERM)),
        ("ioctl", (0, 0x5413), ALLOW),
        ("ioctl", (0, 0x5412), refused(errno.EPERM)),
        ("ioctl", (0, 0x541C), refused(errno.EPERM)),
        ("ioctl", (0, 0x5_0000_5412), refused(errno.EPERM)),  # the kernel drops the upper half, and so do we
        ("mknodat", (0, 0, 0o100644), ALLOW),
        ("mknodat", (0, 0, 0o010644), ALLOW),
        ("mknodat", (0, 0, 0o140644), ALLOW),
        ("mknodat", (0, 0, 0o644), ALLOW),
        ("mknodat", (0, 0, 0o020644), refused(errno.EPERM)),
        ("mknodat", (0, 0, 0o060644), refused(errno.EPERM)),
        ("mknodat", (0, 0, 1 << 32 | 0o060644), refused(errno.EPERM)),
        ("renameat2", (0, 0, 0, 0, 3), ALLOW),
        ("renameat2", (0, 0, 0, 0, 4), refused(errno.EPERM)),
        *((name, (family, 1), ALLOW) for name in ("socket", "socketpair") for family in (1, 2, 10, 16)),
        *(
            (name, (family, 1), refused(errno.EAFNOSUPPORT))
            for name in ("socket", "socketpair")
            for family in (0, 17, 31, 38, 40, 44)
        ),
    ],
)
def test_some_calls_are_refused_by_their_arguments(
    machine: str, name: str, args: tuple[int, ...], expected: int
) -> None:
    assert verdict(machine, seccomp.MACHINES[machine].numbers[name], *args) == expected


def test_mknod_has_its_mode_one_place_earlier() -> None:
    assert verdict("x86_64", seccomp.X86_64["mknod"], 0, 0o020600) == refused(errno.EPERM)
    assert verdict("x86_64", seccomp.X86_64["mknod"], 0, 0o010600, 0o020600) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
@given(number=st.integers(0, 0x3FFFFFFF), args=st.lists(st.integers(0, (1 << 64) - 1), max_size=6))
def test_a_call_that_is_not_named_is_allowed(machine: str, number: int, args: list[int]) -> None:
    if number not in seccomp.MACHINES[machine].numbers.values():
        assert verdict(machine, number, *args) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
@given(number=st.integers(0, 0xFFFFFFFF), arch=st.sampled_from([0, I386, ARM, *ARCHES.values()]))
def test_calls_of_another_architecture_end_the_process(machine: str, number: int, arch: int) -> None:
    if arch != ARCHES[machine]:
        assert verdict(machine, number, arch=arch) == KILL


def test_calls_of_the_x32_kind_end_the_process() -> None:
    assert verdict("x86_64", 0x40000000) == verdict("x86_64", 0x40000000 | 165) == KILL
    assert verdict("x86_64", -1) == refused(errno.ENOSYS)


def test_an_unknown_machine_has_no_filter() -> None:
    assert seccomp.program("vax") is None


@pytest.mark.parametrize(
    ("table", "header"),
    [
        (seccomp.X86_64, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        (seccomp.AARCH64, "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_the_numbers_are_those_of_the_kernels_headers(table: dict[str, int], header: str) -> None:
    if not Path(header).exists():
        pytest.skip("no kernel headers here")
    told = dict(re.findall(r"#define __NR3?(?:264)?_(\w+)\s+(\d+)", Path(header).read_text()))
    assert {name: int(told[name]) for name in table if name in told} == {
        name: number for name, number in table.items() if name in told
    }
    assert len(set(table) - set(told)) < 8  # headers are older or newer than the tables, by a few calls


# ---------------------------------------------------------------- in the kernel


UNDER_FILTER = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
code = bytes.fromhex(sys.argv[1])
lines = ctypes.create_string_buffer(code, len(code))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("lines", ctypes.c_void_p)]
filter = Program(len(code) // 8, ctypes.addressof(lines))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(filter), 0, 0) == 0, ctypes.get_errno()
def call(number, *args):
    ctypes.set_errno(0)
    padded = [ctypes.c_long(value) for value in (*args, 0, 0, 0, 0, 0, 0)[:6]]
    libc.syscall(ctypes.c_long(number), *padded)
    return ctypes.get_errno()
"""


def under_filter(body: str, *args: str, memory_is_metered: bool = True) -> subprocess.CompletedProcess[str]:
    code = seccomp.program(memory_is_metered=memory_is_metered)
    assert code is not None
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [sys.executable, "-c", UNDER_FILTER + body, code.hex(), *args],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=folder,
            start_new_session=True,
        )


@on_known_linux
def test_the_kernel_refuses_each_call_with_its_error() -> None:
    numbers = seccomp.MACHINES[platform.machine()].numbers
    plain = {name: [number, *[-1] * 6] for name, number in numbers.items() if name not in seccomp.REFUSED_BY_ARGUMENT}
    result = under_filter(
        "print(json.dumps({name: call(*args) for name, args in json.loads(sys.argv[2]).items()}))",
        json.dumps(plain),
        memory_is_metered=False,
    )
    assert result.returncode == 0, result.stderr
    expected = {name: errno.ENOSYS if name in seccomp.ABSENT else errno.EPERM for name in plain}
    assert json.loads(result.stdout) == expected


@on_known_linux
def test_the_kernel_refuses_by_argument() -> None:
    body = """
numbers = json.loads(sys.argv[2])
import socket, stat
os.mkfifo("fifo"); os.mknod("file"); os.mknod("socket", stat.S_IFSOCK | 0o600); os.rename("fifo", "fifo2")
def error(function, *args):
    try:
        function(*args)
    except OSError as raised:
        return raised.errno
    return 0
said = {"device": error(os.mknod, "null", stat.S_IFCHR | 0o600, 0), "block": error(os.mknod, "b", stat.S_IFBLK, 1)}
said["packet"] = error(socket.socket, 17, socket.SOCK_RAW)
said["vsock"] = error(socket.socket, 40, socket.SOCK_STREAM)
said["namespace"] = call(numbers["clone"], 0x10000000 | 17)
said["randomize"] = call(numbers["personality"], 0x40000)
said["asked"] = call(numbers["personality"], 0xFFFFFFFF)
said["typed"] = call(numbers["ioctl"], 0, 0x5412, 0)
said["whiteout"] = call(numbers["renameat2"], -100, 0, -100, 0, 4)
socket.socketpair()
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
    error(lambda: socket.socket(family).close())
print(json.dumps(said))
"""
    result = under_filter(body, json.dumps(dict(seccomp.MACHINES[platform.machine()].numbers)))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {
        "device": errno.EPERM,
        "block": errno.EPERM,
        "packet": errno.EAFNOSUPPORT,
        "vsock": errno.EAFNOSUPPORT,
        "namespace": errno.EPERM,
        "randomize": errno.EPERM,
        "asked": 0,
        "typed": errno.EPERM,
        "whiteout": errno.EPERM,
    }


@on_known_linux
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86 alone has a second and a third kind of call")
def test_the_other_kinds_of_call_end_the_process() -> None:
    x32 = under_filter("call(0x40000000 | 39); print('lived')")
    assert (x32.returncode, x32.stdout) == (-signal.SIGSYS, "")
    body = """
import mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20; int 0x80; ret: getpid of 32-bit programs
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print('lived')
"""
    i386 = under_filter(body)
    assert i386.stdout == ""
    assert i386.returncode in (-signal.SIGSYS, -signal.SIGSEGV)  # the latter where the kernel has none of them


ORDINARY = {
    "threads": """
import threading
seen = []
threads = [threading.Thread(target=seen.append, args=(i,)) for i in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert sorted(seen) == list(range(8))
""",
    "subprocess": """
import subprocess
assert subprocess.run(["bash", "-c", "echo $(echo a | tr a b); (exit 3)"], capture_output=True).stdout == b"b\\n"
assert subprocess.run(["bash", "-c", "sleep 0 & wait; ls -la / | sort | tail -1 >/dev/null"]).returncode == 0
""",
    "multiprocessing": """
import multiprocessing
for method in ("fork", "spawn"):
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
""",
    "sockets": """
import asyncio, socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
server.accept()[0].sendall(b"hi")
assert client.recv(2) == b"hi"
assert socket.getaddrinfo("127.0.0.1", 80) and socket.if_nameindex()
async def main():
    process = await asyncio.create_subprocess_exec("true")
    assert await process.wait() == 0
asyncio.run(main())
""",
    "git": """
import subprocess
steps = "git init -q . && git config user.email a@b && git config user.name a && echo x > f && git add f && "
subprocess.run(["bash", "-c", steps + "git commit -qm x && git gc -q && git log --oneline"], check=True)
""",
    "files": """
import mmap, os, shutil, tempfile
os.memfd_create("x"); os.mkfifo("p"); os.symlink("p", "l"); os.link("p", "h")
open("f", "w").write("x"); shutil.copy2("f", "g"); os.chmod("f", 0o755)
mmap.mmap(-1, 4096); os.sched_getaffinity(0); os.getrandom(4); os.pidfd_open(os.getpid())
""",
}


@on_known_linux
@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_programs_work(name: str) -> None:
    if name == "git" and shutil.which("git") is None:
        pytest.skip("no git here")
    result = under_filter(
        f"body = {ORDINARY[name]!r}\nopen('main.py', 'w').write(body)\nexec(compile(body, 'main.py', 'exec'))"
    )
    assert result.returncode == 0, result.stderr


@on_known_linux
def test_bwrap_takes_the_filter() -> None:
    code = seccomp.program()
    assert code is not None
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(code)
        ours.shutdown(socket.SHUT_WR)
        script = "grep -E '^Seccomp:' /proc/self/status; unshare --user true 2>/dev/null || echo refused"
        command = [str(find_bwrap().path), "--unshare-user", "--ro-bind", "/", "/", "--proc", "/proc"]
        command += ["--seccomp", str(theirs.fileno()), "--", "bash", "-c", script]
        result = subprocess.run(command, pass_fds=[theirs.fileno()], capture_output=True, text=True, timeout=60)
    assert result.stdout.split() == ["Seccomp:", "2", "refused"], result.stderr
