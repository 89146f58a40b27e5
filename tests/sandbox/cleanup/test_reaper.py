"""What a killed run left is found and removed, and nothing else is."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
from lease_stage import dead_lease

from slipstream.errors import SandboxError
from slipstream.sandbox.cleanup.lease import ARGUMENT, FACTS, LEASES, LeaseOwner, lease_folders, take_lease
from slipstream.sandbox.cleanup.reaper import ReapReport, find_mounts, find_processes, kill_processes, reap

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the reaper reads /proc")
SLEEP = "import sys; print(1, flush=True); sys.stdin.read()"


def nothing(lease: str) -> int:
    return 0


def reaped(home: Path) -> ReapReport:
    return reap(home, containers=nothing, cgroups=nothing)


@contextmanager
def process(*arguments: str, program: str = sys.executable, user: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """One that does nothing, with these arguments."""
    code = [] if program != sys.executable else ["-S", "-c", SLEEP]
    child = subprocess.Popen(
        [program, *code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=user, cwd="/"
    )
    with child:
        try:
            if program == sys.executable:
                assert child.stdout is not None
                child.stdout.readline()
            yield child
        finally:
            child.kill()


def test_where_nothing_was_left_nothing_is_done(tmp_path: Path) -> None:
    assert reaped(tmp_path) == ReapReport()
    lease = take_lease(tmp_path)
    assert reaped(tmp_path) == ReapReport(num_live=1)
    lease.release()


def test_the_processes_and_folders_of_a_dead_lease_go_and_those_of_a_live_one_stay(tmp_path: Path) -> None:
    dead, live = dead_lease(tmp_path), take_lease(tmp_path)
    (dead / "layers" / "one").mkdir(parents=True)
    (dead / "layers" / "one" / "file").write_text("left")
    with process(f"{ARGUMENT}{dead.name}") as left, process(f"{ARGUMENT}{live.id}") as ours:
        assert find_processes(dead.name) == [left.pid]
        report = reaped(tmp_path)
        assert left.wait(5) == -signal.SIGKILL
        assert ours.poll() is None
    assert report == ReapReport(leases=(dead.name,), num_processes=1, num_folders=2, num_live=1)
    assert lease_folders(tmp_path) == [live.folder]
    assert reaped(tmp_path) == ReapReport(num_live=1)
    live.release()


def test_whoever_only_names_a_lease_is_left_alone(tmp_path: Path) -> None:
    dead = dead_lease(tmp_path)
    name = f"{ARGUMENT}{dead.name}"
    near = [f"x{name}", f"{name}0", f"--label={name}", f"{ARGUMENT} {dead.name}", dead.name]
    with process(*near) as first, process("-f", "/dev/null", "-s", "0.1", name, program="/usr/bin/tail") as tail:
        assert find_processes(dead.name) == []
        assert reaped(tmp_path).num_processes == 0
        assert first.poll() is None
        assert tail.poll() is None or tail.returncode > 0, "it was not killed"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_processes_of_other_users_are_left_alone(tmp_path: Path) -> None:
    dead = dead_lease(tmp_path)
    with (
        process("-c", SLEEP, f"{ARGUMENT}{dead.name}", program="/usr/bin/python3", user=12345) as theirs,
        process("-c", SLEEP, f"{ARGUMENT}{dead.name}", program="/usr/bin/python3", user=65534) as ours,
    ):
        for child in (theirs, ours):
            assert child.stdout is not None
            child.stdout.readline()
        assert find_processes(dead.name) == [ours.pid]
        assert kill_processes(dead.name) == 1
        assert theirs.poll() is None


def test_what_could_not_be_removed_is_told_and_tried_again(tmp_path: Path) -> None:
    dead = dead_lease(tmp_path)

    def fails(lease: str) -> int:
        raise SandboxError("the engine does not answer")

    report = reap(tmp_path, containers=fails, cgroups=nothing)
    assert report.problems == (f"lease {dead.name}: the engine does not answer",)
    assert report.leases == () and dead.is_dir()
    seen = []

    def removes(lease: str) -> int:
        seen.append(lease)
        return 3

    report = reap(tmp_path, containers=removes, cgroups=lambda _: 2)
    assert (seen, report.num_containers, report.num_cgroups) == ([dead.name], 3, 2)
    assert report.leases == (dead.name,) and not report.problems


def test_a_lease_of_another_machine_is_left_alone(tmp_path: Path) -> None:
    dead = dead_lease(tmp_path)
    facts = LeaseOwner(pid=1, start_ticks=0, boot_id="another", host="another")
    (dead / FACTS).write_text(json.dumps(asdict(facts)))
    assert reaped(tmp_path) == ReapReport()
    assert dead.is_dir()


def test_two_reapers_at_once_share_the_work(tmp_path: Path) -> None:
    dead = {dead_lease(tmp_path).name for _ in range(6)}
    reports: list[ReapReport] = []
    threads = [threading.Thread(target=lambda: reports.append(reaped(tmp_path))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = [name for report in reports for name in report.leases]
    assert sorted(done) == sorted(dead), "each of them once"
    assert not any(report.problems for report in reports)
    assert lease_folders(tmp_path) == []


def test_runs_may_start_while_others_are_reaped(tmp_path: Path) -> None:
    stop = threading.Event()
    reports: list[ReapReport] = []

    def work() -> None:
        while not stop.is_set():
            reports.append(reaped(tmp_path))

    reaper = threading.Thread(target=work)
    reaper.start()
    try:
        leases = [take_lease(tmp_path) for _ in range(100)]
    finally:
        stop.set()
        reaper.join()
    ids = {lease.id for lease in leases}
    assert not ids & {name for report in reports for name in report.leases}
    assert {folder.name for folder in lease_folders(tmp_path)} == ids
    for lease in leases:
        lease.release()


def test_mounts_below_a_folder_are_found_innermost_first(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    folder = tmp_path / LEASES / "a b"
    folder.mkdir(parents=True)
    escaped = str(folder).replace(" ", "\\040")
    lines = [
        "22 28 0:21 / /proc rw shared:12 - proc proc rw",
        f"40 28 0:40 / {escaped}/layer rw - tmpfs tmpfs rw",
        f"41 40 0:41 / {escaped}/layer/inner rw - overlay overlay rw",
        f"42 28 0:42 / {escaped}x rw - tmpfs tmpfs rw",
    ]
    (tmp_path / "self" / "mountinfo").write_text("\n".join(lines) + "\n")
    assert find_mounts(folder, tmp_path) == [folder / "layer" / "inner", folder / "layer"]


MOUNTER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
sys.path[:0] = sys.argv[3].split(os.pathsep)
from pathlib import Path
from slipstream.sandbox.cleanup.reaper import reap
assert libc.unshare(0x20000) == 0 and libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None) == 0
layer = Path(sys.argv[2]) / "layer"
layer.mkdir()
assert libc.mount(b"none", os.fsencode(layer), b"tmpfs", 0, None) == 0
(layer / "file").write_text("left")
report = reap(Path(sys.argv[1]), containers=lambda _: 0, cgroups=lambda _: 0)
assert report.num_mounts == 1 and not report.problems, report
"""


@pytest.mark.skipif(os.geteuid() != 0 or ctypes.sizeof(ctypes.c_void_p) != 8, reason="only root may mount")
def test_what_is_mounted_in_a_lease_is_unmounted_before_its_folder_goes(tmp_path: Path) -> None:
    dead = dead_lease(tmp_path)
    command = [sys.executable, "-c", MOUNTER, str(tmp_path), str(dead), os.pathsep.join(sys.path)]
    subprocess.run(command, check=True, timeout=60)
    assert not dead.exists()


RUN = """
import asyncio, sys
from pathlib import Path
from slipstream.sandbox.cleanup.lease import take_lease
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.types import SandboxSpec

async def main():
    lease = take_lease(Path(sys.argv[1]))
    provider = LocalProvider(lease=lease.id)
    for sandbox in await asyncio.gather(*(provider.open(SandboxSpec()) for _ in range(8))):
        await sandbox.exec(["/bin/sh", "-c", "sleep 1000 & echo > file"], timeout_s=30)
    print(lease.id, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_of_a_killed_run_with_live_sandboxes_nothing_is_left(tmp_path: Path) -> None:
    from slipstream.sandbox.metering import meter

    with subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path)], stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            lease = run.stdout.readline().strip()
            assert len(find_processes(lease)) >= 9, "the keeper, and one or more of each sandbox"
            assert reap(tmp_path).num_live == 1
            assert len(find_processes(lease)) >= 9, "a live run is left alone"
        finally:
            run.send_signal(signal.SIGKILL)
    report = reap(tmp_path)
    assert report.leases == (lease,) and not report.problems
    assert (find_processes(lease), meter.leftovers(lease), lease_folders(tmp_path)) == ([], [], [])
