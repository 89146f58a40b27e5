"""Tools with the shortest schemas, for the lowest tier: a small model reads them in every prompt."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.errors import ToolError
from slipstream.tools.base import Effect, Finish, Observation, ToolContext
from slipstream.tools.bash import Bash
from slipstream.tools.define import class_tool, tool
from slipstream.tools.editor.closest import closest
from slipstream.tools.editor.show import numbered
from slipstream.tools.editor.syntax import find_problem
from slipstream.tools.editor.text import find_places, line_at, split_lines
from slipstream.types import File

MAX_CHARS = 2_000
MAX_BYTES = 2 << 20
"""Of a file that is edited."""
MAX_PLACES = 8
"""Lines that are named where the text is in a file several times."""
MAX_MISS_CHARS = 1_500
"""Of the places shown where the text is in no line of a file."""
MAX_PLACE_LINES = 12
MAX_CHANGED_LINES = 16
MAX_ROW_CHARS = 160
AROUND = 2


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
    text = (await sandbox.read(path, max_bytes=MAX_BYTES)).decode("utf-8", "surrogateescape")
    lines = split_lines(text)
    places = find_places(text, old, MAX_PLACES + 1) if old else []
    if old == new:
        raise ToolError(f"old and new are the same, so {path} is as it was: give new as it has to be")
    if not places:
        raise ToolError(_missed(path, text, lines, old, new))
    if len(places) > 1:
        raise ToolError(_ambiguous(path, lines, [line_at(text, place) for place in places]))
    [place] = places
    changed = text[:place] + new + text[place + len(old) :]
    data = changed.encode("utf-8", "surrogateescape")
    await sandbox.write({path: File(data=data)})
    told = [f"Changed {path}:", *_changed(changed, place, place + len(new))]
    problem = await find_problem(sandbox, path, data, timeout_s=ctx.remaining_s() / 2)
    if problem is not None:
        told.append(f"[the file no longer parses, {problem}: put that right]")
    return Observation(text="\n".join(told))


def _missed(path: str, text: str, lines: Sequence[str], old: str, new: str) -> str:
    told = [f"old is not in {path}, so nothing was changed."]
    near = closest(text, old)
    if not near:
        if new.strip() and new in text:
            told.append(f"But new is there already, at line {line_at(text, text.index(new))}.")
        told.append(f"Nothing in its {len(lines)} lines is like it: look with grep -n, then copy old from there.")
        return "\n".join(told)
    told.append("Closest, with line numbers:")
    room = MAX_MISS_CHARS
    for each in near:
        last = min(each.last, each.first + MAX_PLACE_LINES - 1)
        part = "\n".join((f"{each.why.replace('old_str', 'old')}:", *numbered(lines, each.first, last)))
        if len(part) > room:
            break
        told.append(part)
        room -= len(part)
    told.append("Copy old from these lines as they are, without the numbers.")
    return "\n".join(told)


def _ambiguous(path: str, lines: Sequence[str], at_lines: Sequence[int]) -> str:
    more = "more than " if len(at_lines) > MAX_PLACES else ""
    shown = [row[:MAX_ROW_CHARS] for line in at_lines[:MAX_PLACES] for row in numbered(lines, line, line)]
    return "\n".join(
        (
            f"old is in {path} {more}{min(len(at_lines), MAX_PLACES)} times, so nothing was changed. It begins in:",
            *shown,
            "Give more of the lines around the one that is meant, so that old is there once.",
        )
    )


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
