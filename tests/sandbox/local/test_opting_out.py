"""What an agent may try so that its own sandbox fails as if the host were at fault: such a rollout would be untrusted,
and never worth 0. Whatever fails after the agent's programs have run is the agent's, unless a fresh sandbox fails too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from slipstream.errors import SandboxBroken, SandboxError, SandboxFileError, SandboxLimitError
from slipstream.sandbox import LocalProvider
from slipstream.sandbox.blame import Probe, is_local_shortage
from slipstream.sandbox.fake import FakeProvider
from slipstream.sandbox.local.sandbox import LocalSandbox
from slipstream.types import File, SandboxLimits, SandboxSpec

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

SMALL = SandboxSpec(limits=SandboxLimits(memory_mb=128, processes=32, disk_mb=16, file_mb=8, cpu_s=60))


class Counting(LocalProvider):
    """Can be told that the host has broken down."""

    def __init__(self) -> None:
        super().__init__()
        self.num_opened = 0
        self.is_down = False

    async def open(self, spec: SandboxSpec) -> LocalSandbox:
        if self.is_down:
            raise SandboxError("the host could not start a sandbox: it is down")
        self.num_opened += 1
        return await super().open(spec)


@contextlib.asynccontextmanager
async def provided() -> AsyncIterator[Counting]:
    provider = Counting()
    try:
        async with asyncio.timeout(120):
            yield provider
    finally:
        await provider.aclose()


# ---------------------------------------------------------------- the shell

EACH_FD = """python3 - <<'END'
import fcntl, os
shell = f"/proc/{{os.getppid()}}/fd/"
for name in os.listdir(shell):
    if "{kind}" in os.readlink(shell + name):
        try:
            fd = os.open(shell + name, os.O_RDWR | os.O_NONBLOCK)
            {do}
        except OSError as error: print(error)
END"""
"""Bash keeps what a redirection hides under other numbers: so each is tried."""
MEMFD, PIPES = "memfd:", "pipe:"
SHELL_ATTACKS = {
    "seal the command's file": EACH_FD.format(kind=MEMFD, do="fcntl.fcntl(fd, 1033, 15)"),
    "seal it against writing": EACH_FD.format(kind=MEMFD, do="fcntl.fcntl(fd, 1033, 8)"),
    "empty it": EACH_FD.format(kind=MEMFD, do="os.ftruncate(fd, 0)"),
    "fill it": EACH_FD.format(kind=MEMFD, do="os.write(fd, b'x' * 100000)"),
    "map it": EACH_FD.format(kind=MEMFD, do="import mmap; os.ftruncate(fd, 4096); mmap.mmap(fd, 4096)"),
    "shrink the pipes": EACH_FD.format(kind=PIPES, do="fcntl.fcntl(fd, 1031, 4096)"),
    "fill the pipes": EACH_FD.format(kind=PIPES, do="os.write(fd, b'x' * 5000)"),
    "drain the pipes": EACH_FD.format(kind=PIPES, do="os.read(fd, 1 << 16)"),
    "forge reports": EACH_FD.format(kind=PIPES, do="os.write(fd, b'1\\0002\\0/\\0' * 50)"),
    "forge reports of many digits": EACH_FD.format(kind=PIPES, do="os.write(fd, (b'9' * 6000 + b'\\0') * 2 + b'/\\0')"),
    "forge folders that are none": EACH_FD.format(
        kind=PIPES, do="os.write(fd, b''.join(b'%d\\0000\\0/\\xff' % n + b'x' * 5000 + b'\\0' for n in range(5)))"
    ),
    "close the command's file": "exec 202<&-",
    "close the report's pipe": "exec 203>&-",
    "close the output": "exec 204>&-",
    "close the input": "exec 0<&-",
    "put the report's pipe elsewhere": "exec 203>/dev/full",
    "replace the builtins": "builtin() { :; }; read() { :; }; printf() { :; }; eval() { :; }",
    "take away the builtins": "enable -n read eval printf",
    "make our variables read-only": "readonly __slip_status __slip_command",
    "replace our function": "__slip_return() { kill -9 $$; }",
    "leave at the first error": "set -eu; false",
    "trap everything": "trap 'sleep 9' DEBUG ERR EXIT",
    "wait before each prompt": "PROMPT_COMMAND='sleep 9'",
    "allow no more files": "ulimit -n 3",
    "allow no more memory": "ulimit -v 100",
    "allow no more processes": "ulimit -u 1",
    "stop the shell": "kill -STOP $$",
    "kill everything": "kill -9 -1",
    "crash the shell": "kill -SEGV $$",
    "become something else": "exec sleep 99",
    "go to a folder that is gone": "mkdir -p d && cd d && rmdir ../d",
    "go to a folder that nobody may enter": "mkdir -p e && cd e && chmod 0 .",
    "lock the workdir": "chmod 0 /work",
    "go deep": "for n in $(seq 60); do mkdir -p $(printf 'x%.0s' $(seq 200)); cd x*; done",
    "leave the terminal": "exec 2>&-; stty sane; exec 255>&-",
}


def test_nothing_done_to_the_shell_is_taken_for_a_fault_of_the_host() -> None:
    async def attack(provider: Counting, name: str, command: str) -> None:
        sandbox = await provider.open(SMALL)
        shell = await sandbox.shell()
        for line in (command, "echo on", "echo on"):
            with contextlib.suppress(SandboxFileError, SandboxLimitError):
                await shell.run(line, timeout_s=0.5)
        assert await sandbox.healthy(), name
        await sandbox.exec(["chmod", "755", "/work"], cwd="/", timeout_s=10)
        assert (await sandbox.exec(["echo", "on"], timeout_s=10)).stdout.text() == "on\n", name
        await sandbox.aclose()

    async def main() -> None:
        async with provided() as provider:
            todo = list(SHELL_ATTACKS.items())

            async def worker() -> None:
                while todo:
                    await attack(provider, *todo.pop())

            async with asyncio.TaskGroup() as group:
                for _ in range(4):
                    group.create_task(worker())
            assert provider.num_opened == len(SHELL_ATTACKS), "none was lost"

    asyncio.run(main())


def test_the_file_of_a_command_cannot_be_sealed() -> None:
    async def main() -> None:
        async with provided() as provider:
            shell = await (await provider.open(SMALL)).shell()
            said = await shell.run(SHELL_ATTACKS["seal the command's file"], timeout_s=10)
            assert "Operation not permitted" in said.output.text()
            assert (await shell.run("echo on", timeout_s=10)).output.text() == "on\n"

    asyncio.run(main())


# ---------------------------------------------------------------- files and the work

FILE_ATTACKS = {
    "a folder": "mkdir out",
    "a pipe": "mkfifo out",
    "a socket": "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('out')\"",
    "a loop": "ln -s out out",
    "a device": "ln -s /dev/zero out",
    "a file of the kernel": "ln -s /proc/self/mem out",
    "locked": "echo x > out; chmod 0 out",
    "in a locked folder": "chmod 0 /work",
    "larger than may be": "truncate -s 7M out; truncate -s 1G out",
    "a sparse one": "truncate -s 8000000 out",
    "one that is no text": "printf '\\377\\376' > \"$(printf 'out\\377\\n\\033')\"",
    "many of them": "touch $(seq 2000)",
    "deep ones": "for n in $(seq 60); do mkdir $(printf 'x%.0s' $(seq 200)); cd x*; done; touch out",
    "the workdir in a loop": "ln -s . self; ln -s /work/self/self self2",
    "one that is written meanwhile": "(while :; do head -c 99999 /dev/zero > out; rm -f out; done) &> /dev/null &",
    "one that is renamed meanwhile": "mkdir a b; (while :; do mv a/x b/x; mv b/x a/x; touch a/x; done) &> /dev/null &",
}


@pytest.mark.parametrize("attack", FILE_ATTACKS.values(), ids=FILE_ATTACKS.keys())
def test_nothing_done_to_files_is_taken_for_a_fault_of_the_host(attack: str) -> None:
    async def main() -> None:
        async with provided() as provider:
            sandbox = await provider.open(SMALL)
            await sandbox.exec(["bash", "-c", attack], timeout_s=10)
            for _ in range(3):
                for call in (
                    sandbox.read("out", max_bytes=1 << 20),
                    sandbox.read_tree(".", max_bytes=1 << 20),
                    sandbox.changes(".", max_bytes=4 << 20),
                    sandbox.write({"out": File(data=b"x")}),
                ):
                    with contextlib.suppress(SandboxFileError, SandboxLimitError):
                        await call
            await (await sandbox.snapshot()).aclose()
            assert await sandbox.healthy()

    asyncio.run(main())


# ---------------------------------------------------------------- a sandbox that is lost


def crash(sandbox: LocalSandbox) -> None:
    """End the supervisor by a mistake of its own: it knows no such request."""
    sandbox._channel.tell({"op": "crash"})


def test_a_supervisor_that_crashes_after_programs_have_run_is_the_agents_doing() -> None:
    async def main() -> None:
        async with provided() as provider:
            sandbox = await provider.open(SMALL)
            await sandbox.exec(["true"], timeout_s=10)
            running = [asyncio.ensure_future(sandbox.exec(["sleep", "99"], timeout_s=99)) for _ in range(2)]
            await sandbox.read_tree(".")
            crash(sandbox)
            ended = await asyncio.gather(*running, return_exceptions=True)
            assert [type(error) for error in ended] == [SandboxBroken, SandboxBroken]
            with pytest.raises(SandboxBroken, match="a fresh sandbox works"):
                await sandbox.read("x")
            assert provider.num_opened == 2, "one probe for all calls that failed"

    asyncio.run(main())


def test_it_is_the_hosts_where_nothing_has_run_or_a_fresh_sandbox_fails_too() -> None:
    async def main() -> None:
        async with provided() as provider:
            untouched = await provider.open(SMALL)
            crash(untouched)
            with pytest.raises(SandboxError):
                while True:
                    await untouched.read_tree(".")
            sandbox = await provider.open(SMALL)
            await sandbox.exec(["true"], timeout_s=10)
            provider.is_down = True
            crash(sandbox)
            with pytest.raises(SandboxError):
                while True:
                    await sandbox.exec(["true"], timeout_s=10)
            assert provider.num_opened == 2

    asyncio.run(main())


def test_what_was_killed_from_outside_is_the_hosts_without_a_probe() -> None:
    async def main() -> None:
        async with provided() as provider:
            for which in ("supervisor", "keeper"):
                sandbox = await provider.open(SMALL)
                await sandbox.exec(["true"], timeout_s=10)
                shared = provider._shared
                assert shared is not None
                pids = {"supervisor": sandbox.host_pid, "keeper": shared.keeper.pid}
                os.kill(pids[which], signal.SIGKILL)
                if which == "keeper":
                    crash(sandbox)
                with pytest.raises(SandboxError):
                    while True:
                        await sandbox.exec(["true"], timeout_s=10)
            assert provider.num_opened == 2

    asyncio.run(main())


def test_a_shortage_in_this_process_is_the_hosts() -> None:
    def raised_from(cause: BaseException) -> SandboxError:
        error = SandboxError("the host failed")
        error.__cause__ = cause
        return error

    assert is_local_shortage(raised_from(OSError(24, "Too many open files")))
    assert is_local_shortage(raised_from(RuntimeError("can't start new thread")))
    assert not is_local_shortage(raised_from(PermissionError(1, "Operation not permitted")))


# ---------------------------------------------------------------- the probe


def test_a_burst_of_faults_costs_two_probes() -> None:
    async def main() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()
        fakes = FakeProvider()

        async def opens(spec: SandboxSpec) -> object:
            begun.set()
            await go_on.wait()
            return await fakes.open(spec)

        probe = Probe(opens)  # type: ignore[arg-type]
        spec = SandboxSpec(files={"x": File(data=b"x")}, setup=("false",))
        first = asyncio.ensure_future(probe.fault(spec))
        await begun.wait()
        rest = [asyncio.ensure_future(probe.fault(spec)) for _ in range(100)]
        await asyncio.sleep(0)
        rest[0].cancel()
        go_on.set()
        told = await asyncio.gather(first, *rest, return_exceptions=True)
        assert isinstance(told[1], asyncio.CancelledError)
        assert {told[0], *told[2:]} == {None}
        assert probe.num_started == 2

    asyncio.run(main())


def test_a_probe_says_what_is_wrong_with_the_host() -> None:
    async def main() -> None:
        async def fails(spec: SandboxSpec) -> LocalSandbox:
            raise SandboxError("no space left on device")

        async def hangs(spec: SandboxSpec) -> LocalSandbox:
            await asyncio.Event().wait()
            raise AssertionError

        assert await Probe(fails).fault(SMALL) == "a fresh sandbox failed too: no space left on device"
        assert await Probe(hangs, timeout_s=0.01).fault(SMALL) == "a fresh sandbox did not work within 0.01 s"
        closed = Probe(hangs)
        asking = asyncio.ensure_future(closed.fault(SMALL))
        await asyncio.sleep(0)
        await closed.aclose()
        assert await asking == "the provider was closed"

    asyncio.run(main())


def test_a_root_is_not_that_of_another_process(tmp_path: Path) -> None:
    """Its number may be another's by now: the sandbox's process is asked again once the folder is open."""

    async def main() -> None:
        async with provided() as provider:
            sandbox = await provider.open(SMALL)
            with sandbox.root() as fd:
                assert os.fstat(fd).st_ino
            process = sandbox._local_host.process
            mine, process.pid = process.pid, os.getpid()
            await asyncio.to_thread(os.kill, mine, signal.SIGKILL)
            assert await process.has_ended(60), "the keeper has reaped it, and its number is free"
            with pytest.raises(ProcessLookupError), sandbox.root():
                pass
            await sandbox.aclose()
            with pytest.raises(ProcessLookupError), sandbox.root():
                pass

    asyncio.run(main())
