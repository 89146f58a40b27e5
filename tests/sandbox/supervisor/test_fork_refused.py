"""A process that the supervisor cannot start: whether the sandbox has as many as it may, or the host has no more."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator

import pytest

from slipstream.sandbox.oci import arguments as oci_arguments
from slipstream.sandbox.supervisor import program as inside

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


class Refusing(inside.Supervisor):
    """Gets no process, or only after some tries; `num_tries` of them were made."""

    error = errno.EAGAIN
    num_refusals = 1_000
    num_tries = 0

    def fork(self) -> int:
        self.num_tries += 1
        if self.num_tries > self.num_refusals:
            return 4_000_000
        raise OSError(self.error, os.strerror(self.error))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with ours, control:
        yield ours, control


def told(ends: tuple[socket.socket, socket.socket], supervisor: Refusing) -> bytes:
    """What comes of a request to start a program: nothing for one that runs."""
    supervisor.handle({"op": "exec", "id": 1, "cwd": "/", "targets": []}, [])
    try:
        return ends[0].recv(1 << 16)
    except BlockingIOError:
        return b""


def refusing(ends: tuple[socket.socket, socket.socket], num_processes: int) -> Refusing:
    return Refusing(ends[1], "/", {"RLIMIT_NPROC": num_processes}, -1)


FEW = 1
MANY = inside.CGROUP_ENFORCED - 1


def test_a_sandbox_with_all_its_processes_is_at_its_own_limit(ends: tuple[socket.socket, socket.socket]) -> None:
    assert b'"error": "limit"' in told(ends, refusing(ends, FEW))


def test_a_sandbox_with_room_to_spare_is_refused_by_the_host(ends: tuple[socket.socket, socket.socket]) -> None:
    assert inside.num_tasks() < inside.NEAR_LIMIT * MANY
    assert b'"error": "host"' in told(ends, refusing(ends, MANY))


def test_want_of_memory_for_a_process_is_the_hosts(ends: tuple[socket.socket, socket.socket]) -> None:
    supervisor = refusing(ends, FEW)
    supervisor.error = errno.ENOMEM
    assert b'"error": "host"' in told(ends, supervisor)


def test_a_sandbox_that_has_room_again_gets_its_process(ends: tuple[socket.socket, socket.socket]) -> None:
    supervisor = refusing(ends, MANY)
    supervisor.num_refusals = 1
    assert told(ends, supervisor) == b""
    assert supervisor.num_tries == 2


def test_a_limit_that_its_group_holds_and_does_not_tell_is_taken_for_reached() -> None:
    assert inside.CGROUP_ENFORCED == oci_arguments.MAX_PROCESSES
    assert inside.max_tasks(inside.CGROUP_ENFORCED) < inside.CGROUP_ENFORCED


def test_threads_count_each() -> None:
    assert inside.num_tasks() >= len(os.listdir("/proc/self/task"))  # noqa: PTH208
