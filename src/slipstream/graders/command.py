"""The `command` grader: runs a command on the agent's artifact in a fresh sandbox.

The sandbox starts like the task's. The artifact's files are written into it, then the grading's hidden files, which
overwrite them; then the command runs. An artifact that does not fit is worth 0. Processes that the agent left running,
and files that are not part of the artifact, are not there.

Example: `{"kind": "command", "command": "cmp -s out expected || exit 1", "files": {"expected": "7\\n"}}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from slipstream.errors import GraderError, SandboxBroken, SandboxError, SandboxFileError, SandboxLimitError
from slipstream.graders.base import GradeContext
from slipstream.graders.spec import GraderSpec, read_spec
from slipstream.sandbox.base import ExecResult
from slipstream.sandbox.ready import open_sandbox
from slipstream.types import Artifact, File, Grading, Json, Verdict

_SHOWN_CHARS = 2_000


class CommandSpec(GraderSpec):
    command: str
    """Run by `sh -c` in the workdir."""
    files: Mapping[str, str] = Field(default_factory=dict)
    """Hidden from the agent, and written last."""
    reward: Literal["exit", "stdout"] = "exit"
    """`exit`: code 0 is reward 1, code 1 is reward 0, and any other code is a grader failure. If the work can make the
    command crash, end the command with `|| exit 1`: otherwise crashing it would avoid a reward of 0.
    `stdout`: the last line is the reward, and any code but 0 is a grader failure; there, end it with `|| echo 0`."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Choose it by the time the reference solution takes: slower work is worth 0."""


class CommandGrader:
    needs_sandbox = True

    def check(self, spec: Mapping[str, Json]) -> None:
        read_spec("command", CommandSpec, spec)

    def limit_s(self, spec: Mapping[str, Json]) -> float:
        return read_spec("command", CommandSpec, spec).timeout_s

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        spec = read_spec("command", CommandSpec, grading.spec)
        sandbox = await open_sandbox(context.provider, context.sandbox, timeout_s=context.start_timeout_s)
        hidden = {path: File(data=text.encode()) for path, text in spec.files.items()}
        try:
            await sandbox.write(hidden)
            try:
                await sandbox.write({path: File(data=data) for path, data in artifact.files.items()})
            except (SandboxFileError, SandboxLimitError) as raised:
                # The hidden files fitted, so the artifact is at fault. As a failure, a huge artifact would avoid the 0.
                return Verdict(reward=0.0, detail=f"the artifact cannot be written to a fresh sandbox: {raised}")
            await sandbox.write(hidden)
            result = await sandbox.exec(["/bin/sh", "-c", spec.command], timeout_s=spec.timeout_s)
        except SandboxBroken as raised:  # untrusted, breaking the grader's sandbox would pay
            return Verdict(reward=0.0, detail=f"the work broke the sandbox that it is graded in: {raised}")
        except (SandboxFileError, SandboxLimitError) as raised:  # of the grader's own files and command
            raise SandboxError(f"the grading command could not be run: {raised}") from raised
        finally:
            await sandbox.aclose()
        if result.timed_out:
            return Verdict(reward=0.0, detail=f"the grading command exceeded its limit of {spec.timeout_s:g} s")
        return Verdict(reward=_reward(spec, result), detail=_output_of(result))


def _reward(spec: CommandSpec, result: ExecResult) -> float:
    code = result.exit_code
    if spec.reward == "exit" and code in (0, 1):
        return 1.0 - code
    if code != 0:
        otherwise = "|| exit 1" if spec.reward == "exit" else "|| echo 0"
        remedy = f"end the command with `{otherwise}` if the work can cause this"
        raise GraderError(f"the grading command ended with {code} ({remedy}): {_output_of(result) or 'no output'}")
    lines = result.stdout.text().split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    try:
        reward = float(last)
    except ValueError:
        reward = math.nan
    if not math.isfinite(reward):
        raise GraderError(f"the grading command's last line is not a number: {last[:200]!r}")
    return reward


def _output_of(result: ExecResult) -> str:
    return (result.stdout.text() + result.stderr.text())[-_SHOWN_CHARS:].strip()
