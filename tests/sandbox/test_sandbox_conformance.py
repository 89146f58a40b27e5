"""What every sandbox provider promises. One that runs no real programs is spared what needs them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from inside_view import command_lines

from slipstream.errors import SandboxError, SandboxFileError, SandboxLimitError
from slipstream.sandbox import FakeProvider, LocalProvider, Sandbox, SandboxProvider, open_sandbox
from slipstream.types import File, SandboxLimits, SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    make: Callable[[], SandboxProvider]


on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")
FAKE = pytest.param(Case(make=FakeProvider), id="fake")
LOCAL = pytest.param(Case(make=LocalProvider), id="local", marks=on_linux)
OWN_PYTHON = pytest.param(Case(make=lambda: LocalProvider(use_base_python=False)), id="local-own", marks=on_linux)

every_provider = pytest.mark.parametrize("case", [FAKE, LOCAL, OWN_PYTHON])
real_provider = pytest.mark.parametrize("case", [LOCAL, OWN_PYTHON])


def within(case: Case, body: Callable[[Sandbox], Awaitable[None]], spec: SandboxSpec | None = None) -> None:
    async def main() -> None:
        provider = case.make()
        try:
            async with asyncio.timeout(60):
                await body(await provider.open(spec or SandboxSpec()))
        finally:
            await provider.aclose()

    asyncio.run(main())


# ---------------------------------------------------------------- programs


@every_provider
def test_exec_gives_output_and_exit_code(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        result = await sandbox.exec(["echo", "one", "two"], timeout_s=30)
        assert (result.exit_code, result.stdout.text(), result.timed_out) == (0, "one two\n", False)
        assert (await sandbox.exec(["sh", "-c", "exit 7"], timeout_s=30)).exit_code == 7

    within(case, body)


@every_provider
def test_a_program_that_does_not_exist_is_127(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        assert (await sandbox.exec(["no-such-program"], timeout_s=30)).exit_code == 127

    within(case, body)


@every_provider
def test_the_deadline_ends_a_program(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sleep", "1000"], timeout_s=0.1)
        assert (result.exit_code, result.timed_out) == (None, True)
        assert (await sandbox.exec(["true"], timeout_s=30)).exit_code == 0

    within(case, body)


@every_provider
def test_long_output_is_cut_in_the_middle(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        words = [str(number) for number in range(1000)]
        result = await sandbox.exec(["echo", *words], timeout_s=30, max_output_bytes=20)
        assert (result.stdout.head, result.stdout.tail) == (b"0 1 2 3 4 ", b"6 997 998 999\n"[-10:])
        assert result.stdout.num_bytes == len(" ".join(words)) + 1

    within(case, body)


@every_provider
def test_execs_run_side_by_side(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        results = await asyncio.gather(*(sandbox.exec(["echo", str(number)], timeout_s=30) for number in range(20)))
        assert [result.stdout.text() for result in results] == [f"{number}\n" for number in range(20)]

    within(case, body)


@every_provider
def test_cancelling_an_exec_leaves_the_sandbox_usable(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await sandbox.exec(["sleep", "1000"], timeout_s=500)
        assert (await sandbox.exec(["true"], timeout_s=30)).exit_code == 0

    within(case, body)


@real_provider
def test_exec_takes_stdin_environment_and_directory(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        script = "cat; echo $ONE $TWO; pwd; echo gone >&2"
        result = await sandbox.exec(["sh", "-c", script], stdin=b"in\n", env={"TWO": "2"}, cwd="/tmp", timeout_s=30)
        assert (result.stdout.text(), result.stderr.text()) == ("in\n1 2\n/tmp\n", "gone\n")
        large = await sandbox.exec(["wc", "-c"], stdin=b"x" * 3_000_000, timeout_s=30)
        assert large.stdout.text() == "3000000\n"

    within(case, body, SandboxSpec(env={"ONE": "1"}))


@real_provider
def test_arguments_may_be_longer_than_a_packet(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        words = ["word"] * 100_000
        result = await sandbox.exec(["echo", *words], timeout_s=30)
        assert result.stdout.num_bytes == 5 * len(words)

    within(case, body)


@real_provider
def test_how_programs_end(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        assert (await sandbox.exec(["sh", "-c", "kill -9 $$"], timeout_s=30)).exit_code == 128 + 9
        assert (await sandbox.exec(["/etc/passwd"], timeout_s=30)).exit_code == 126
        assert (await sandbox.exec(["/etc/passwd/x"], timeout_s=30)).exit_code == 127
        assert (await sandbox.exec(["a\0b"], timeout_s=30)).exit_code == 126
        assert (await sandbox.exec(["\ud800"], timeout_s=30)).exit_code == 126
        with pytest.raises(SandboxFileError, match="/nowhere"):
            await sandbox.exec(["true"], cwd="/nowhere", timeout_s=30)

    within(case, body)


@real_provider
def test_a_process_left_behind_delays_nothing_and_lives_on(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sh", "-c", "sleep 1000 & echo $!"], timeout_s=30)
        assert result.exit_code == 0
        assert (await command_lines(sandbox))[int(result.stdout.text())] == "sleep 1000"
        flood = await sandbox.exec(["sh", "-c", "yes & echo begun"], timeout_s=30)
        assert flood.exit_code == 0

    within(case, body)


@real_provider
def test_the_deadline_kills_the_whole_session(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        script = "echo out; sleep 1001 & setsid sleep 1002 & (sleep 1003 & sleep 1004)"
        result = await sandbox.exec(["bash", "-c", script], timeout_s=0.5)
        assert (result.timed_out, result.stdout.text()) == (True, "out\n")
        assert not [command for command in (await command_lines(sandbox)).values() if "sleep 100" in command]

    within(case, body)


@real_provider
def test_programs_may_open_their_output_by_name(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sh", "-c", "echo a > /dev/stdout; echo b > /dev/stderr"], timeout_s=30)
        assert (result.stdout.text(), result.stderr.text()) == ("a\n", "b\n")

    within(case, body)


# ---------------------------------------------------------------- files


@every_provider
def test_files_are_written_and_read(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        assert await sandbox.read("given.txt") == b"given"
        await sandbox.write(
            {"a/b/c.bin": File(data=b"\0\xff" * 3), "/tmp/d": File(data=b""), "given.txt": File(data=b"x")}
        )
        assert await sandbox.read("/work/a/b/c.bin") == b"\0\xff" * 3
        assert await sandbox.read("/tmp/d") == b""
        assert await sandbox.read("given.txt") == b"x"

    within(case, body, SandboxSpec(files={"given.txt": File(data=b"given")}))


@every_provider
def test_files_that_cannot_be_read(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        await sandbox.write({"ten": File(data=b"0123456789"), "folder/file": File(data=b"")})
        assert await sandbox.read("ten", max_bytes=10) == b"0123456789"
        with pytest.raises(SandboxFileError, match="ten"):
            await sandbox.read("ten", max_bytes=9)
        with pytest.raises(SandboxFileError, match="missing"):
            await sandbox.read("missing")
        with pytest.raises(SandboxFileError, match="folder"):
            await sandbox.read("folder")
        with pytest.raises(SandboxFileError, match="folder"):
            await sandbox.write({"folder": File(data=b"")})

    within(case, body)


@every_provider
def test_the_disk_limit_stops_writing(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        with pytest.raises(SandboxLimitError):
            await sandbox.write({"big": File(data=bytes(5 << 20))})
        with pytest.raises(SandboxLimitError):
            await sandbox.write({f"part{number}": File(data=bytes(2 << 20)) for number in range(5)})
        await sandbox.write({"part0": File(data=b"small"), "big": File(data=b"")})

    within(case, body, SandboxSpec(limits=SandboxLimits(disk_mb=8, file_mb=4)))


@real_provider
def test_modes_links_and_read_only_files(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        await sandbox.write(
            {"run.sh": File(data=b"#!/bin/sh\necho ran\n", mode=0o755), "kept": File(data=b"old", mode=0o400)}
        )
        assert (await sandbox.exec(["./run.sh"], timeout_s=30)).stdout.text() == "ran\n"
        await sandbox.write({"kept": File(data=b"new")})
        assert await sandbox.read("kept") == b"new"
        await sandbox.exec(["sh", "-c", "ln -s kept link; ln -s nowhere dangling; mkfifo fifo"], timeout_s=30)
        assert await sandbox.read("link") == b"new"
        await sandbox.write({"link": File(data=b"through"), "dangling": File(data=b"made")})
        assert await sandbox.read("kept") == b"through"
        assert await sandbox.read("dangling") == b"made"
        for path in ("fifo", "/dev/zero", "/dev/tty"):
            with pytest.raises(SandboxFileError, match="not a regular file"):
                await sandbox.read(path)
        for path in ("/usr/bin/new", "/proc/self/mem", "/proc/self/comm", "kept/below"):
            with pytest.raises(SandboxFileError, match=path):
                await sandbox.write({path: File(data=b"x")})
        assert await sandbox.healthy()

    within(case, body)


@real_provider
def test_many_files_at_once(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sh", "-c", "find . -type f | wc -l"], timeout_s=30)
        assert result.stdout.text() == "3000\n"
        assert await sandbox.read("d7/file-2007.txt") == b"2007"

    many = {f"d{number % 10}/file-{number}.txt": File(data=str(number).encode()) for number in range(3000)}
    within(case, body, SandboxSpec(files=many))


# ---------------------------------------------------------------- the shell


@every_provider
def test_a_shell_runs_commands(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        shell = await sandbox.shell()
        result = await shell.run("echo hello", timeout_s=30)
        assert (result.exit_code, result.output.text(), result.restarted) == (0, "hello\n", False)
        assert (await shell.run("false", timeout_s=30)).exit_code == 1
        assert (await shell.run("sleep 1000", timeout_s=0.2)).timed_out
        assert (await shell.run("true", timeout_s=30)).exit_code == 0
        await shell.aclose()
        await shell.aclose()
        with pytest.raises(SandboxError):
            await shell.run("true", timeout_s=30)

    within(case, body)


# ---------------------------------------------------------------- life and death


@every_provider
def test_closing_twice_is_fine_and_ends_everything(case: Case) -> None:
    async def body(sandbox: Sandbox) -> None:
        shell = await sandbox.shell()
        assert await sandbox.healthy()
        pending = asyncio.gather(
            sandbox.exec(["sleep", "1000"], timeout_s=500),
            shell.run("sleep 1000", timeout_s=500),
            return_exceptions=True,
        )
        await asyncio.sleep(0)
        await sandbox.aclose()
        await sandbox.aclose()
        assert [type(error) for error in await pending] == [SandboxError, SandboxError]
        assert not await sandbox.healthy()
        for call in (
            lambda: sandbox.exec(["true"], timeout_s=30),
            lambda: sandbox.read("x"),
            lambda: sandbox.write({"x": File(data=b"")}),
            lambda: sandbox.shell(),
            lambda: shell.run("true", timeout_s=30),
        ):
            with pytest.raises(SandboxError):
                await call()

    within(case, body)


@every_provider
def test_open_sandbox_runs_the_setup(case: Case) -> None:
    async def main() -> None:
        provider = case.make()
        sandbox = await open_sandbox(provider, SandboxSpec(setup=("true", "echo made")), timeout_s=60)
        assert await sandbox.healthy()
        with pytest.raises(SandboxError, match=r"'exit 3' ended with 3"):
            await open_sandbox(provider, SandboxSpec(setup=("true", "exit 3")), timeout_s=60)
        with pytest.raises(SandboxError, match=r"'sleep 1000' ran out of time"):
            await open_sandbox(provider, SandboxSpec(setup=("sleep 1000",)), timeout_s=0.5)
        await provider.aclose()
        assert not await sandbox.healthy()

    asyncio.run(main())
