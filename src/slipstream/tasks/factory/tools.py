"""Tools with the shortest schemas, for the lowest tier: a small model reads them in every prompt."""

from __future__ import annotations

from slipstream.tools.base import Effect, Finish, Observation, ToolContext
from slipstream.tools.bash import Bash
from slipstream.tools.define import class_tool, tool
from slipstream.tools.editor.show import numbered
from slipstream.tools.editor.syntax import find_problem
from slipstream.tools.editor.target import EditWords, replaced
from slipstream.tools.editor.text import line_at, split_lines
from slipstream.types import File

MAX_CHARS = 2_000
MAX_BYTES = 2 << 20
"""Of a file that is edited."""
MAX_CHANGED_LINES = 16
MAX_ROW_CHARS = 160
AROUND = 2
WORDS = EditWords(
    prefix="", old="old", new="new", max_chars=1_900, max_row_chars=MAX_ROW_CHARS, max_places=8, max_lines=12
)


class _Bash:
    def __init__(self) -> None:
        self._bash = Bash()

    async def call(self, command: str, *, ctx: ToolContext) -> Observation:
        """Run a command."""
        return await self._bash.call(command, ctx=ctx)

    async def aclose(self) -> None:
        await self._bash.aclose()


bash = class_tool(_Bash, name="bash", effect=Effect.SANDBOX, timeout_s=30.0, max_output_chars=MAX_CHARS)


@tool(effect=Effect.SANDBOX, concurrent=False, max_output_chars=MAX_CHARS)
async def replace(path: str, old: str, new: str, *, ctx: ToolContext) -> Observation:
    """Replace text that is once in a file."""
    sandbox = ctx.need_sandbox()
    data = await sandbox.read(path, max_bytes=MAX_BYTES)
    edited = replaced(path, data, old, new, WORDS)
    await sandbox.write({path: File(data=edited.data)})
    told = [f"Changed {path}:", *_changed(edited.folded, edited.start, edited.end), *edited.notes]
    problem = await find_problem(sandbox, path, edited.data, timeout_s=ctx.remaining_s() / 2)
    if problem is not None:
        told.append(f"[the file no longer parses, {problem}: put that right]")
    return Observation(text="\n".join(told))


def _changed(text: str, start: int, end: int) -> list[str]:
    """The lines from `start` to `end` with two about them."""
    lines = split_lines(text)
    first = max(1, line_at(text, start) - AROUND)
    last = min(len(lines), line_at(text, max(start, end - 1)) + AROUND)
    rows = [row[:MAX_ROW_CHARS] for row in numbered(lines, first, last)]
    if len(rows) > MAX_CHANGED_LINES:
        half = MAX_CHANGED_LINES // 2
        rows = [*rows[:half], f"[... {len(rows) - 2 * half} more lines ...]", *rows[-half:]]
    return rows


@tool(effect=Effect.PURE, concurrent=False)
async def finish() -> Finish:
    """End."""
    return Finish()
