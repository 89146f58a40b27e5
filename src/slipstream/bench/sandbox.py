"""Measures sandboxes: a start, a lease from the pool, a command, how many work at once, and what many of them leak.

Every sandbox is real. Leaks are counted while the provider is still open, before the first and after the last start of
the load: processes (including zombies), mounts in all our mount namespaces, file descriptors of this process and its
descendants, and bytes in temporary files and in the folders of our leases. A provider that kept something for each
sandbox would show.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from slipstream.errors import AgentError, SandboxError
from slipstream.sandbox.base import Sandbox, SandboxProvider
from slipstream.sandbox.cleanup.lease import lease_folders, read_facts
from slipstream.sandbox.pool.pool import Pool
from slipstream.types import Json, SandboxSpec

PR_SET_CHILD_SUBREAPER = 36
ENGINE_PROGRAMS = ("conmon", "podman", "docker", "crun", "runc", "slirp4netns", "pasta", "fuse-overlayfs")
"""Processes of a container engine, which are not our children. They are counted only if containers are measured."""
ENGINE_STORE = "/containers/storage/"
"""Mounts of a container engine, ignored unless containers are measured."""
SETTLE_S = 2.0
"""How long resources may take to be released after the last close."""
BATCH = 8
EXEC_TIMEOUT_S = 60.0

T = TypeVar("T")

MakeProvider = Callable[[], SandboxProvider]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxBenchLoad:
    """The amount of work."""

    starts: int = 1_000
    """Sequential starts, each closed before the next."""
    concurrent: int = 64
    execs: int = 200
    pooled: int = 96
    """Leases from the pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUsage:
    """Resources of the host in use."""

    processes: int
    mounts: int
    descriptors: int
    disk_bytes: int


def run(make: MakeProvider, spec: SandboxSpec, load: SandboxBenchLoad, *, home: Path) -> dict[str, Json]:
    """The figures. `home` is the folder of leases."""
    containers = spec.base != "host"
    with _own_temporary_folder() as folder, _orphans_are_ours(not containers):
        return asyncio.run(_measure(make, spec, load, lambda: usage_now(folder, home, containers=containers)))


async def _measure(
    make: MakeProvider, spec: SandboxSpec, load: SandboxBenchLoad, count: Callable[[], HostUsage]
) -> dict[str, Json]:
    provider = make()
    try:
        provider.check()
        await measure_starts(provider, spec, 2)  # warm up: the first start prepares shared state
        gc.collect()
        before = count()
        start_s = await measure_starts(provider, spec, load.starts)
        after = await _settled(count, before)
        exec_s = await measure_execs(provider, spec, load.execs)
        worked, failures = await measure_concurrent(provider, spec, load.concurrent)
    finally:
        await provider.aclose()
    pool_s = await measure_pool(make(), spec, load.pooled)
    leaked = {name: max(0, value - asdict(before)[name]) for name, value in asdict(after).items()}
    return {
        **_percentiles("start_ms", start_s),
        **_percentiles("pool_ms", pool_s),
        **_percentiles("exec_ms", exec_s),
        "concurrent": worked,
        "concurrent_asked": load.concurrent,
        "failures": [*failures],
        "starts": load.starts,
        "leaked": sum(leaked.values()),
        "leaked_by": {**leaked},
    }


def _percentiles(name: str, seconds: list[float]) -> dict[str, Json]:
    ordered = sorted(seconds)
    return {f"{name}_p{part}": 1000 * ordered[min(len(ordered) - 1, len(ordered) * part // 100)] for part in (50, 95)}


async def measure_starts(provider: SandboxProvider, spec: SandboxSpec, num: int) -> list[float]:
    """The durations of sequential opens."""
    times_s = []
    for _ in range(num):
        begin_s = time.perf_counter()
        sandbox = await provider.open(spec)
        times_s.append(time.perf_counter() - begin_s)
        await sandbox.aclose()
    return times_s


async def measure_execs(provider: SandboxProvider, spec: SandboxSpec, num: int) -> list[float]:
    """The durations of sequential commands that do nothing."""
    sandbox = await provider.open(spec)
    try:
        times_s = []
        for _ in range(num):
            begin_s = time.perf_counter()
            await sandbox.exec(["/bin/true"], timeout_s=EXEC_TIMEOUT_S)
            times_s.append(time.perf_counter() - begin_s)
        return times_s
    finally:
        await sandbox.aclose()


async def measure_pool(provider: SandboxProvider, spec: SandboxSpec, num: int) -> list[float]:
    """The durations of leases while the pool is warm. Closes the provider."""
    pool = Pool(provider, max_warm=BATCH)
    try:
        times_s: list[float] = []
        while len(times_s) < num:
            pool.expect(spec, BATCH)
            await _until(lambda: pool.num_warm >= BATCH and pool.num_starting == 0)
            leased: list[Sandbox] = []
            for _ in range(BATCH):
                begin_s = time.perf_counter()
                leased.append(await pool.open(spec))
                times_s.append(time.perf_counter() - begin_s)
            for sandbox in leased:
                await sandbox.aclose()
        return times_s
    finally:
        await pool.aclose()


async def measure_concurrent(provider: SandboxProvider, spec: SandboxSpec, num: int) -> tuple[int, list[str]]:
    """Open `num` sandboxes at once; returns how many worked, and the errors of the others."""
    opened = await asyncio.gather(*(_outcome(provider.open(spec)) for _ in range(num)))
    sandboxes = [sandbox for sandbox in opened if not isinstance(sandbox, str)]
    try:
        worked = await asyncio.gather(*(_outcome(_work(sandbox, number)) for number, sandbox in enumerate(sandboxes)))
    finally:
        await asyncio.gather(*(sandbox.aclose() for sandbox in sandboxes))
    failures = [one for one in (*opened, *worked) if isinstance(one, str)]
    return sum(one is None for one in worked), sorted(set(failures))


async def _work(sandbox: Sandbox, number: int) -> None:
    command = f"echo {number} > own && cat own"
    result = await sandbox.exec(["/bin/sh", "-c", command], timeout_s=EXEC_TIMEOUT_S)
    if (result.exit_code, result.stdout.text()) != (0, f"{number}\n"):
        raise SandboxError(f"`{command}` ended with {result.exit_code}: {result.stdout.text()}{result.stderr.text()}")


async def _outcome(work: Awaitable[T]) -> T | str:
    try:
        return await work
    except (AgentError, SandboxError) as raised:
        return str(raised)


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - the pool does not notify
        await asyncio.sleep(0.001)


# ---------------------------------------------------------------- resources in use


async def _settled(count: Callable[[], HostUsage], before: HostUsage) -> HostUsage:
    """The usage now, after waiting up to SETTLE_S for it to return to `before`."""
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        gc.collect()
        now = count()
        above = any(value > asdict(before)[name] for name, value in asdict(now).items())
        if not above or time.monotonic() > deadline_s:
            return now
        await asyncio.sleep(0.05)


def usage_now(temporary: Path, home: Path, *, containers: bool = False) -> HostUsage:
    """The usage of this process and its descendants; with `containers`, of this machine's container engines too."""
    processes = our_processes(containers=containers)
    spaces: dict[str, int] = {}
    num_descriptors = 0
    for pid in (os.getpid(), *processes):
        try:
            space = str(Path(f"/proc/{pid}/ns/mnt").readlink())
            mounts = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8").splitlines()
            spaces[space] = sum(containers or ENGINE_STORE not in mount for mount in mounts)
            num_descriptors += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        except OSError:  # it has ended, or may not be inspected
            continue
    own = [folder for folder in lease_folders(home) if (facts := read_facts(folder)) and facts.pid == os.getpid()]
    return HostUsage(
        processes=len(processes),
        mounts=sum(spaces.values()),
        descriptors=num_descriptors,
        disk_bytes=sum(_size(folder) for folder in (temporary, *own)),
    )


def our_processes(*, containers: bool = False) -> list[int]:
    """All descendants of this process; with `containers`, the processes of container engines too."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            name, _, rest = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        except OSError:
            continue
        parents[int(entry.name)] = int(rest.split()[1])
        if containers and name.partition("(")[2] in ENGINE_PROGRAMS:
            found.add(int(entry.name))
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sorted(found | family - {os.getpid()})


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


@contextmanager
def _own_temporary_folder() -> Iterator[Path]:
    """Put all temporary files into a folder of its own meanwhile."""
    before = tempfile.tempdir
    folder = Path(tempfile.mkdtemp(prefix="slipstream-bench-"))
    folder.chmod(0o711)  # if we are root, sandboxes run as another user
    tempfile.tempdir = str(folder)
    try:
        yield folder
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _orphans_are_ours(wanted: bool) -> Iterator[None]:
    """Adopt orphaned processes, so that they are counted."""
    libc = ctypes.CDLL(None)
    if wanted:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        if wanted:
            libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
