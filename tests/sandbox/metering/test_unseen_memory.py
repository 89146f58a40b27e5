"""Memory that lies in no process: where no control group counts it, a sandbox cannot have it or the watchdog counts."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import sys

import pytest

from slipstream.errors import SandboxBroken
from slipstream.sandbox import LocalProvider
from slipstream.sandbox.base import ExecResult
from slipstream.sandbox.local import seccomp
from slipstream.sandbox.local.sandbox import LocalSandbox
from slipstream.sandbox.metering.meter import Meters
from slipstream.sandbox.metering.watchdog import FREE_SOCKETS, KIND, socket_memory_mb
from slipstream.types import SandboxLimits, SandboxSpec

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() not in seccomp.MACHINES,
    reason="the filter is for Linux on known machines",
)

LIMITS = SandboxLimits(memory_mb=128, processes=32, disk_mb=16, file_mb=64, cpu_s=60)
CALLS = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def told(name, *args):
    number = getattr(libc, name)(*args)
    print(name, *args[1:2], "done" if number >= 0 else errno.errorcode[ctypes.get_errno()])
told("memfd_create", b"x", 0)
told("shmget", 0, ctypes.c_size_t(4096), 0o1600)
told("shmget", 0, ctypes.c_size_t(4097), 0o1600)
told("shmget", 0, ctypes.c_size_t((1 << 32) + 1), 0o1600)
told("msgget", 0, 0o1600)
told("semget", 0, 1000, 0o1600)
"""
SOCKETS = """
import socket, time
held = []
while True:
    for end in socket.socketpair():
        end.setblocking(False)
        try:
            while True: end.send(bytes(4096))
        except BlockingIOError: held.append(end)
        except OSError: time.sleep(0.01)
"""
CONNECTIONS = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
held = [server]
while True:
    end = socket.create_connection(server.getsockname())
    held += [end, server.accept()[0]]
    for each in held[-2:]:
        each.setblocking(False)
        try:
            while True: each.send(bytes(1 << 16))
        except BlockingIOError: pass
"""


def watched(script: str) -> ExecResult:
    async def main() -> ExecResult:
        provider = LocalProvider(meters=Meters(f"unseen-{os.getpid()}", kind=KIND))
        try:
            sandbox: LocalSandbox = await provider.open(SandboxSpec(limits=LIMITS))
            while True:  # the largest is killed first, then the next, until all are
                result = await sandbox.exec(["python3", "-c", script], timeout_s=60)
                if result.exit_code != 128 + 9:
                    return result
        finally:
            await provider.aclose()

    return asyncio.run(main())


def test_files_in_memory_without_a_place_are_not_to_be_had() -> None:
    said = watched(CALLS).stdout.text().replace("c_ulong", "").split("\n")
    assert said[:-1] == [
        "memfd_create 0 ENOSYS",
        "shmget (4096) done",
        "shmget (4097) EINVAL",
        "shmget (4294967297) EINVAL",
        "msgget 896 ENOSYS",
        "semget 1000 ENOSYS",
    ]


@pytest.mark.parametrize("script", [SOCKETS, CONNECTIONS], ids=["unix", "tcp"])
def test_buffers_of_sockets_count(script: str) -> None:
    with pytest.raises(SandboxBroken, match="memory"):
        watched(script)


def test_a_few_sockets_count_for_nothing() -> None:
    script = "import socket; held = [socket.socketpair() for _ in range(25)]; print(len(held))"
    assert watched(script).stdout.text() == "25\n"


def test_what_the_sockets_of_a_namespace_may_hold() -> None:
    before = socket_memory_mb(os.getpid())
    pairs = [socket.socketpair() for _ in range(FREE_SOCKETS)]
    assert socket_memory_mb(os.getpid()) > before
    for pair in pairs:
        for end in pair:
            end.close()
    assert socket_memory_mb(2**22 + 1) == 0.0, "a process that is gone has none"


@pytest.mark.parametrize("machine", sorted(seccomp.MACHINES))
def test_a_control_group_counts_it_so_that_the_calls_are_left_alone(machine: str) -> None:
    with_group, without = (seccomp.program(machine, memory_is_metered=metered) for metered in (True, False))
    assert with_group is not None and without is not None and len(with_group) < len(without)
    assert set(seccomp.MACHINES[machine].numbers) >= seccomp.UNCOUNTED_MEMORY_CALLS
