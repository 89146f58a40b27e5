"""Process 1 of a sandbox, a fork of the keeper: what it must not bring along, and what nothing inside can do to either.

The keeper is one process for all sandboxes of a run. If code inside could reach it, or read what it or an earlier
sandbox has left in the memory of a fork, sandboxes would not be separate.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from local_stage import children, provided

from slipstream.errors import SandboxError
from slipstream.sandbox import Sandbox
from slipstream.sandbox.local import bwrap
from slipstream.sandbox.local.keeper_client import SOURCES, KeeperClient
from slipstream.sandbox.local.lower_folders import LowerFolders
from slipstream.sandbox.local.process import end_of
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.sandbox.local.sandbox import LocalSandbox
from slipstream.sandbox.local.start_request import spawn_request
from slipstream.sandbox.supervisor.channel import Channel, memory_file
from slipstream.sandbox.supervisor.programs import Programs
from slipstream.types import File, SandboxLimits, SandboxSpec

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")
needs_root = pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root may look into others")

NAMESPACES = ("user", "pid", "mnt", "ipc", "uts", "net", "cgroup")
MB = 1 << 20


def within(body: Callable[[LocalProvider, LocalSandbox], Awaitable[None]]) -> None:
    async def main() -> None:
        async with provided() as provider:
            await body(provider, await provider.open(SandboxSpec(limits=SandboxLimits(processes=64))))

    asyncio.run(main())


async def said(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.exec(["sh", "-c", script], cwd="/", timeout_s=30)
    return result.stdout.text() + result.stderr.text()


async def python(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.exec(["python3", "-I", "-c", script], timeout_s=60)
    assert result.exit_code == 0, result.stderr.text()
    return result.stdout.text().strip()


def links_in(folder: str) -> set[str]:
    return {str(path.readlink()) for path in Path(folder).iterdir()}


def text_of(path: str) -> str:
    return Path(path).read_text()


def keeper_of(sandbox: LocalSandbox) -> int:
    """The keeper itself: below its bwrap."""
    (keeper,) = children(sandbox._local_host.keeper.pid)
    return keeper


# ---------------------------------------------------------------- what a fork of the keeper keeps


def test_process_1_has_no_rights_and_every_program_starts_with_none() -> None:
    async def body(provider: LocalProvider, sandbox: LocalSandbox) -> None:
        for process in ("1", "self"):
            status = dict(
                line.split(":\t", 1) for line in (await said(sandbox, f"cat /proc/{process}/status")).splitlines()
            )
            assert {int(status[name], 16) for name in status if name.startswith("Cap")} == {0}, process
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), process
            assert status["Uid"].split() == status["Gid"].split() == ["1000"] * 4, process

    within(body)


def test_each_sandbox_has_all_namespaces_of_its_own() -> None:
    look = "; ".join(f"readlink /proc/self/ns/{name}" for name in NAMESPACES)

    async def body(provider: LocalProvider, sandbox: LocalSandbox) -> None:
        other = await provider.open(SandboxSpec())
        seen = [(await said(one, look)).split() for one in (sandbox, other)]
        seen.append([os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES])  # noqa: PTH115
        if os.geteuid() == 0:
            seen.append([os.readlink(f"/proc/{keeper_of(sandbox)}/ns/{name}") for name in NAMESPACES])  # noqa: PTH115
            shared = {name for name, ours, keepers in zip(NAMESPACES, seen[2], seen[3], strict=True) if ours == keepers}
            assert shared == set(NAMESPACES) - {"user", "mnt"}, "the keeper itself"
            del seen[3]
        for name, *each in zip(NAMESPACES, *seen, strict=True):
            assert len(set(each)) == 3, name

    within(body)


def test_nothing_is_mounted_but_the_parts_of_the_sandbox() -> None:
    async def body(provider: LocalProvider, sandbox: LocalSandbox) -> None:
        places = (await said(sandbox, "cut -d' ' -f5 /proc/self/mountinfo")).split()
        areas = {"/", "/proc", "/dev/pts", "/dev/shm", "/run/endpoints", "/tmp", "/work"}
        view = {place for place in places if place.startswith(("/usr", "/dev/", "/lib", "/bin", "/sbin"))}
        assert set(places) == areas | view
        assert len(places) == len(set(places)), "nothing is hidden below another mount"

    within(body)


@needs_root
def test_the_only_descriptors_that_process_1_keeps_are_its_own() -> None:
    async def body(provider: LocalProvider, sandbox: LocalSandbox) -> None:
        other = await provider.open(SandboxSpec())
        keepers = links_in(f"/proc/{keeper_of(sandbox)}/fd")
        for one in (sandbox, other):
            held = links_in(f"/proc/{one.host_pid}/fd")
            kinds = sorted(name.partition(":")[0] for name in held)
            assert kinds == ["/dev/null", "/memfd", "/proc/1/oom_score_adj", "pipe", "socket"]
            assert {name for name in held & keepers if name.startswith(("pipe", "socket"))} == set()

    within(body)


def memory_of(pid: int) -> bytes:
    found = []
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in text_of(f"/proc/{pid}/maps").splitlines():
            if line.endswith("[vsyscall]"):  # beyond what can be read
                continue
            first, last = (int(text, 16) for text in line.split()[0].split("-"))
            with contextlib.suppress(OSError, ValueError):  # a few areas of the kernel cannot be read
                memory.seek(first)
                found.append(memory.read(last - first))
    return b"".join(found)


@needs_root
def test_nothing_that_one_sandbox_was_given_is_in_the_memory_of_the_keeper_or_of_the_next() -> None:
    def secret(number: int) -> str:
        return "-".join(("secret", str(number), "of", str(os.getpid())))

    async def body(provider: LocalProvider, sandbox: LocalSandbox) -> None:
        first = await provider.open(
            SandboxSpec(files={secret(0): File(data=secret(1).encode())}, env={"KEY": secret(2)})
        )
        await first.exec(["printf", secret(3)], env={"OTHER": secret(4)}, stdin=secret(5).encode(), timeout_s=30)
        await first.serve(secret(6)[:60], nothing)
        next_one = await provider.open(SandboxSpec())
        assert secret(3).encode() in memory_of(first.host_pid), "it is looked for in the right place"
        for pid in (keeper_of(first), next_one.host_pid, sandbox.host_pid):
            memory = memory_of(pid)
            assert [number for number in range(6) if secret(number).encode() in memory] == []

    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        return

    within(body)


@needs_root
def test_the_environment_of_the_run_is_not_that_of_the_keeper_or_of_process_1() -> None:
    async def body(provider: LocalProvider, sandbox: LocalSandbox) -> None:
        for pid in (keeper_of(sandbox), sandbox.host_pid):
            names = {variable.partition("=")[0] for variable in text_of(f"/proc/{pid}/environ").split("\0")}
            assert names <= {"", "LD_BIND_NOW", "LD_LIBRARY_PATH", "LD_PRELOAD", "PWD", "LC_CTYPE"}

    within(body)


# ---------------------------------------------------------------- reaching the keeper, or process 1

REACH = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
done = []
for pid in [TARGET]:
    for name in ("mem", "maps", "smaps", "environ", "auxv", "syscall", "stack", "pagemap", "exe", "cwd", "root", "fd",
                 "fdinfo", "map_files", "task/1/mem", "task/1/fd", "ns/mnt", "ns/user", "clear_refs"):
        path = f"/proc/{pid}/{name}"
        try:
            os.listdir(path + "/") if name in ("cwd", "root", "fd", "fdinfo", "map_files", "task/1/fd") else None
            fd = os.open(path, os.O_RDWR if name in ("mem", "clear_refs") else os.O_RDONLY)
            os.read(fd, 1)
            done.append(path)
        except OSError:
            pass
    for request in (16, 0x4206):
        if pid > 0 and libc.ptrace(request, pid, 0, 0) == 0:
            done.append(f"ptrace {request} of {pid}")
buffer = ctypes.create_string_buffer(8)
vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
remote = (ctypes.c_size_t * 2)(0x400000, 8)
for call in (310, 311):
    if libc.syscall(call, 1, vector, 1, remote, 1, 0) > 0:
        done.append(f"process_vm {call}")
pidfd = libc.syscall(434, 1, 0)
for number in range(16):
    if pidfd >= 0 and libc.syscall(438, pidfd, number, 0) >= 0:
        done.append(f"pidfd_getfd {number}")
for flags in (0x20000, 0x10000000, 0x20000000):
    if pidfd >= 0 and libc.setns(pidfd, flags) == 0:
        done.append(f"setns {flags:x}")
if libc.unshare(0x10000000) == 0:
    done.append("unshare")
print(done)
"""


def test_process_1_cannot_be_read_traced_or_entered() -> None:
    async def body(provider: LocalProvider, sandbox: LocalSandbox) -> None:
        assert await python(sandbox, REACH.replace("TARGET", "1")) == "[]"

    within(body)


def test_the_keeper_is_no_process_that_anything_inside_could_name() -> None:
    async def body(provider: LocalProvider, sandbox: LocalSandbox) -> None:
        keeper = keeper_of(sandbox)
        assert await python(sandbox, REACH.replace("TARGET", str(keeper))) == "[]"
        number = f"for n in {keeper} {os.getpid()} {sandbox.host_pid}"
        assert (await said(sandbox, f"{number}; do kill -9 $n 2>/dev/null && echo killed; done; echo over")) == "over\n"
        await said(sandbox, "kill -9 -1; kill -STOP -1; kill -9 0")
        assert (await (await provider.open(SandboxSpec())).exec(["true"], timeout_s=30)).exit_code == 0
        assert children(keeper)

    within(body)


@contextlib.asynccontextmanager
async def without_a_filter() -> AsyncIterator[Programs]:
    """Programs in a sandbox whose system calls are not filtered, as on a machine whose calls are not listed."""
    spec = SandboxSpec()
    lower = LowerFolders(spec=spec, areas=bwrap.areas_of(spec, None))
    keeper = KeeperClient(bwrap.find_bwrap(), bwrap.own_interpreter(), "")
    stderr = memory_file()
    try:
        async with asyncio.timeout(300):
            view = await keeper.make_view(bwrap.view_of(spec))
            request = replace(spawn_request(lower, view=view.name, memory_is_metered=True), filter=b"")
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                spawned = await keeper.spawn(request, control=theirs.fileno(), stderr=stderr, join_fds=())
            channel = Channel(ours, on_end=lambda: end_of(stderr))
            try:
                yield Programs(channel, bwrap.environment(spec), spec.workdir)
            finally:
                channel.lose("the test is over")
                os.close(spawned.pidfd)
                await keeper.drop(spawned.layer)
                await keeper.drop(view)
    finally:
        await keeper.aclose()
        os.close(stderr)


def test_it_holds_without_the_filter_of_system_calls_too() -> None:
    async def main() -> None:
        async with without_a_filter() as programs:
            for script, expected in (
                (REACH.replace("TARGET", "1"), "[]"),
                (
                    "print([line for line in open('/proc/self/status') if line.startswith('Seccomp:')])",
                    "['Seccomp:\\t0\\n']",
                ),
                ("import ctypes; print(ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, 0))", "-1"),
                ("import ctypes; print(ctypes.CDLL(None).umount2(b'/usr', 2))", "-1"),
                ("import ctypes; print(ctypes.CDLL(None).chroot(b'/tmp'))", "-1"),
                ("import os; print(os.access('/proc/sys/user/max_user_namespaces', os.W_OK))", "False"),
            ):
                result = await programs.run(
                    ["python3", "-I", "-c", script], stdin=b"", env=None, cwd=None, timeout_s=60, max_output_bytes=MB
                )
                assert result.stdout.text().strip() == expected, (script, result.stderr.text())

    asyncio.run(main())


# ---------------------------------------------------------------- starving it


def test_a_sandbox_that_takes_all_it_can_does_not_keep_others_from_starting() -> None:
    async def body(provider: LocalProvider, sandbox: LocalSandbox) -> None:
        bomb = asyncio.ensure_future(sandbox.exec(["bash", "-c", "f() { f | f & }; f; sleep 1000"], timeout_s=500))
        hog = await provider.open(SandboxSpec(limits=SandboxLimits(memory_mb=64, disk_mb=512)))
        hogging = asyncio.ensure_future(hog.exec(["sh", "-c", "cat /dev/zero > /tmp/full"], timeout_s=500))
        for _ in range(5):
            one = await provider.open(SandboxSpec())
            assert (await one.exec(["true"], timeout_s=30)).exit_code == 0
            await one.aclose()
        await asyncio.gather(sandbox.aclose(), hog.aclose())
        await asyncio.gather(bomb, hogging, return_exceptions=True)

    within(body)


def test_the_memory_of_the_keeper_does_not_grow_with_the_sandboxes_it_started() -> None:
    def size_kb(pid: int) -> int:
        (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmData")]
        return int(line.split()[1])

    async def body(provider: LocalProvider, sandbox: LocalSandbox) -> None:
        sizes = []
        for num in (10, 60):
            for _ in range(num):
                await (await provider.open(SandboxSpec(files={"f": File(data=b"x" * 1000)}))).aclose()
            sizes.append(size_kb(keeper_of(sandbox)))
        assert sizes[0] == sizes[1]

    within(body)


def test_a_start_whose_process_is_killed_is_an_error_and_the_next_one_works() -> None:
    async def body(provider: LocalProvider, sandbox: LocalSandbox) -> None:
        keeper, known = keeper_of(sandbox), {sandbox.host_pid}
        starting = [asyncio.ensure_future(provider.open(SandboxSpec())) for _ in range(8)]
        killed = 0
        while not all(start.done() for start in starting):
            for pid in set(await asyncio.to_thread(children, keeper)) - known:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
                known.add(pid)
        outcomes = await asyncio.gather(*starting, return_exceptions=True)
        assert killed and all(isinstance(one, LocalSandbox | SandboxError) for one in outcomes)
        assert (await (await provider.open(SandboxSpec())).exec(["true"], timeout_s=30)).exit_code == 0
        assert keeper_of(sandbox) == keeper

    within(body)


# ---------------------------------------------------------------- traps for the next process 1


def make_base(folder: Path) -> None:
    """A root in which an agent may write everywhere."""
    for name in ("usr/bin", "tmp", "work", "slipstream"):
        (folder / name).mkdir(parents=True)
    for path in (*folder.parents[:3], folder):
        path.chmod(0o755)


def test_an_error_of_process_1_reads_nothing_that_an_agent_could_have_put_there(tmp_path: Path) -> None:
    """A traceback would open the source by its path: a FIFO there would make process 1 wait for ever."""
    base = tmp_path / "base"
    make_base(base)
    for name in SOURCES:
        source = base / "slipstream" / "code" / "slipstream" / "sandbox" / name
        source.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        os.mkfifo(source)

    async def main() -> None:
        async with provided() as provider:
            sandbox = await provider.open(SandboxSpec(base=str(base)))
            sandbox._channel.tell({"op": "crash"})  # the supervisor knows no such request
            assert await sandbox._local_host.process.has_ended(60)
            assert "AttributeError" in sandbox.stderr() and "program.py:" in sandbox.stderr()

    asyncio.run(main())


def test_process_1_imports_nothing_from_the_sandbox(tmp_path: Path) -> None:
    base = tmp_path / "base"
    make_base(base)
    planted = "import os; os.write(2, b'planted code ran'); os._exit(3)\n"
    for folder in (f"usr/lib/python3.{minor}" for minor in range(8, 16)):
        for name in ("encodings/utf_16_be.py", "encodings/__init__.py", "traceback.py", "json/__init__.py", "os.py"):
            place = base / folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(planted)

    async def main() -> None:
        async with provided() as provider:
            sandbox = await provider.open(SandboxSpec(base=str(base)))
            with pytest.raises(Exception, match="\N{SNOWMAN}"):  # its answer needs a codec
                await sandbox.read("no such file \N{SNOWMAN}")
            assert await sandbox.healthy()
            assert "planted" not in sandbox.stderr()

    asyncio.run(main())


PROC_TRAPS = ("/proc/self/cwd", "/proc/self/fd/3", "/proc/1/root")
TRAPS = (*PROC_TRAPS, "../../../..", "../../../../slipstream", "/../../tmp", "/slipstream/layers", "/usr", "/dev/shm")


@pytest.mark.parametrize("trap", TRAPS)
def test_a_link_where_a_fork_mounts_something_leads_nowhere_outside(trap: str) -> None:
    """An agent can rename the folder above a mount point, put a link there, and have its files forked."""

    async def main() -> None:
        async with provided() as provider:
            sandbox = await provider.open(SandboxSpec(workdir="/tmp/deep/er"))
            await said(sandbox, f"cd /; mv /tmp/deep /tmp/moved && ln -s {trap} /tmp/deep")
            assert (await said(sandbox, "cd /; readlink /tmp/deep")).strip() == trap
            snapshot = await sandbox.snapshot()
            keeper = keeper_of(sandbox)
            before = text_of(f"/proc/{keeper}/mountinfo")
            with contextlib.suppress(SandboxError):
                fork = await snapshot.open()
                await fork.exec(["touch", "made"], timeout_s=30)
                assert await fork.read("made") == b""
                await fork.aclose()
            places = ("/er", "/tmp/er", "/usr/er", "/dev/shm/er", "/slipstream/er", "/slipstream/layers/er")
            assert not any(map(os.path.lexists, places))
            assert not any(map(os.path.lexists, (f"/proc/{keeper}/root{place}" for place in places)))
            assert text_of(f"/proc/{keeper}/mountinfo") == before
            await snapshot.aclose()
            assert (await provider.open(SandboxSpec())).id, "others start all the same"

    asyncio.run(main())
