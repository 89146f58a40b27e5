"""The command grader: a command in a fresh sandbox over the agent's artifact, on every provider."""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest

from slipstream.errors import ConfigError, GraderError, SandboxError
from slipstream.graders import command as command_module
from slipstream.graders.base import GradeContext
from slipstream.graders.command import CommandGrader
from slipstream.sandbox.base import SandboxProvider
from slipstream.sandbox.fake import Answer, Command, FakeProvider, Files, few_programs
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.types import Artifact, File, Grading, SandboxLimits, SandboxSpec, Verdict


async def script(command: Command, files: Files) -> Answer:
    """Plays the few lines of shell that these tests use: `a; b; c`, with `test -f`, `cat` and what the fake knows."""
    assert not isinstance(command, str) and list(command[:2]) == ["/bin/sh", "-c"]
    code, output = 0, ""
    for line in command[2].split("; "):
        match line.split(" "):
            case ["test", "-f", path]:
                code, said = int(f"/work/{path}" not in files), ""
            case ["cat", path]:
                code, said = await few_programs(["cat", f"/work/{path}"], files)
            case _:
                code, said = await few_programs(line, files)
        output += said
        if line.startswith("exit"):
            break
    return code, output


needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


@pytest.fixture(params=["fake", pytest.param("local", marks=needs_linux)])
def make_provider(request: pytest.FixtureRequest) -> Callable[[], SandboxProvider]:
    return (lambda: FakeProvider(script)) if request.param == "fake" else LocalProvider


def grade_with(
    provider: SandboxProvider,
    spec: Mapping[str, Any],
    files: Mapping[str, bytes] | None = None,
    sandbox: SandboxSpec | None = None,
) -> Verdict:
    async def main() -> Verdict:
        context = GradeContext(provider=provider, sandbox=sandbox or SandboxSpec())
        try:
            grading = Grading(kind="command", spec=spec)
            return await CommandGrader().grade(grading, Artifact(files=files or {}), context)
        finally:
            await provider.aclose()

    return asyncio.run(main())


@pytest.mark.parametrize(("command", "reward"), [("true", 1.0), ("exit 0", 1.0), ("false", 0.0), ("exit 1", 0.0)])
def test_the_exit_code_is_the_reward(make_provider: Callable[[], SandboxProvider], command: str, reward: float) -> None:
    assert grade_with(make_provider(), {"command": command}).reward == reward


@pytest.mark.parametrize(("command", "code"), [("exit 2", 2), ("no-such-program", 127)])
@pytest.mark.parametrize(("reward", "otherwise"), [("exit", "|| exit 1"), ("stdout", "|| echo 0")])
def test_any_other_code_is_a_failure_of_the_grader_that_names_the_remedy(
    make_provider: Callable[[], SandboxProvider], command: str, code: int, reward: str, otherwise: str
) -> None:
    with pytest.raises(GraderError) as raised:
        grade_with(make_provider(), {"command": f"echo said so; {command}", "reward": reward})
    told = f"ended with {code} (end the command with `{otherwise}` if the work can cause this): said so"
    assert told in str(raised.value)


@needs_linux
@pytest.mark.parametrize(("out", "reward"), [(b"7\n", 1.0), (b"8\n", 0.0), (None, 0.0)])
def test_in_the_documented_example_work_that_is_missing_is_worth_0(out: bytes | None, reward: float) -> None:
    example = json.loads((command_module.__doc__ or "").partition("Example: `")[2].partition("`.\n")[0])
    assert example.pop("kind") == "command"
    assert grade_with(LocalProvider(), example, {} if out is None else {"out": out}).reward == reward


@needs_linux
def test_a_command_without_such_an_end_may_be_given_one_where_the_output_is_the_reward() -> None:
    spec = {"command": "cat out || echo 0", "reward": "stdout"}
    assert grade_with(LocalProvider(), spec).reward == 0.0
    assert grade_with(LocalProvider(), spec, {"out": b"0.5\n"}).reward == 0.5


@pytest.mark.parametrize(
    ("command", "reward"),
    [("echo 0.25", 0.25), ("echo -1e-3", -0.001), ("echo some words; echo 3", 3.0), ("echo 1; echo", 1.0)],
)
def test_the_last_line_of_output_can_be_the_reward(
    make_provider: Callable[[], SandboxProvider], command: str, reward: float
) -> None:
    assert grade_with(make_provider(), {"command": command, "reward": "stdout"}).reward == reward


@pytest.mark.parametrize("command", ["true", "echo 1; echo fine", "echo nan", "echo inf", "echo 0.5 of 1"])
def test_output_that_is_no_reward_is_a_failure_of_the_grader(
    make_provider: Callable[[], SandboxProvider], command: str
) -> None:
    with pytest.raises(GraderError, match="is not a number"):
        grade_with(make_provider(), {"command": command, "reward": "stdout"})


def test_exit_code_1_is_no_reward_where_the_output_is(make_provider: Callable[[], SandboxProvider]) -> None:
    with pytest.raises(GraderError, match="ended with 1"):
        grade_with(make_provider(), {"command": "echo 1; exit 1", "reward": "stdout"})


@pytest.mark.parametrize("reward", ["exit", "stdout"])
def test_work_that_takes_too_long_is_worth_0(make_provider: Callable[[], SandboxProvider], reward: str) -> None:
    verdict = grade_with(make_provider(), {"command": "sleep 600", "timeout_s": 0.1, "reward": reward})
    assert verdict.reward == 0.0
    assert "limit of 0.1 s" in verdict.detail


def test_hidden_files_win_over_the_artifact(make_provider: Callable[[], SandboxProvider]) -> None:
    verdict = grade_with(
        make_provider(),
        {"command": "cat expected; cat out", "files": {"expected": "theirs\n"}},
        {"expected": b"forged\n", "out": b"\xffmine\n"},
    )
    assert verdict.detail == "theirs\n�mine"


def test_the_sandbox_is_as_the_task_made_it_and_the_artifact_wins_over_that(
    make_provider: Callable[[], SandboxProvider],
) -> None:
    sandbox = SandboxSpec(files={"given": File(data=b"given\n"), "out": File(data=b"old\n")})
    verdict = grade_with(make_provider(), {"command": "cat given; cat out"}, {"out": b"new\n"}, sandbox)
    assert verdict.detail == "given\nnew"


def test_an_artifact_that_is_missing_is_just_not_there(make_provider: Callable[[], SandboxProvider]) -> None:
    assert grade_with(make_provider(), {"command": "test -f out"}).reward == 0.0
    assert grade_with(make_provider(), {"command": "test -f out"}, {"out": b""}).reward == 1.0


def test_an_artifact_that_does_not_fit_is_worth_0_since_crashing_must_not_pay(
    make_provider: Callable[[], SandboxProvider],
) -> None:
    sandbox = SandboxSpec(limits=SandboxLimits(disk_mb=1))
    verdict = grade_with(make_provider(), {"command": "true", "files": {"x": "x"}}, {"out": bytes(2 << 20)}, sandbox)
    assert (verdict.reward, verdict.detail[:24]) == (0.0, "the artifact cannot be w")


def test_an_artifact_in_the_place_of_a_folder_is_worth_0(make_provider: Callable[[], SandboxProvider]) -> None:
    sandbox = SandboxSpec(files={"out/given": File(data=b"")})
    assert grade_with(make_provider(), {"command": "true"}, {"out": b"x"}, sandbox).reward == 0.0


def test_hidden_files_that_do_not_fit_are_no_verdict(make_provider: Callable[[], SandboxProvider]) -> None:
    with pytest.raises(SandboxError):
        sandbox = SandboxSpec(limits=SandboxLimits(disk_mb=1))
        grade_with(make_provider(), {"command": "true", "files": {"x": "x" * (2 << 20)}}, {"out": b""}, sandbox)


@pytest.mark.parametrize("command", ["true", "exit 7"])
def test_a_grading_closes_its_sandbox_whatever_comes_of_it(command: str) -> None:
    provider = FakeProvider(script)
    context = GradeContext(provider=provider, sandbox=SandboxSpec())

    async def main() -> None:
        with suppress(GraderError):
            await CommandGrader().grade(Grading(kind="command", spec={"command": command}), Artifact(), context)
        assert [sandbox.closed for sandbox in provider.sandboxes] == [True]

    asyncio.run(main())


def test_a_sandbox_that_does_not_start_is_no_verdict() -> None:
    with pytest.raises(SandboxError):
        grade_with(FakeProvider(script, num_failing=1), {"command": "true"})


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, 'key "command"'),
        ({"command": "x", "timeout_s": -1}, 'key "timeout_s"'),
        ({"command": "x", "timeout": 1}, 'key "timeout": unknown key (did you mean "timeout_s"?)'),
        ({"command": "x", "reward": "output"}, 'key "reward"'),
        ({"command": "x", "files": {"a": 1}}, 'key "files.a"'),
    ],
)
def test_a_wrong_spec_names_the_key(spec: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        CommandGrader().check(spec)
    assert said in str(raised.value)
