"""The persistent shell of the local provider."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable

import pytest
from inside_view import command_lines, until_listed

from slipstream.sandbox import LocalProvider, Sandbox, Shell
from slipstream.types import SandboxSpec

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

SHORT_S = 0.3
IGNORES_INTERRUPTS = "python3 -c 'import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(1000)'"


def within(body: Callable[[Shell, Sandbox], Awaitable[None]]) -> None:
    async def main() -> None:
        provider = LocalProvider()
        try:
            async with asyncio.timeout(300):
                sandbox = await provider.open(SandboxSpec())
                await body(await sandbox.shell(), sandbox)
        finally:
            await provider.aclose()

    asyncio.run(main())


async def says(shell: Shell, command: str) -> str:
    result = await shell.run(command, timeout_s=30)
    assert not result.timed_out and not result.restarted
    return result.output.text()


def test_state_lasts_from_one_command_to_the_next() -> None:
    async def body(shell: Shell, sandbox: Sandbox) -> None:
        await says(
            shell,
            "cd /tmp; plain=1; export exported=2; f() { echo from f $1; }; alias hi='echo alias'; set -o pipefail",
        )
        assert await says(shell, "pwd; echo $plain; sh -c 'echo $plain$exported'; f 3") == "/tmp\n1\n2\nfrom f 3\n"
        assert await says(shell, "hi; false | true; echo $?") == "alias\n1\n"
        await says(shell, "(exit 42)")
        assert await says(shell, "echo $?") == "42\n"
        assert await says(shell, "declare x=5; local_x=6; echo $_ >/dev/null") == ""
        assert await says(shell, "echo $x $local_x") == "5 6\n"

    within(body)


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("for i in 1 2\ndo\n  echo $i\ndone", "1\n2\n"),
        ("cat <<'END'\na 'json_string' $line\nEND", "a 'json_string' $line\n"),
        ("cat <<END\nlast line without newline\nEND\n", "last line without newline\n"),
        ("printf 'no newline'", "no newline"),
        ("echo one # a comment", "one\n"),
        ("echo '!!' \"!x\" \\! é", "!! !x ! é\n"),
        ("cat", ""),
        ("read x; echo status $?", "status 1\n"),
        ("echo out; echo err >&2; echo out", "out\nerr\nout\n"),
        ("", ""),
        ("   \n\n", ""),
        ("echo a\0b", "ab\n"),
        ("sh -c 'kill -9 $$'; echo $?", "137\n"),
        ("echo a > /dev/stdout", "a\n"),
        ("exec > file; echo hidden; cat file >&2", "hidden\n"),
        ("set -u; echo ${HOME}; set +u", "/work\n"),
        ("PS1='prompt> '; PROMPT_COMMAND='echo noise'", ""),
        ("[ -t 0 ] || [ -t 1 ] || echo no terminal", "no terminal\n"),
    ],
)
def test_output_of(command: str, output: str) -> None:
    async def body(shell: Shell, sandbox: Sandbox) -> None:
        assert await says(shell, command) == output
        assert await says(shell, "echo next") == "next\n"

    within(body)


@pytest.mark.parametrize("command", ["echo 'open", 'echo "open', "if true", "echo $(", "cat <<END", ")", "for"])
def test_a_syntax_error_is_an_exit_code(command: str) -> None:
    async def body(shell: Shell, sandbox: Sandbox) -> None:
        result = await shell.run(command, timeout_s=30)
        assert not result.timed_out and not result.restarted
        assert command == "cat <<END" or result.exit_code not in (0, None)
        assert await says(shell, "echo next") == "next\n"

    within(body)


def test_megabytes_of_output() -> None:
    async def body(shell: Shell, sandbox: Sandbox) -> None:
        result = await shell.run("seq 1000000", timeout_s=30, max_output_bytes=100)
        assert result.output.num_bytes == 6_888_896
        assert result.output.head.startswith(b"1\n2\n") and result.output.tail.endswith(b"999999\n1000000\n")
        long = await shell.run("echo " + "x" * 300_000 + " | wc -c", timeout_s=30)
        assert long.output.text() == "300001\n"

    within(body)


@pytest.mark.parametrize(
    "command",
    [
        "sleep 1000",
        "while true; do :; done",
        "while true; do sleep 1; done",
        "(trap '' INT; sleep 1000)",
        "bash -c \"trap '' INT; sleep 1000\"",
        IGNORES_INTERRUPTS,
        "sleep 1000 | cat",
        "setsid sleep 1000",
        "x=$(sleep 1000)",
        "trap '' INT; sleep 1000",
        "yes",
        "wait $!; sleep 1000 & wait",
    ],
)
def test_the_deadline_stops_the_command_and_keeps_the_shell(command: str) -> None:
    async def body(shell: Shell, sandbox: Sandbox) -> None:
        await says(shell, "cd /tmp; kept=kept; sleep 4000 & echo $! > server")
        result = await shell.run("echo begun\n" + command, timeout_s=SHORT_S)
        assert (result.exit_code, result.timed_out, result.restarted) == (None, True, False)
        assert result.output.head.startswith(b"begun\n")
        assert await says(shell, "echo $kept; pwd") == "kept\n/tmp\n"
        left = (await command_lines(sandbox)).values()
        assert not [command for command in left if re.search(r"sleep 1000|time\.sleep|^yes", command)]
        assert "sleep 4000" in left
        assert await says(shell, "kill -0 $(cat server) && echo served") == "served\n"

    within(body)


def test_a_shell_that_will_not_be_interrupted_is_replaced() -> None:
    async def body(shell: Shell, sandbox: Sandbox) -> None:
        await says(shell, "cd /tmp; gone=gone")
        result = await shell.run("trap '' INT; while true; do :; done", timeout_s=SHORT_S)
        assert (result.exit_code, result.timed_out, result.restarted) == (None, True, True)
        assert await says(shell, "echo [$gone]; pwd") == "[]\n/tmp\n"

    within(body)


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [("exit 3", 3), ("set -e; false", 1), ("exec true", 0), ("exec sh -c 'exit 5'", 5), ("kill -9 $$", 137)],
)
def test_a_command_that_ends_the_shell(command: str, exit_code: int) -> None:
    async def body(shell: Shell, sandbox: Sandbox) -> None:
        await says(shell, "mkdir there; cd there")
        result = await shell.run("echo before; " + command, timeout_s=30)
        assert (result.exit_code, result.timed_out, result.restarted) == (exit_code, False, True)
        assert result.output.head.startswith(b"before\n")
        assert await says(shell, "pwd") == "/work/there\n"

    within(body)


def test_set_e_does_not_end_the_shell_while_commands_succeed() -> None:
    async def body(shell: Shell, sandbox: Sandbox) -> None:
        await says(shell, "set -e")
        assert await says(shell, "false || echo handled") == "handled\n"
        assert await says(shell, "echo on") == "on\n"

    within(body)


def test_a_restarted_shell_whose_directory_is_gone_begins_in_the_workdir() -> None:
    async def body(shell: Shell, sandbox: Sandbox) -> None:
        await says(shell, "mkdir there; cd there")
        assert (await shell.run("rmdir ../there; exit 1", timeout_s=30)).restarted
        assert await says(shell, "pwd") == "/work\n"

    within(body)


def test_background_processes_do_not_delay_and_their_output_comes_later() -> None:
    async def body(shell: Shell, sandbox: Sandbox) -> None:
        result = await shell.run("mkfifo pipe; (read line < pipe; echo late $line) & echo hi", timeout_s=30)
        assert result.exit_code == 0 and result.output.text().endswith("hi\n")
        assert await says(shell, "echo word > pipe; wait; echo after") == "late word\nafter\n"

    within(body)


def test_no_output_can_look_like_the_end() -> None:
    async def body(shell: Shell, sandbox: Sandbox) -> None:
        result = await shell.run(
            "for fd in 1 2 202 203; do printf '1\\0000\\000/\\000' >&$fd; done; sleep 1000", timeout_s=SHORT_S
        )
        assert result.timed_out
        assert (await shell.run("ls /proc/self/fd; exit 4", timeout_s=30)).exit_code == 4

    within(body)


def test_cancelling_a_command_kills_it_and_leaves_the_rest() -> None:
    async def body(shell: Shell, sandbox: Sandbox) -> None:
        await says(shell, "cd /tmp; sleep 4000 & echo $! > server")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT_S):
                await shell.run("sleep 1000", timeout_s=500)
        await until_listed(sandbox, lambda commands: "sleep 1000" not in commands.values())
        result = await shell.run("pwd; kill -0 $(cat server)", timeout_s=30)
        assert (result.exit_code, result.output.text()) == (0, "/tmp\n")

    within(body)


def test_shells_are_apart_and_commands_take_turns() -> None:
    async def body(shell: Shell, sandbox: Sandbox) -> None:
        other = await sandbox.shell()
        await asyncio.gather(says(shell, "x=1"), says(other, "x=2"))
        said = await asyncio.gather(says(shell, "echo $x"), says(other, "echo $x"))
        assert list(said) == ["1\n", "2\n"]
        assert await asyncio.gather(*(says(shell, f"echo {n}") for n in range(5))) == [f"{n}\n" for n in range(5)]
        await says(other, "sleep 1000 &")
        await other.aclose()
        await until_listed(sandbox, lambda commands: "sleep 1000" not in commands.values())

    within(body)


def test_prompts_of_any_length_go_nowhere() -> None:
    async def body(shell: Shell, sandbox: Sandbox) -> None:
        await says(shell, "PS1=$(head -c 300000 /dev/zero | tr '\\0' p)")
        assert await says(shell, "echo still") == "still\n"

    within(body)


def test_a_shell_killed_between_commands_says_so() -> None:
    async def body(shell: Shell, sandbox: Sandbox) -> None:
        await says(shell, "cd /tmp")
        (pid,) = (pid for pid, command in (await command_lines(sandbox)).items() if command.startswith("bash"))
        await sandbox.exec(["sh", "-c", f"kill -9 {pid}"], timeout_s=30)
        await until_listed(sandbox, lambda commands: pid not in commands)
        result = await shell.run("pwd", timeout_s=30)
        assert (result.exit_code, result.output.text(), result.restarted) == (0, "/tmp\n", True)

    within(body)
