"""Enters the environment that a base holds, such as a conda environment: for all programs of a sandbox alike.

Input: a SandboxSpec with an Activation. Output: the environment variables of its programs.
Invariants: the agent's shell, the set-up and the grader's programs get the same variables; a base without the
environment is named in an error before anything else runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.errors import SandboxError
from slipstream.sandbox.base import ExecResult, Sandbox
from slipstream.types import SandboxSpec

ENTER = 'eval "$1" >&2 </dev/null; code=$?; [ "$code" -eq 0 ] || exit "$code"; printf "\\0"; exec env -0'
"""For bash: runs the script that is its first argument, and writes the variables that it leaves."""
MAX_ENV_BYTES = 1 << 20
CHECK_TIMEOUT_S = 60.0
_NOT_KEPT = ("_", "SHLVL", "PWD", "OLDPWD")
_SHOWN_CHARS = 1_000


def activated(env: Mapping[str, str], spec: SandboxSpec) -> dict[str, str]:
    """The variables of a base's programs, with those of the spec."""
    activation = spec.activation
    found = {**env, **activation.env, **spec.env}
    if activation.path:
        found["PATH"] = ":".join((*activation.path, *filter(None, [found.get("PATH", "")])))
    return found


def read_entered(result: ExecResult, spec: SandboxSpec) -> dict[str, str]:
    """The variables that `ENTER` wrote. Raises SandboxError if the script failed."""
    _, ended, listed = (result.stdout.head + result.stdout.tail).partition(b"\0")
    if result.exit_code == 0 and ended and not result.stdout.num_left_out:
        pairs = (pair.partition("=") for pair in listed.decode("utf-8", "surrogateescape").split("\0") if "=" in pair)
        return {name: value for name, _, value in pairs if name not in _NOT_KEPT}
    how = "timed out" if result.timed_out else f"failed with exit code {result.exit_code}"
    said = (result.stdout.text() + result.stderr.text())[-_SHOWN_CHARS:].strip() or "no output"
    raise SandboxError(
        f"the activation script {spec.activation.script!r} {how} in {spec.base}: {said}; it must leave bash running "
        "and succeed: correct it, or name an image that has this environment"
    )


async def check_python(sandbox: Sandbox, spec: SandboxSpec) -> None:
    """Raises SandboxError unless `python` is the interpreter of the environment."""
    wanted = spec.activation.python
    if not wanted:
        return
    result = await sandbox.exec(["/bin/sh", "-c", "command -v python"], timeout_s=CHECK_TIMEOUT_S)
    found = result.stdout.text().strip()
    if result.exit_code == 0 and found == wanted:
        return
    instead = f"`python` is {found}" if found else "there is no `python`"
    raise SandboxError(
        f"the environment of {spec.base} cannot be entered: `python` should be {wanted}, but {instead}. Name an image "
        "that has it, or where this one has its Python (for a reader of tasks, as tasks.args.python)"
    )
