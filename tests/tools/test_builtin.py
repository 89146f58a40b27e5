from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import pytest

from slipstream.sandbox.base import Captured, ShellResult
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.simulate.clock import run_virtual
from slipstream.tools import CallResult, Finish, Toolset
from slipstream.tools.bash import make_bash
from slipstream.types import File, Json, SandboxSpec, ToolCall

from .support import StubSandbox, call, shell_result


def run(*calls: ToolCall, sandbox: StubSandbox | None = None) -> tuple[CallResult, ...]:
    async def main() -> tuple[CallResult, ...]:
        toolset = Toolset.named(("bash", "read_file", "write_file", "finish"))
        async with toolset.open(sandbox=sandbox or StubSandbox()) as opened:
            return await opened.run(calls, ())

    return run_virtual(main())


def said(*calls: ToolCall, sandbox: StubSandbox | None = None) -> str:
    return run(*calls, sandbox=sandbox)[-1].text


# ---------------------------------------------------------------- bash


@pytest.mark.parametrize(
    ("result", "text", "is_error"),
    [
        (shell_result(b"hello\n"), "hello", False),
        (shell_result(), "[no output]", False),
        (shell_result(b"\n\n"), "[no output]", False),
        (shell_result(b"oops\n", 1), "oops\n[exit code 1]", True),
        (shell_result(b"", 2), "[exit code 2]", True),
        (
            shell_result(b"so far\n", None, timed_out=True),
            "so far\n[timed out after 60 s; the command was killed, the shell is still usable]",
            True,
        ),
        (
            shell_result(b"", None, timed_out=True, restarted=True),
            "[timed out after 60 s; the command was killed]\n"
            "[the shell was restarted: variables are gone, the directory is kept]",
            True,
        ),
        (
            shell_result(b"bye\n", 3, restarted=True),
            "bye\n[exit code 3]\n[the shell was restarted: variables are gone, the directory is kept]",
            True,
        ),
    ],
)
def test_bash_says_what_the_output_does_not(result: ShellResult, text: str, is_error: bool) -> None:
    (answer,) = run(call("bash", command="x"), sandbox=StubSandbox(script=[result]))
    assert (answer.text, answer.is_error) == (text, is_error)


def test_bash_strips_terminal_escapes() -> None:
    output = (
        b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ \x1b(Bplain\x1b7\x1b[?25l [1m\n"
    )
    assert said(call("bash", command="x"), sandbox=StubSandbox(script=[shell_result(output)])) == "red link plain [1m"


def test_bash_says_how_long_a_captured_output_was() -> None:
    result = replace(shell_result(), output=Captured(head=b"a", tail=b"b", num_bytes=1000))
    assert said(call("bash", command="x"), sandbox=StubSandbox(script=[result])) == (
        "a\n[... 998 bytes left out ...]\nb\n[the output had 1000 bytes]"
    )


def test_bash_keeps_one_shell_for_the_rollout_and_closes_it() -> None:
    sandbox = StubSandbox(script=[shell_result(), shell_result()])
    run(call("bash", command="cd /"), call("bash", command="pwd", timeout_s=5), sandbox=sandbox)
    (shell,) = sandbox.shells
    assert shell.commands == [("cd /", 60.0), ("pwd", 5.0)]
    assert shell.num_closed == 1


def test_bash_opens_no_shell_until_it_is_called() -> None:
    sandbox = StubSandbox()
    run(call("finish"), sandbox=sandbox)
    assert sandbox.shells == []


@pytest.mark.parametrize(
    ("asked_s", "deadline_s", "given_s"),
    [(None, 1000.0, 20.0), (90.0, 1000.0, 50.0), (40.0, 30.0, 25.0), (40.0, 4.0, 2.0)],
)
def test_bash_is_killed_by_the_shell_before_the_call_is_cancelled(
    asked_s: float | None, deadline_s: float, given_s: float
) -> None:
    sandbox = StubSandbox(script=[shell_result()])

    async def main() -> None:
        toolset = Toolset([make_bash(default_timeout_s=20, max_timeout_s=50)])
        async with toolset.open(sandbox=sandbox) as opened:
            await opened.run([call("bash", command="x", timeout_s=asked_s)], (), deadline_s=deadline_s)

    run_virtual(main())
    assert sandbox.shells[0].commands == [("x", given_s)]


def test_rollouts_do_not_share_a_shell() -> None:
    toolset, sandboxes = Toolset.named(("bash",)), [StubSandbox(script=[shell_result()]) for _ in range(2)]

    async def rollout(sandbox: StubSandbox) -> None:
        async with toolset.open(sandbox=sandbox) as opened:
            await opened.run([call("bash", command="x")], ())

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for sandbox in sandboxes:
                group.create_task(rollout(sandbox))

    run_virtual(main())
    assert [len(sandbox.shells) for sandbox in sandboxes] == [1, 1]


# ---------------------------------------------------------------- files


FILES = {
    "a.txt": b"one\ntwo\nthree\n",
    "open.txt": b"one\ntwo",
    "empty": b"",
    "nul": b"a\0b",
    "latin": b"caf\xe9",
    "large": b"x" * (5 << 20),
}


@pytest.mark.parametrize(
    ("arguments", "text", "is_error"),
    [
        ({"path": "a.txt"}, "one\ntwo\nthree\n", False),
        ({"path": "a.txt", "start_line": 2}, "two\nthree\n[lines 2 to 3 of 3]", False),
        ({"path": "a.txt", "end_line": 1}, "one\n[lines 1 to 1 of 3]", False),
        ({"path": "a.txt", "start_line": 2, "end_line": 2}, "two\n[lines 2 to 2 of 3]", False),
        ({"path": "open.txt", "start_line": 2, "end_line": 9}, "two\n[the file ends at line 2]", False),
        (
            {"path": "a.txt", "start_line": 4},
            "read_file: start_line 4 is beyond the end: a.txt has 3 lines",
            True,
        ),
        ({"path": "a.txt", "start_line": 3, "end_line": 2}, "read_file: start_line 3 is after end_line 2", True),
        ({"path": "empty"}, "[empty is empty]", False),
        ({"path": "nul"}, "read_file: nul is binary (3 bytes): only UTF-8 text can be read", True),
        ({"path": "latin"}, "read_file: latin is binary (4 bytes): only UTF-8 text can be read", True),
        ({"path": "none"}, "/work/none: No such file or directory", True),
        ({"path": "large"}, "/work/large: larger than 4194304 bytes", True),
    ],
)
def test_read_file(arguments: dict[str, Json], text: str, is_error: bool) -> None:
    (result,) = run(call("read_file", **arguments), sandbox=StubSandbox(files=dict(FILES)))
    assert (result.text, result.is_error) == (text, is_error)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("naïve\n", "Wrote 7 bytes, 1 line, to d/f."),
        ("a\nb", "Wrote 3 bytes, 2 lines, to d/f."),
        ("x", "Wrote 1 byte, 1 line, to d/f."),
        ("", "Wrote 0 bytes, 0 lines, to d/f."),
    ],
)
def test_write_file(content: str, text: str) -> None:
    sandbox = StubSandbox()
    assert said(call("write_file", path="d/f", content=content), sandbox=sandbox) == text
    assert sandbox.files == {"/work/d/f": File(data=content.encode())}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")
def test_write_file_keeps_the_mode_that_is_there() -> None:
    async def main() -> str:
        provider = LocalProvider()
        given = {"run.sh": File(data=b"exit 1\n", mode=0o755), "locked.txt": File(data=b"old", mode=0o444)}
        sandbox = await provider.open(SandboxSpec(files=given))
        try:
            await sandbox.exec(["ln", "-s", "run.sh", "link.sh"], timeout_s=20)
            async with Toolset.named(["write_file"]).open(sandbox=sandbox) as tools:
                for path in ("run.sh", "locked.txt", "new.sh", "link.sh"):
                    (result,) = await tools.run([call("write_file", path=path, content="#!/bin/sh\necho ran\n")], ())
                    assert not result.is_error, result.text
            listed = await sandbox.exec(["sh", "-c", "./run.sh; stat -Lc '%n %a' *"], timeout_s=20)
            return listed.stdout.text()
        finally:
            await provider.aclose()

    assert asyncio.run(main()) == "ran\nlink.sh 755\nlocked.txt 444\nnew.sh 644\nrun.sh 755\n"


def test_a_write_and_a_read_of_one_turn_keep_their_order() -> None:
    assert said(call("write_file", path="f", content="new"), call("read_file", path="f")) == "new"


# ---------------------------------------------------------------- finish


def test_finish() -> None:
    with_answer, without = run(call("finish", answer="42")), run(call("finish"))
    assert (with_answer[0].outcome, without[0].outcome) == (Finish(answer="42"), Finish(answer=None))


def test_finish_ends_the_turn() -> None:
    results = run(call("finish"), call("bash", command="rm -r ."))
    assert results[1].text == "Not run: the call to finish before it ended the rollout."
