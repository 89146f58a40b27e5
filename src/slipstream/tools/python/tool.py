"""python: runs code in a Python interpreter that keeps what earlier calls defined.

Input: code. Output: what it printed, then the value of its last line if that is an expression. Invariants: code that
runs too long, prints too much, fails or ends its interpreter is an observation; only a lost sandbox is a failure.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from slipstream.errors import ToolError
from slipstream.sandbox.base import ExecResult, Sandbox
from slipstream.tools.base import Effect, Observation, ToolContext
from slipstream.tools.define import class_tool
from slipstream.types import File, Json

TIMEOUT_S = 60.0
KILL_S = 10.0
"""The time for the interpreter to be interrupted and to answer, before the call itself is cancelled."""
MAX_BYTES = 15_000
MAX_CODE_CHARS = 100_000
PYTHON = "python3"
PROGRAM = "/tmp/.interpreter.py"
_SOURCE = Path(__file__).with_name("program.py")


class Python:
    def __init__(self) -> None:
        self._is_there = False

    async def call(self, code: Annotated[str, "Python code, of one or more lines"], *, ctx: ToolContext) -> Observation:
        """Run Python code, and show what it prints and the value of its last line. What it defines lasts between
        calls."""
        if len(code) > MAX_CODE_CHARS:
            raise ToolError(
                f"python: the code has {len(code)} characters, and {MAX_CODE_CHARS} are allowed: shorten it"
            )
        sandbox = ctx.need_sandbox()
        if not self._is_there:
            await sandbox.write({PROGRAM: File(data=_SOURCE.read_bytes())})
            self._is_there = True
        remaining_s = ctx.remaining_s()
        limit_s = min(TIMEOUT_S, max(remaining_s - KILL_S, remaining_s / 2))
        asked = {"code": code, "timeout_s": limit_s, "max_bytes": MAX_BYTES}
        reply = await _ask(sandbox, asked, timeout_s=min(remaining_s, limit_s + KILL_S))
        return _observed(reply, limit_s)


async def _ask(sandbox: Sandbox, asked: dict[str, Json], *, timeout_s: float) -> dict[str, Json]:
    data = json.dumps(asked).encode("utf-8", "surrogatepass")
    result = await sandbox.exec([PYTHON, "-I", PROGRAM, "client"], stdin=data, timeout_s=timeout_s)
    try:
        reply: Json = json.loads(result.stdout.text())
    except ValueError:
        raise ToolError(f"python: the interpreter cannot be reached: {_why(result)}") from None
    if not isinstance(reply, dict):
        raise ToolError("python: the interpreter's reply cannot be read")
    return reply


def _why(result: ExecResult) -> str:
    if result.timed_out:
        return "it did not answer in time"
    lines = result.stderr.text().strip().splitlines()
    return f"exit code {result.exit_code}{f', {lines[-1][:200]}' if lines else ''}"


def _observed(reply: dict[str, Json], limit_s: float) -> Observation:
    lines = [str(reply.get("output", "")).rstrip("\n")]
    has_ended = bool(reply.get("ended"))
    if reply.get("timed_out"):
        lines.append(f"[interrupted after {round(limit_s, 1):g} s]")
    elif reply.get("printed_too_much"):
        lines.append(f"[interrupted: it had printed {reply.get('num_bytes')} bytes]")
    if has_ended:
        lines.append("[the interpreter ended: what was defined is gone, and the next call starts a new one]")
    text = "\n".join(line for line in lines if line)
    return Observation(text=text or "[no output]", is_error=has_ended or reply.get("failed") is not False)


python = class_tool(Python, name="python", effect=Effect.SANDBOX, timeout_s=TIMEOUT_S + KILL_S)
