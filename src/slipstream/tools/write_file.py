"""write_file: writes a whole text file in the sandbox.

Input: a path and the text. Output: how much was written. Invariants: an existing file is replaced, and keeps its mode.
"""

from __future__ import annotations

from typing import Annotated

from slipstream.tools.base import Effect, ToolContext
from slipstream.tools.define import tool
from slipstream.tools.editor.places import mode_of
from slipstream.types import File


@tool(effect=Effect.SANDBOX)
async def write_file(
    path: Annotated[str, "the file; a relative path is below the working directory"],
    content: Annotated[str, "all of its text"],
    *,
    ctx: ToolContext,
) -> str:
    """Write a text file, replacing what is there. Folders are made as needed."""
    data = content.encode("utf-8")
    sandbox = ctx.need_sandbox()
    mode = await mode_of(sandbox, path, timeout_s=ctx.remaining_s())
    await sandbox.write({path: File(data=data, mode=mode)})
    num_lines = content.count("\n") + (not content.endswith("\n") and content != "")
    bytes_word, lines_word = "byte" if len(data) == 1 else "bytes", "line" if num_lines == 1 else "lines"
    return f"Wrote {len(data)} {bytes_word}, {num_lines} {lines_word}, to {path}."
