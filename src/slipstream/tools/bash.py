"""bash: runs commands in a shell that lives as long as the rollout.

Input: a command. Output: its output without terminal escapes, then bracketed lines such as the exit code.
Invariants: the shell kills a command before the call's own deadline, so that its output is not lost.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated

from pydantic import Field

from slipstream.sandbox.base import Shell, ShellResult
from slipstream.tools.base import Effect, Observation, ToolContext
from slipstream.tools.define import DEFAULT_MAX_OUTPUT_CHARS, TypedTool, class_tool

DEFAULT_TIMEOUT_S = 60.0
MAX_TIMEOUT_S = 600.0
KILL_S = 5.0
"""The time for the shell to kill a command and to respond, before the call itself is cancelled."""

_ESCAPES = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor movements
    r"|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # strings: titles, links
    r"|[ -/]+[0-~]"  # character sets
    r"|[0-~])"
)


class Bash:
    def __init__(self, default_timeout_s: float = DEFAULT_TIMEOUT_S, max_timeout_s: float = MAX_TIMEOUT_S) -> None:
        self._default_timeout_s = default_timeout_s
        self._max_timeout_s = max_timeout_s
        self._shell: Shell | None = None

    async def call(
        self,
        command: Annotated[str, "the command, of one or more lines"],
        timeout_s: Annotated[float | None, "seconds after which the command is killed", Field(gt=0)] = None,
        *,
        ctx: ToolContext,
    ) -> Observation:
        """Run a command in a bash shell. Its directory and variables last between calls; standard input is empty."""
        if self._shell is None:
            self._shell = await ctx.need_sandbox().shell()
        remaining_s = ctx.remaining_s()
        limit_s = min(
            timeout_s or self._default_timeout_s, self._max_timeout_s, max(remaining_s - KILL_S, remaining_s / 2)
        )
        result = await self._shell.run(command, timeout_s=limit_s)
        return Observation(text=_report(result, limit_s), is_error=result.exit_code != 0)

    async def aclose(self) -> None:
        shell, self._shell = self._shell, None
        if shell is not None:
            await shell.aclose()


def make_bash(
    *,
    default_timeout_s: float = DEFAULT_TIMEOUT_S,
    max_timeout_s: float = MAX_TIMEOUT_S,
    max_output_chars: int = DEFAULT_MAX_OUTPUT_CHARS,
) -> TypedTool:
    return class_tool(
        partial(Bash, default_timeout_s, max_timeout_s),
        name="bash",
        effect=Effect.SANDBOX,
        timeout_s=max_timeout_s + KILL_S,
        max_output_chars=max_output_chars,
    )


bash = make_bash()


def _report(result: ShellResult, limit_s: float) -> str:
    output = _ESCAPES.sub("", result.output.text()).rstrip("\n")
    lines = [output] if output else []
    if result.output.num_left_out:
        # The note of the capture is in the middle, where the toolset cuts.
        lines.append(f"[the output had {result.output.num_bytes} bytes]")
    if result.timed_out:
        usable = "" if result.restarted else ", the shell is still usable"
        lines.append(f"[timed out after {round(limit_s, 1):g} s; the command was killed{usable}]")
    elif result.exit_code:
        lines.append(f"[exit code {result.exit_code}]")
    if result.restarted:
        lines.append("[the shell was restarted: variables are gone, the directory is kept]")
    return "\n".join(lines) or "[no output]"
