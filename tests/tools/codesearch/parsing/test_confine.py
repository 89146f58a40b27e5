"""What the parsing process may do once it is confined: compute, read its input, write its output, and end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from slipstream.tools.codesearch.parsing import confine

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="filters of system calls are Linux's")

PROGRAM = """
import importlib.util, os, signal, socket, subprocess, sys, threading, ctypes, mmap, resource
spec = importlib.util.spec_from_file_location("confine", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
libc = ctypes.CDLL(None)
uid = os.getresuid
parent = os.getppid()
tries = {
    "fork": os.fork,
    "thread": lambda: threading.Thread(target=print).start(),
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "open": lambda: os.open("/etc/passwd", os.O_RDONLY),
    "create": lambda: os.open("/tmp/x", os.O_CREAT | os.O_WRONLY),
    "delete": lambda: os.unlink("/tmp/x"),
    "list": lambda: os.listdir("/"),
    "look": lambda: os.stat("/"),
    "socket": lambda: socket.socket(socket.AF_INET),
    "socket pair": socket.socketpair,
    "signal": lambda: os.kill(parent, 0),
    "limits of others": lambda: resource.prlimit(parent, resource.RLIMIT_CPU),
    "memory file": lambda: os.memfd_create("x"),
    "pipe": os.pipe,
    "chdir": lambda: os.chdir("/tmp"),
    "chroot": lambda: os.chroot("/"),
    "become root": lambda: os.setuid(0),
    "namespace": lambda: 1 / (libc.unshare(0x10000000) + 1),
    "trace": lambda: 1 / (libc.ptrace(0, 0, 0, 0) + 1),
}
module.confine(2 << 30)
done = []
for name, attempt in tries.items():
    try:
        attempt()
        done.append(name)
    except (OSError, RuntimeError, ZeroDivisionError):
        pass
x = [bytearray(1 << 20) for _ in range(64)]
sys.stdout.write(repr(done))
sys.stdout.flush()
"""
IS_FILTERED = os.uname().machine in confine.ALLOWED


def confined(program: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", "-c", program, confine.__file__]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(not IS_FILTERED, reason="the numbers of this machine's calls are not known")
def test_a_confined_process_can_do_nothing_but_compute() -> None:
    ended = confined(PROGRAM)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[]", "")


def test_it_is_not_root_and_starts_no_process_even_without_the_filter() -> None:
    unfiltered = PROGRAM.replace("module.confine(", "module.ALLOWED.clear(); module.confine(")
    shown = unfiltered.replace("repr(done)", 'repr((0 in uid(), [name for name in done if name in ("fork", "open")]))')
    ended = confined(shown.replace('"exec"', '"nothing": int, "skipped"').replace("os.execv", "str.join"))
    assert (ended.returncode, ended.stdout) == (0, "(False, [])"), ended.stderr


def test_filters_are_made_for_both_machines_and_refuse_the_rest() -> None:
    assert confine.filter_of("riscv64") == b""
    for machine in confine.ALLOWED:
        program = confine.filter_of(machine)
        assert len(program) % 8 == 0
        assert program[-8:] == bytes([6, 0, 0, 0, 1, 0, 5, 0]), "what is not named is refused with EPERM"
