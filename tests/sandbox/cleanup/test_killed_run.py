"""A run that is killed with its sandboxes open: after the next start nothing of it is left, and nothing else is gone.

What is looked for: processes that carry the lease, programs that ran inside, mount and pid namespaces, control groups,
folders, and mounts that this process sees.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slipstream.sandbox.cleanup.lease import LEASES, lease_folders
from slipstream.sandbox.cleanup.reaper import find_mounts, find_processes, reap
from slipstream.sandbox.metering import meter

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

NUM = 32
SPACES = ("mnt", "pid")
RUN = """
import asyncio, sys
from pathlib import Path
from slipstream.sandbox.cleanup.lease import take_lease
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.sandbox.pool.pool import Pool
from slipstream.types import SandboxLimits, SandboxSpec

SPEC = SandboxSpec(limits=SandboxLimits(memory_mb=256, processes=64, disk_mb=16))

async def live(pool, mark):
    sandbox = await pool.open(SPEC)
    script = f"echo mine > file; sleep {mark} & (setsid sleep {mark} &)"
    script += "; until [ $(cat /proc/[0-9]*/comm | grep -c sleep) = 2 ]; do :; done; echo begun"
    assert (await sandbox.exec(["/bin/sh", "-c", script], timeout_s=60)).stdout.text() == "begun\\n"
    return sandbox

async def is_still_running(sandbox):
    look = "cat file; cat /proc/[0-9]*/comm | grep -c sleep"
    return (await sandbox.exec(["/bin/sh", "-c", look], timeout_s=60)).stdout.text() == "mine\\n2\\n"

async def main(home, num, mark, mode):
    lease = take_lease(Path(home))
    pool = Pool(LocalProvider(lease=lease.id), max_warm=4, max_live=64)
    if mode == "starting":
        await (await pool.open(SPEC)).aclose()
        print(lease.id, flush=True)

        async def start_and_close():
            while True:
                sandbox = await pool.open(SPEC)
                print(".", end="", flush=True)
                await sandbox.aclose()

        await asyncio.gather(*(start_and_close() for _ in range(int(num))))
    sandboxes = await asyncio.gather(*(live(pool, mark) for _ in range(int(num))))
    print(lease.id, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(all([await is_still_running(sandbox) for sandbox in sandboxes]), flush=True)
    await pool.aclose()
    lease.release()

asyncio.run(main(*sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run in a process of its own."""

    process: subprocess.Popen[bytes]
    lease: str

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def is_still_running(self) -> bool:
        """Whether its sandboxes still have their files and their programs."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return self.process.stdout.readline() == b"True\n"

    def wait_for_starts(self, num: int) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.read(num) == b"." * num


@contextlib.contextmanager
def run(home: Path, *, num: int, mark: str, mode: str = "living") -> Iterator[Run]:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(home), str(num), mark, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        try:
            assert process.stdout is not None
            yield Run(process=process, lease=process.stdout.readline().decode().strip())
        finally:
            process.kill()


class Members:
    """The processes of a lease and all that are in a mount or pid namespace of theirs, held on to."""

    def __init__(self, lease: str) -> None:
        self.carriers = find_processes(lease)
        own = {_space("self", name) for name in SPACES}
        self._spaces = {_space(pid, name) for pid in self.carriers for name in SPACES} - own - {""}
        inside = [pid for pid in processes() if {_space(pid, name) for name in SPACES} & self._spaces]
        self._descriptors = []
        for pid in {*self.carriers, *inside}:
            with contextlib.suppress(ProcessLookupError):
                self._descriptors.append(os.pidfd_open(pid))

    @property
    def num_namespaces(self) -> int:
        return len(self._spaces)

    def are_gone(self) -> bool:
        """Whether each has ended, and with the last of them the namespaces and their mounts."""
        ended = [bool(select.select([descriptor], [], [], 0)[0]) for descriptor in self._descriptors]
        for descriptor in self._descriptors:
            os.close(descriptor)
        return all(ended)


def _space(pid: int | str, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{name}")  # noqa: PTH115
    except OSError:
        return ""


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def programs_with(mark: str) -> list[int]:
    """Those that ran inside: they carry no lease."""
    found = []
    for pid in processes():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == f"sleep\0{mark}\0".encode():
                found.append(pid)
    return found


def mounts() -> set[str]:
    """Where something is mounted; but for container engines, which may be at work on this machine."""
    places = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return {place for place in places if "/containers/storage/" not in place}


def nothing_is_left(home: Path, lease: str) -> bool:
    folder = home / LEASES / lease
    return not (find_processes(lease) or meter.leftovers(lease) or folder.exists() or find_mounts(folder))


def test_of_a_run_killed_with_32_live_sandboxes_nothing_is_left_after_the_next_start(tmp_path: Path) -> None:
    before = mounts()
    killed_mark, living_mark = f"6{os.getpid()}1", f"6{os.getpid()}2"
    with run(tmp_path, num=3, mark=living_mark) as living, run(tmp_path, num=NUM, mark=killed_mark) as killed:
        assert len(programs_with(killed_mark)) == 2 * NUM
        members = Members(killed.lease)
        assert len(members.carriers) >= NUM + 1, "the keeper, and a supervisor of each"
        assert members.num_namespaces >= 2 * NUM or os.geteuid() != 0, "others may not see those of supervisors"
        killed.kill()
        assert (tmp_path / LEASES / killed.lease).is_dir()
        report = reap(tmp_path)
        assert (report.leases, report.problems, report.num_live) == ((killed.lease,), (), 1)
        assert nothing_is_left(tmp_path, killed.lease)
        assert programs_with(killed_mark) == []
        assert members.are_gone()
        assert mounts() <= before
        assert not reap(tmp_path).leases
        assert len(programs_with(living_mark)) == 2 * 3
        assert living.is_still_running(), "a live run of the same home is untouched"
    assert {folder.name for folder in lease_folders(tmp_path)} == {living.lease}, "it was killed in its turn"
    reap(tmp_path)
    assert nothing_is_left(tmp_path, living.lease)
    assert programs_with(living_mark) == []


@pytest.mark.parametrize("num_started", [2, 17])
def test_of_a_run_killed_while_sandboxes_start_nothing_is_left_after_the_next_start(
    tmp_path: Path, num_started: int
) -> None:
    before = mounts()
    with run(tmp_path, num=8, mark="0", mode="starting") as killed:
        killed.wait_for_starts(num_started)
        members = Members(killed.lease)
        assert members.carriers
        killed.kill()
        report = reap(tmp_path)
        assert (report.leases, report.problems) == ((killed.lease,), ())
        assert nothing_is_left(tmp_path, killed.lease)
        assert members.are_gone()
        assert mounts() <= before
