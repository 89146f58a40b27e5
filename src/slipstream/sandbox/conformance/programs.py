"""Conformance cases for programs and the shell. See `suite.py`."""

from __future__ import annotations

import asyncio

from slipstream.errors import SandboxError, SandboxFileError
from slipstream.sandbox.base import SandboxProvider
from slipstream.sandbox.conformance.case import (
    LONG_S,
    Cases,
    Need,
    SpecMaker,
    all_gone,
    becomes,
    expecting,
    opened,
    output,
    sh,
)

PROGRAM_CASES = Cases()


@PROGRAM_CASES.case()
async def exec_gives_output_and_exit_code(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        result = await sandbox.exec(["echo", "one", "two"], timeout_s=LONG_S)
        assert (result.exit_code, result.stdout.text(), result.timed_out) == (0, "one two\n", False)
        assert (await sh(sandbox, "exit 7")).exit_code == 7


@PROGRAM_CASES.case()
async def a_program_that_does_not_exist_is_127(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        assert (await sandbox.exec(["no-such-program"], timeout_s=LONG_S)).exit_code == 127


@PROGRAM_CASES.case()
async def the_deadline_ends_a_program(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        result = await sandbox.exec(["sleep", "1000"], timeout_s=0.1)
        assert (result.exit_code, result.timed_out) == (None, True)
        assert (await sandbox.exec(["true"], timeout_s=LONG_S)).exit_code == 0


@PROGRAM_CASES.case()
async def long_output_is_cut_in_the_middle(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        words = [str(number) for number in range(1000)]
        result = await sandbox.exec(["echo", *words], timeout_s=LONG_S, max_output_bytes=20)
        assert (result.stdout.head, result.stdout.tail) == (b"0 1 2 3 4 ", b"7 998 999\n")
        assert result.stdout.num_bytes == len(" ".join(words)) + 1


@PROGRAM_CASES.case()
async def execs_run_side_by_side(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        calls = [sandbox.exec(["echo", str(number)], timeout_s=LONG_S) for number in range(20)]
        results = await asyncio.gather(*calls)
        assert [result.stdout.text() for result in results] == [f"{number}\n" for number in range(20)]


@PROGRAM_CASES.case()
async def cancelling_an_exec_leaves_the_sandbox_usable(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        with expecting(TimeoutError):
            async with asyncio.timeout(0.1):
                await sandbox.exec(["sleep", "1000"], timeout_s=500)
        assert (await sandbox.exec(["true"], timeout_s=LONG_S)).exit_code == 0


@PROGRAM_CASES.case(Need.PROGRAMS)
async def cancelling_kills_what_the_call_started(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        shell = await sandbox.shell()
        for call in (
            lambda: sh(sandbox, "sleep 1001 & sleep 1002", timeout_s=500),
            lambda: shell.run("sleep 1003; sleep 1004", timeout_s=500),
        ):
            with expecting(TimeoutError):
                async with asyncio.timeout(0.5):
                    await call()
        await all_gone(sandbox, "sleep 100")
        assert (await shell.run("echo on", timeout_s=LONG_S)).output.text() == "on\n"


@PROGRAM_CASES.case(Need.PROGRAMS)
async def exec_takes_stdin_environment_and_directory(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec(env={"ONE": "1", "TWO": "none"}, workdir="/work/place")) as sandbox:
        script = "cat; echo $ONE $TWO; pwd; echo gone >&2"
        result = await sandbox.exec(["sh", "-c", script], stdin=b"in\n", env={"TWO": "2"}, cwd="/tmp", timeout_s=LONG_S)
        assert (result.stdout.text(), result.stderr.text()) == ("in\n1 2\n/tmp\n", "gone\n")
        assert await output(sandbox, "pwd; cat") == "/work/place\n"
        large = await sandbox.exec(["wc", "-c"], stdin=b"x" * 3_000_000, timeout_s=LONG_S)
        assert large.stdout.text().strip() == "3000000"
        unread = await sandbox.exec(["true"], stdin=b"x" * 3_000_000, timeout_s=LONG_S)
        assert unread.exit_code == 0
        with expecting(SandboxFileError, "/nowhere"):
            await sandbox.exec(["true"], cwd="/nowhere", timeout_s=LONG_S)


@PROGRAM_CASES.case(Need.PROGRAMS)
async def output_is_bytes_and_each_stream_has_its_own_cap(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        raw = await sh(sandbox, r"printf '\377\000\033[31m'")
        assert raw.stdout.head + raw.stdout.tail == b"\xff\0\x1b[31m"
        script = ["sh", "-c", "head -c 300000 /dev/zero; head -c 200000 /dev/zero >&2; echo end"]
        both = await sandbox.exec(script, timeout_s=LONG_S, max_output_bytes=1000)
        assert (both.stdout.num_bytes, both.stderr.num_bytes) == (300_004, 200_000)
        assert len(both.stdout.head + both.stdout.tail) == len(both.stderr.head + both.stderr.tail) == 1000
        assert both.stdout.tail.endswith(b"end\n")


@PROGRAM_CASES.case(Need.PROGRAMS)
async def endless_output_ends_at_the_deadline(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        result = await sandbox.exec(["yes"], timeout_s=0.5, max_output_bytes=1000)
        assert result.timed_out
        assert len(result.stdout.head + result.stdout.tail) <= 1000
        assert await sandbox.healthy()


@PROGRAM_CASES.case(Need.PROGRAMS)
async def arguments_may_be_long(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        words = ["word"] * 100_000
        result = await sandbox.exec(["echo", *words], timeout_s=LONG_S)
        assert result.stdout.num_bytes == 5 * len(words)
        odd = ["", " ", "a\nb", "'", '"', "$HOME", "*", "ünï"]
        result = await sandbox.exec(["sh", "-c", 'for x; do printf "<%s>" "$x"; done', "sh", *odd], timeout_s=LONG_S)
        assert result.stdout.text() == "".join(f"<{word}>" for word in odd)


@PROGRAM_CASES.case(Need.PROGRAMS)
async def how_programs_end(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        assert (await sh(sandbox, "kill -9 $$")).exit_code == 128 + 9
        assert (await sandbox.exec(["/etc/passwd"], timeout_s=LONG_S)).exit_code == 126
        assert (await sandbox.exec(["/etc/passwd/x"], timeout_s=LONG_S)).exit_code in (126, 127)
        assert (await sandbox.exec(["a\0b"], timeout_s=LONG_S)).exit_code == 126
        assert (await sandbox.exec(["\ud800"], timeout_s=LONG_S)).exit_code == 126


@PROGRAM_CASES.case(Need.PROGRAMS)
async def a_process_left_behind_delays_nothing_and_lives_on(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        result = await sh(sandbox, "sleep 1000 & echo $!")
        assert result.exit_code == 0
        await becomes(sandbox, int(result.stdout.text()), "sleep 1000")
        assert (await sh(sandbox, "yes & echo begun")).exit_code == 0


@PROGRAM_CASES.case(Need.PROGRAMS)
async def the_deadline_kills_the_whole_session(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        result = await sh(sandbox, "echo out; sleep 1001 & (sleep 1003 & sleep 1004)", timeout_s=0.5)
        assert (result.timed_out, result.stdout.text()) == (True, "out\n")
        await all_gone(sandbox, "sleep 100")


@PROGRAM_CASES.case(Need.PROGRAMS)
async def programs_may_open_their_output_by_name(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        result = await sh(sandbox, "echo a > /dev/stdout; echo b > /dev/stderr")
        assert (result.stdout.text(), result.stderr.text()) == ("a\n", "b\n")


# ---------------------------------------------------------------- the shell


@PROGRAM_CASES.case()
async def a_shell_runs_commands(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        shell = await sandbox.shell()
        result = await shell.run("echo hello", timeout_s=LONG_S)
        assert (result.exit_code, result.output.text(), result.restarted) == (0, "hello\n", False)
        assert (await shell.run("false", timeout_s=LONG_S)).exit_code == 1
        late = await shell.run("sleep 1000", timeout_s=0.2)
        assert (late.timed_out, late.exit_code) == (True, None)
        assert (await shell.run("true", timeout_s=LONG_S)).exit_code == 0
        await shell.aclose()
        await shell.aclose()
        with expecting(SandboxError):
            await shell.run("true", timeout_s=LONG_S)
        assert await sandbox.healthy()


@PROGRAM_CASES.case(Need.PROGRAMS)
async def a_shell_keeps_its_state(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec(env={"GIVEN": "yes"})) as sandbox:
        shell, other = await sandbox.shell(), await sandbox.shell()
        await shell.run("mkdir -p sub && cd sub; NAME=value; greet() { echo hi $1; }", timeout_s=LONG_S)
        result = await shell.run("pwd; echo $NAME $GIVEN; greet you; cat; echo err >&2", timeout_s=LONG_S)
        assert result.output.text() == "/work/sub\nvalue yes\nhi you\nerr\n"
        assert (await other.run("pwd; echo ${NAME:-none}", timeout_s=LONG_S)).output.text() == "/work\nnone\n"
        await shell.run("sleep 1000", timeout_s=0.3)
        result = await shell.run("pwd; echo $NAME", timeout_s=LONG_S)
        assert result.restarted or result.output.text() == "/work/sub\nvalue\n"
        await all_gone(sandbox, "sleep 1000")


@PROGRAM_CASES.case(Need.PROGRAMS)
async def a_shell_that_ended_is_replaced(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        shell = await sandbox.shell()
        ended = await shell.run("exit 5", timeout_s=LONG_S)
        after = await shell.run("echo back", timeout_s=LONG_S)
        assert after.output.text() == "back\n"
        assert ended.restarted or after.restarted
        flood = await shell.run("yes", timeout_s=0.5, max_output_bytes=100)
        assert flood.timed_out
        assert len(flood.output.head + flood.output.tail) <= 100
        assert (await shell.run("echo on", timeout_s=LONG_S)).output.text() == "on\n"
