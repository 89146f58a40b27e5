"""A command run in a fresh sandbox over the agent's artifact.

The sandbox starts as the task's did; the artifact's files are written into it, then the grading's own hidden files,
which therefore win; then the command runs. An artifact that does not fit in is worth 0. Nothing that the agent left
running, and no file that the task does not name as its artifact, is there.

Example: `{"kind": "command", "command": "cmp -s out expected || exit 1", "files": {"expected": "7\\n"}}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from slipstream.errors import GraderError, SandboxBroken, SandboxFileError, SandboxLimitError
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
    """Hidden from the agent; written last."""
    reward: Literal["exit", "stdout"] = "exit"
    """`exit`: code 0 is reward 1, code 1 is reward 0, any other is a failure of the grader. Where the work itself can
    make the command crash, end it with `|| exit 1`: untrusted, crashing would pay.
    `stdout`: the last line is the reward, and any code but 0 is a failure of the grader: there, end it with
    `|| echo 0`."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Set it from what the reference solution takes: work that is slower than this is worth 0."""


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
                # All else fitted, so it is the work that does not. Untrusted, too large would pay.
                return Verdict(reward=0.0, detail=f"the artifact cannot be put into a fresh sandbox: {raised}")
            await sandbox.write(hidden)
            result = await sandbox.exec(["/bin/sh", "-c", spec.command], timeout_s=spec.timeout_s)
        except SandboxBroken as raised:  # untrusted, breaking the grader's sandbox would pay
            return Verdict(reward=0.0, detail=f"the work broke the sandbox that it is graded in: {raised}")
        finally:
            await sandbox.aclose()
        if result.timed_out:
            return Verdict(reward=0.0, detail=f"the grading command passed its limit of {spec.timeout_s:g} s")
        return Verdict(reward=_reward(spec, result), detail=_said(result))


def _reward(spec: CommandSpec, result: ExecResult) -> float:
    code = result.exit_code
    if spec.reward == "exit" and code in (0, 1):
        return 1.0 - code
    if code != 0:
        otherwise = "|| exit 1" if spec.reward == "exit" else "|| echo 0"
        remedy = f"end the command with `{otherwise}` if the work can cause this"
        raise GraderError(f"the grading command ended with {code} ({remedy}): {_said(result) or 'no output'}")
    lines = result.stdout.text().split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    try:
        reward = float(last)
    except ValueError:
        reward = math.nan
    if not math.isfinite(reward):
        raise GraderError(f"the grading command's last line is no reward: {last[:200]!r}")
    return reward


def _said(result: ExecResult) -> str:
    return (result.stdout.text() + result.stderr.text())[-_SHOWN_CHARS:].strip()
