"""read_file: reads a text file in the sandbox, or some of its lines.

Input: a path and optionally a range of lines. Output: the unchanged text, then a bracketed line if it is not the whole
file. Invariants: a file that is not UTF-8 is refused, not shown in part.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slipstream.errors import ToolError
from slipstream.tools.base import Effect, ToolContext
from slipstream.tools.define import tool

MAX_BYTES = 4 << 20


@tool(effect=Effect.SANDBOX, concurrent=True)
async def read_file(
    path: Annotated[str, "the file; a relative path is below the working directory"],
    start_line: Annotated[int | None, "first line to show, from 1", Field(ge=1)] = None,
    end_line: Annotated[int | None, "last line to show, inclusive", Field(ge=1)] = None,
    *,
    ctx: ToolContext,
) -> str:
    """Read a text file, or the lines start_line to end_line of it."""
    data = await ctx.need_sandbox().read(path, max_bytes=MAX_BYTES)
    text = _decoded(path, data)
    if not text:
        return f"[{path} is empty]"
    if start_line is None and end_line is None:
        return text
    lines = text.removesuffix("\n").split("\n")
    first, last = start_line or 1, len(lines) if end_line is None else end_line
    if first > last and end_line is not None:
        raise ToolError(f"read_file: start_line {first} is after end_line {last}")
    if first > len(lines):
        raise ToolError(f"read_file: start_line {first} is beyond the end: {path} has {_count(len(lines), 'line')}")
    shown = "\n".join(lines[first - 1 : last])
    if last > len(lines):
        return f"{shown}\n[the file ends at line {len(lines)}]"
    return f"{shown}\n[lines {first} to {last} of {len(lines)}]"


def _decoded(path: str, data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ToolError(f"read_file: {path} is binary ({_count(len(data), 'byte')}): only UTF-8 text can be read")
    return text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
