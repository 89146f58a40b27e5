"""Meters: real processes that run into each limit, and a pretended kernel where this one has no groups of a version."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import resource
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.sandbox.metering import meter as metering
from slipstream.sandbox.metering.cgroup_tree import V1, V2, Hierarchy, Kernel, groups_of_lease, hierarchies, remove_all
from slipstream.sandbox.metering.cgroups import NAMES, Groups
from slipstream.sandbox.metering.meter import Limit, Meter, Meters, Usage
from slipstream.sandbox.metering.usage import UsageMeter
from slipstream.sandbox.metering.watchdog import KIND as WATCHDOG
from slipstream.sandbox.metering.watchdog import LiveProcess, SandboxCpuTime, kill, own_memory_mb, read_process
from slipstream.types import SandboxLimits

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

SMALL = SandboxLimits(memory_mb=64, processes=8, cpu_s=1)
WAIT = "import os; os.write(int(os.environ['TELL']), b'!'); os.read(0, 1)"
"""Give word, and stay for as long as the first process does."""
HOLD = "held = bytearray(b'x') * ({mb} << 20); " + WAIT
FIRST = """
import os, subprocess, sys
held = bytearray(b"x") * (int(sys.argv[1]) << 20)
read, write = os.pipe()
for line in sys.stdin:
    code = "open('/proc/self/oom_score_adj', 'w').write('500')\\n" + sys.stdin.read(int(line))
    command = [sys.executable, "-S", "-c", code]
    ended = subprocess.run(command, stdin=read, stdout=subprocess.DEVNULL, close_fds=False)
    print(ended.returncode, flush=True)
"""


def works(kind: str) -> bool:
    try:
        asyncio.run(Groups(f"try-{secrets.token_hex(4)}", kind).aclose())
    except OSError:
        return False
    return True


@pytest.fixture(params=[V1, V2, WATCHDOG])
def kind(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name != WATCHDOG and not works(name):
        pytest.skip(f"{name} cannot be used here")
    return name


@pytest.fixture
def lease() -> Iterator[str]:
    name = f"test-{secrets.token_hex(6)}"
    yield name
    assert metering.leftovers(name) == []


class First:
    """The first process of a pretended sandbox: runs one program after the other and tells how each ended."""

    def __init__(self, before: tuple[str, ...] = (), held_mb: int = 0) -> None:
        self._word: int | None
        self._word, tell = os.pipe()
        self.process = subprocess.Popen(
            [*before, sys.executable, "-S", "-c", FIRST, str(held_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[tell],
            env={**os.environ, "TELL": str(tell)},
        )
        os.close(tell)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def run(self, code: str) -> int | None:
        """How a program ended; None if the first process did not outlive it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{len(code)}\n{code}")
        self.process.stdin.flush()
        line = await asyncio.to_thread(self.process.stdout.readline)
        return int(line) if line else None

    async def word(self) -> None:
        """Wait until a program gives word."""
        assert self._word is not None
        assert await asyncio.to_thread(os.read, self._word, 1)

    def end(self) -> None:
        if self._word is None:
            return
        os.close(self._word)
        self._word = None
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        self.process.wait()


@functools.cache
def own_network() -> tuple[str, ...]:
    """Gives a program its own network namespace, as sandboxes have: the watchdog counts all sockets in it."""
    unshare = ("unshare", "--user", "--map-root-user", "--net")
    return () if subprocess.run([*unshare, "true"], capture_output=True).returncode else unshare


@contextlib.asynccontextmanager
async def metered(
    lease: str, kind: str, limits: SandboxLimits = SMALL, *, before: tuple[str, ...] = (), held_mb: int = 0
) -> AsyncIterator[tuple[Meter, First, asyncio.Queue[str]]]:
    told: asyncio.Queue[str] = asyncio.Queue()
    meters = Meters(lease, kind=kind)
    first = First(before or (own_network() if kind == WATCHDOG else ()), held_mb)
    try:
        meter = meters.open(limits, told.put_nowait)
        meter.attach(first.pid)
        yield meter, first, told
    finally:
        first.end()
        await meters.aclose()


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(300):
            await body()

    asyncio.run(main())


# ---------------------------------------------------------------- limits that are run into


def test_a_process_that_takes_too_much_memory_is_killed_and_the_first_lives_on(kind: str, lease: str) -> None:
    async def body() -> None:
        async with metered(lease, kind) as (meter, first, told):
            assert await first.run("held = bytearray(16 << 20)") == 0
            assert meter.exceeded() is None
            assert await first.run(HOLD.format(mb=150)) == -signal.SIGKILL
            assert await told.get() == meter.exceeded() == Limit.MEMORY
            assert await first.run("pass") == 0
            assert meter.usage().peak_memory_mb > 55

    run(body)


def test_the_first_process_is_spared_even_if_it_is_the_largest(lease: str) -> None:
    async def body() -> None:
        async with metered(lease, WATCHDOG, held_mb=40) as (meter, first, _):
            assert await first.run(HOLD.format(mb=30)) == -signal.SIGKILL
            assert meter.exceeded() == Limit.MEMORY
            assert await first.run("pass") == 0

    run(body)


def test_the_memory_of_all_processes_counts_together(kind: str, lease: str) -> None:
    code = (
        "import subprocess, sys\n"
        f"command = [sys.executable, '-S', '-c', {HOLD.format(mb=30)!r}]\n"
        "many = [subprocess.Popen(command, close_fds=False) for _ in range(4)]\n"
        "many[0].wait()"
    )

    async def body() -> None:
        async with metered(lease, kind, replace(SMALL, processes=50)) as (meter, first, told):
            running = asyncio.ensure_future(first.run(code))
            assert await told.get() == meter.exceeded() == Limit.MEMORY
            assert first.process.poll() is None
            first.end()
            await running

    run(body)


def test_memory_that_processes_share_counts_once(kind: str, lease: str) -> None:
    code = "import os\nheld = bytearray(b'x') * (30 << 20)\n"
    code += "if os.fork() and os.fork() and os.fork():\n    " + WAIT + "\nelse:\n    " + WAIT

    async def body() -> None:
        async with metered(lease, kind) as (meter, first, told):
            running = asyncio.ensure_future(first.run(code))
            for _ in range(4):
                await first.word()
            usage = meter.usage()
            assert usage.num_processes >= 5
            assert 30 < usage.peak_memory_mb <= 64
            assert meter.exceeded() is None and told.empty()
            first.end()
            await running

    run(body)


def test_too_much_cpu_time_ends_everything(kind: str, lease: str) -> None:
    async def body() -> None:
        async with metered(lease, kind) as (meter, first, told):
            assert await first.run("import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass") is None
            assert first.process.wait() == -signal.SIGKILL
            assert await told.get() == meter.exceeded() == Limit.CPU
            assert meter.usage().cpu_s >= 1

    run(body)


def test_too_many_processes_are_held_back(kind: str, lease: str) -> None:
    code = """
import os
try:
    for _ in range(100):
        if os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
except BlockingIOError:
    os._exit(7)
os.read(0, 1)
"""

    async def body() -> None:
        async with metered(lease, kind) as (meter, first, told):
            assert await first.run(code) == (None if kind == WATCHDOG else 7)
            assert await told.get() == meter.exceeded() == Limit.PROCESSES

    run(body)


def test_files_in_memory_count_where_the_kernel_counts(lease: str) -> None:
    if not works(V1):
        pytest.skip("no groups here")
    code = "import os; fd = os.memfd_create('x')\nfor _ in range(150): os.write(fd, bytes(1 << 20))"

    async def body() -> None:
        async with metered(lease, V1) as (meter, first, _):
            assert await first.run(code) == -signal.SIGKILL
            assert meter.exceeded() == Limit.MEMORY

    run(body)


def test_the_watchdog_sees_those_who_leave_their_parents(lease: str) -> None:
    """In a namespace of pids, as in a sandbox, orphans come to the first process."""
    unshare = ("unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here")
    code = f"import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        {HOLD.format(mb=100)}\n"

    async def body() -> None:
        async with metered(lease, WATCHDOG, before=unshare) as (meter, first, told):
            assert await first.run(code) == 0
            assert await told.get() == meter.exceeded() == Limit.MEMORY
            assert first.process.poll() is None

    run(body)


# ---------------------------------------------------------------- by which limit a sandbox ended


def test_a_sandbox_that_outlived_a_killed_program_did_not_end_by_it(lease: str) -> None:
    async def body() -> None:
        async with metered(lease, WATCHDOG) as (meter, first, _):
            assert await first.run(HOLD.format(mb=150)) == -signal.SIGKILL
            meter.usage()
            first.end()
            assert meter.exceeded() == Limit.MEMORY
            assert meter.ended_by() is None

    run(body)


def test_a_sandbox_whose_first_process_takes_too_much_memory_ended_by_it(lease: str) -> None:
    async def body() -> None:
        async with metered(lease, WATCHDOG, held_mb=150) as (meter, first, told):
            assert await told.get() == Limit.MEMORY
            assert first.process.wait() == -signal.SIGKILL
            assert meter.ended_by() == Limit.MEMORY

    run(body)


# ---------------------------------------------------------------- a host that is short of something


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """This process may open none until the context ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Heard(logging.Handler):
    """Whether something was logged, and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.any = threading.Event()
        self.num = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.num += 1
        self.any.set()


def test_the_watch_goes_on_after_a_look_that_failed(lease: str) -> None:
    heard = Heard()

    async def body() -> None:
        async with metered(lease, WATCHDOG) as (meter, first, _):
            metering.logger.addHandler(heard)
            try:
                with no_more_files():
                    assert heard.any.wait(60)
            finally:
                metering.logger.removeHandler(heard)
            assert await first.run(HOLD.format(mb=150)) == -signal.SIGKILL
            assert meter.exceeded() == Limit.MEMORY
            assert heard.num == 1

    run(body)


def test_a_process_that_cannot_be_looked_at_now_is_not_taken_for_dead() -> None:
    with no_more_files(), pytest.raises(OSError) as raised:
        read_process(os.getpid())
    assert raised.value.errno == errno.EMFILE


def test_a_shortage_of_the_host_does_not_decide_how_sandboxes_are_metered(lease: str) -> None:
    with no_more_files(), pytest.raises(OSError) as raised:
        Meters(lease)
    assert raised.value.errno == errno.EMFILE


# ---------------------------------------------------------------- opening and closing


def test_what_was_said_last_is_still_said_after_closing_twice(kind: str, lease: str) -> None:
    async def body() -> None:
        async with metered(lease, kind) as (meter, first, _):
            await first.run(HOLD.format(mb=150))
            before = meter.usage()
            first.end()
            await meter.aclose()
            await meter.aclose()
            assert meter.exceeded() == Limit.MEMORY
            assert meter.usage().peak_memory_mb >= before.peak_memory_mb
            assert meter.usage().num_processes == 0
            assert meter.kind == kind

    run(body)


def test_a_process_that_is_gone_cannot_be_attached(kind: str, lease: str) -> None:
    async def body() -> None:
        meters = Meters(lease, kind=kind)
        first = First()
        first.end()
        with pytest.raises(ProcessLookupError):
            meters.open(SMALL).attach(first.pid)
        await meters.aclose()
        await meters.aclose()

    run(body)


def test_a_process_of_another_user_can_come_in_by_the_doors(lease: str) -> None:
    if not works(V1) or os.geteuid() != 0:
        pytest.skip("no groups here, or nobody else to become")
    code = "import os, sys\nfor fd in sys.argv[1:]: os.write(int(fd), b'0')\nprint('in', flush=True); sys.stdin.read()"
    meters = Meters(lease, kind=V1)
    meter = meters.open(SMALL)
    join_fds = meter.open_join_fds()
    with subprocess.Popen(
        ["/usr/bin/python3", "-S", "-c", code, *map(str, join_fds)],
        pass_fds=join_fds,
        user=65534,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        for fd in join_fds:
            os.close(fd)
        assert process.stdout is not None and process.stdout.readline() == b"in\n"
        assert meter.usage().num_processes == 1
        meter.attach(process.pid)
        assert meter.usage().num_processes == 1
        process.kill()
    asyncio.run(meters.aclose())


def test_what_a_dead_run_left_is_found_by_its_lease_and_removed(lease: str) -> None:
    if not works(V1):
        pytest.skip("no groups here")

    async def body() -> None:
        abandoned, other = Meters(lease, kind=V1), Meters(f"{lease}-other", kind=V1)
        other_meter = other.open(SMALL)
        first = First()
        abandoned.open(SMALL).attach(first.pid)
        found = metering.leftovers(lease)
        assert found and all(f"/slipstream/{lease}" in place for place in found)
        assert metering.remove(lease) == len(found)
        assert first.process.wait() == -signal.SIGKILL
        assert metering.leftovers(lease) == []
        assert metering.leftovers(f"{lease}-other")
        assert other_meter.usage() == Usage()
        first.end()
        await abandoned.aclose()
        await other.aclose()
        assert metering.leftovers(f"{lease}-other") == []

    run(body)


def test_only_the_dead_of_this_namespace_of_processes_are_orphans() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    here = Path("/proc/self/ns/pid").stat().st_ino
    dead = f"without-{process.pid}-1-{here}"
    others = (f"without-{process.pid}-1-{here + 1}", f"without-{os.getpid()}-1-{here}", f"without-{process.pid}-1")
    assert metering.orphans([*others, dead, "without-1-2-0", "a-lease"]) == [dead]


def test_groups_without_a_lease_name_the_namespace_of_their_process() -> None:
    if not works(V1):
        pytest.skip("no groups here")
    name = f"{metering.UNLEASED}{os.getpid()}-{secrets.randbelow(10**9)}"
    meters = Meters(name, kind=V1)
    try:
        assert metering.leftovers(f"{name}-{Path('/proc/self/ns/pid').stat().st_ino}")
    finally:
        asyncio.run(meters.aclose())


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "*"])
def test_a_lease_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="lease"):
        Meters(name)
    assert metering.leftovers(name) == []


def test_a_kind_that_does_not_exist_is_refused(lease: str) -> None:
    with pytest.raises(ConfigError, match="cgroup v9"):
        Meters(lease, kind="cgroup v9")


def test_why_it_is_not_a_better_kind_is_told(lease: str) -> None:
    async def body() -> None:
        meters = Meters(lease)
        assert bool(meters.reason) == (meters.kind != V2)
        await meters.aclose()

    run(body)


# ---------------------------------------------------------------- the usage meter


def test_the_gravest_limit_is_told_and_each_once() -> None:
    told: list[str] = []
    usage_meter = UsageMeter(limits=SMALL, on_exceeded=told.append)
    assert usage_meter.most_severe() is None
    for limit in (Limit.MEMORY, Limit.PROCESSES, Limit.MEMORY):
        usage_meter.hit(limit)
    assert usage_meter.most_severe() == Limit.MEMORY
    usage_meter.hit(Limit.CPU)
    assert usage_meter.most_severe() == Limit.CPU
    assert told == ["memory", "processes", "cpu"]


def test_word_of_a_limit_to_a_loop_that_is_closed_is_dropped() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    assert UsageMeter(limits=SMALL, on_exceeded=print, loop=loop).hit(Limit.CPU)


# ---------------------------------------------------------------- the watchdog's eyes


def test_a_process_is_told_from_another_with_its_number() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        seen = read_process(process.pid)
        assert seen is not None and seen.parent == os.getpid() and seen.num_threads == 1
        kill(replace(seen, start=seen.start + 1))
        process.stdin.write(b"alive\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"alive\n"
        kill(seen)
        assert process.wait() == -signal.SIGKILL
        assert read_process(process.pid) is None


def process(pid: int, own_s: float, inherited_s: float = 0.0, start: int = 1) -> LiveProcess:
    return LiveProcess(
        pid=pid, parent=1, start=start, own_s=own_s, inherited_s=inherited_s, num_threads=1, resident_mb=1.0
    )


def test_the_time_of_the_dead_counts_whether_they_were_waited_for_or_not() -> None:
    times = SandboxCpuTime()
    assert times.total_s([process(1, 1.0), process(2, 5.0)]) == 6.0
    assert times.total_s([process(1, 1.0)]) == 6.0  # nobody waited
    assert times.total_s([process(1, 1.0), process(2, 2.0, start=9)]) == 8.0  # another with its number
    assert times.total_s([process(1, 1.0, 30.0)]) == 31.0  # those who were never seen


def test_libraries_that_are_shared_are_no_memory_of_a_process() -> None:
    seen = read_process(os.getpid())
    assert seen is not None
    assert 0 < own_memory_mb(seen) < seen.resident_mb


# ---------------------------------------------------------------- a pretended kernel


FILES = {
    "cgroup.controllers": "cpuset cpu memory pids\n",
    "cgroup.subtree_control": "",
    "cgroup.procs": "",
    "cgroup.kill": "",
    "cpu.stat": "usage_usec 0\nuser_usec 0\n",
    "cpu.weight": "100\n",
    "memory.max": "max\n",
    "memory.swap.max": "max\n",
    "memory.peak": "0\n",
    "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
    "pids.max": "max\n",
    "pids.current": "0\n",
    "pids.events": "max 0\n",
}


class PretendedKernel(Kernel):
    """Folders that behave as groups of version 2 do."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fill(root)

    def fill(self, folder: Path) -> None:
        for name, text in FILES.items():
            (folder / name).write_text(text)

    def make(self, path: str) -> None:
        super().make(path)
        self.fill(Path(path))

    def remove(self, path: str) -> None:
        if (Path(path) / "cgroup.procs").read_text() or any(child.is_dir() for child in Path(path).iterdir()):
            raise OSError(16, "Device or resource busy")
        for file in Path(path).iterdir():
            file.unlink()
        super().remove(path)

    def write(self, path: str, text: str) -> None:
        file = Path(path)
        if file.name == "cgroup.procs":
            for other in self.root.rglob("cgroup.procs"):
                other.write_text("".join(f"{pid}\n" for pid in other.read_text().split() if pid != text))
            file.write_text(file.read_text() + f"{text}\n")
        elif file.name == "cgroup.subtree_control":
            if (file.parent / "cgroup.procs").read_text():
                raise OSError(16, "Device or resource busy")
            file.write_text(text.replace("+", ""))
        elif file.name == "cgroup.kill":
            (file.parent / "cgroup.procs").write_text("")
        elif not file.exists():
            raise FileNotFoundError(2, "No such file or directory")
        else:
            file.write_text(text)


def tree(root: Path) -> Hierarchy:
    return Hierarchy(kind=V2, controllers=frozenset(), mount=str(root), own=str(root))


def open_groups(root: Path, kernel: PretendedKernel) -> Groups:
    class Trying(Groups):
        def _self_test(self) -> None:
            """Dead processes do not leave a pretended group."""

    return Trying("abc", V2, kernel=kernel, found=[tree(root)])


def test_a_group_of_version_2_has_its_limits(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    groups = open_groups(tmp_path, PretendedKernel(tmp_path))
    meter = groups.open(UsageMeter(limits=replace(SMALL, cpus=2.5)))
    folder = tmp_path / "slipstream" / "abc" / "1"
    assert meter.folders == (str(folder),)
    told = {name: (folder / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")}
    assert told == {"memory.max": str(64 << 20), "memory.swap.max": "0", "pids.max": "19"}
    assert (folder.parent / "cgroup.subtree_control").read_text() == "memory pids"
    meter.attach(123456)
    assert (folder / "cgroup.procs").read_text() == "123456\n"


def test_what_the_kernel_counts_is_told(tmp_path: Path) -> None:
    groups = open_groups(tmp_path, PretendedKernel(tmp_path))
    told: list[str] = []
    meter = groups.open(UsageMeter(limits=SMALL, on_exceeded=told.append))
    meter.attach(123456)
    folder = Path(meter.folders[0])
    (folder / "memory.peak").write_text(f"{32 << 20}\n")
    (folder / "cpu.stat").write_text("usage_usec 500000\nuser_usec 1\n")
    (folder / "pids.current").write_text("3\n")
    assert groups.look()
    assert meter.usage() == Usage(peak_memory_mb=32, cpu_s=0.5, num_processes=3)
    assert meter.exceeded() is None
    (folder / "pids.events").write_text("max 2\n")
    assert meter.exceeded() == Limit.PROCESSES
    (folder / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert meter.exceeded() == Limit.MEMORY
    assert (folder / "cgroup.procs").read_text() == "123456\n"
    (folder / "cpu.stat").write_text("usage_usec 1000001\n")
    groups.look()
    assert (folder / "cgroup.procs").read_text() == ""
    assert told == ["processes", "memory", "cpu"]
    asyncio.run(groups.aclose())
    assert meter.exceeded() == Limit.CPU and meter.usage().cpu_s > 1
    assert not (tmp_path / "slipstream").exists()


@contextlib.contextmanager
def member() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_only_kills_that_the_first_process_did_not_outlive_ended_a_sandbox(tmp_path: Path) -> None:
    groups = open_groups(tmp_path, PretendedKernel(tmp_path))
    meter = groups.open(UsageMeter(limits=SMALL))
    events = Path(meter.folders[0]) / "memory.events"
    with member() as first:
        meter.attach(first.pid)
        events.write_text("oom 1\noom_kill 1\n")
        assert meter.ended_by() is None
        groups.look()
        groups.look()
        first.kill()
        first.wait()
        assert meter.exceeded() == Limit.MEMORY
        assert meter.ended_by() is None
        events.write_text("oom 2\noom_kill 2\n")
        groups.look()
        groups.look()
        assert meter.ended_by() == Limit.MEMORY


def test_a_kill_that_was_just_seen_may_be_the_end(tmp_path: Path) -> None:
    groups = open_groups(tmp_path, PretendedKernel(tmp_path))
    meter = groups.open(UsageMeter(limits=SMALL))
    with member() as first:
        meter.attach(first.pid)
        (Path(meter.folders[0]) / "memory.events").write_text("oom 1\noom_kill 1\n")
        groups.look()
        first.kill()
        first.wait()
        assert meter.ended_by() == Limit.MEMORY


def test_processes_killed_for_the_limit_of_others_are_none_of_ours(tmp_path: Path) -> None:
    groups = open_groups(tmp_path, PretendedKernel(tmp_path))
    meter = groups.open(UsageMeter(limits=SMALL))
    (Path(meter.folders[0]) / "memory.events").write_text("oom 0\noom_kill 1\n")
    assert meter.exceeded() is None and meter.ended_by() is None


@pytest.mark.parametrize(("most_mb", "num_killed"), [(40, 0), (64, 3)])
def test_in_version_1_a_group_below_its_limit_has_killed_none(most_mb: int, num_killed: int) -> None:
    files = {"memory.oom_control": "under_oom 0\noom_kill 3\n", "memory.max_usage_in_bytes": f"{most_mb << 20}\n"}
    assert NAMES[V1].kills(lambda _, name: files[name], 64 << 20) == num_killed


def test_a_process_alone_in_its_group_steps_aside(tmp_path: Path) -> None:
    kernel = PretendedKernel(tmp_path)
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    open_groups(tmp_path, kernel)
    assert (tmp_path / "slipstream-run" / "cgroup.procs").read_text() == f"{os.getpid()}\n"
    inside = Hierarchy(kind=V2, controllers=frozenset(), mount=str(tmp_path), own=f"{tmp_path}/slipstream-run")
    Groups("later", V2, kernel=kernel, found=[inside])
    assert groups_of_lease("later", [inside], kernel) == [f"{tmp_path}/slipstream/later"]


def test_others_in_the_group_are_left_where_they_are(tmp_path: Path) -> None:
    kernel = PretendedKernel(tmp_path)
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n1\n")
    with pytest.raises(OSError, match="systemd-run"):
        open_groups(tmp_path, kernel)
    assert (tmp_path / "cgroup.procs").read_text() == f"{os.getpid()}\n1\n"


def test_controllers_that_are_not_handed_down_are_named(tmp_path: Path) -> None:
    kernel = PretendedKernel(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    with pytest.raises(OSError, match="pids"):
        open_groups(tmp_path, kernel)
    with pytest.raises(OSError, match="mounted"):
        Groups("abc", V2, kernel=kernel, found=[])


def test_groups_left_over_are_emptied_and_removed_and_no_others(tmp_path: Path) -> None:
    kernel = PretendedKernel(tmp_path)
    groups = open_groups(tmp_path, kernel)
    groups.open(UsageMeter(limits=SMALL)).attach(123456)
    for name in ("other", "abcd", "abc"):
        kernel.make(f"{tmp_path}/{name}")
    found = groups_of_lease("abc", [tree(tmp_path)], kernel)
    assert found == [f"{tmp_path}/slipstream/abc/1", f"{tmp_path}/slipstream/abc"]
    remove_all(found, kernel)
    assert {child.name for child in tmp_path.iterdir() if child.is_dir()} == {"other", "abcd", "abc"}


# ---------------------------------------------------------------- where we are


def test_both_versions_mounted_side_by_side() -> None:
    mounts = (
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:3 - cgroup cgroup rw,memory\n"
        "40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
    )
    memberships = "4:memory:/a/b\n3:cpu,cpuacct:/\n2:name=systemd:/init\n0::/user/x\n"
    told = {found.own: (found.kind, set(found.controllers)) for found in hierarchies(mounts, memberships)}
    assert told == {
        "/sys/fs/cgroup/cpu,cpuacct": (V1, {"cpu", "cpuacct"}),
        "/sys/fs/cgroup/memory/a/b": (V1, {"memory"}),
        "/sys/fs/cgroup/systemd/init": (V1, {"name=systemd"}),
        "/sys/fs/cgroup/unified/user/x": (V2, set()),
    }


@pytest.mark.parametrize(
    ("root", "path", "own"),
    [("/docker/a", "/docker/a", "/cg"), ("/docker/a", "/docker/a/b", "/cg/b"), ("/docker/a", "/docker/ab", "/cg")],
)
def test_a_part_of_the_tree_is_mounted_in_a_container(root: str, path: str, own: str) -> None:
    (found,) = hierarchies(f"41 31 0:38 {root} /cg rw - cgroup2 cgroup rw,nsdelegate\n", f"0::{path}\n")
    assert found.own == own


def test_a_folder_with_a_space_in_its_name() -> None:
    (found,) = hierarchies("41 31 0:38 / /my\\040cg rw - cgroup2 cgroup rw\n", "0::/\n")
    assert found.own == "/my cg"
