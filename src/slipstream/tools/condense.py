"""condense: the agent gives up the conversation so far for its own summary of it.

Input: a summary. Output: a ContextEdit to the task and the summary. The policy `agent.condense` makes the same
conversation out of a reply that it asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from slipstream.errors import ToolError
from slipstream.tools.base import ContextEdit, Effect, ToolContext
from slipstream.tools.define import tool
from slipstream.types import Message

MAX_CHARS = 16_000
_HEADING = "The conversation so far was condensed. Your own summary of it:"


@tool(effect=Effect.PURE, concurrent=False)
async def condense(
    summary: Annotated[
        str, "what was done and found, what is left to do, and every name, path and figure still needed"
    ],
    *,
    ctx: ToolContext,
) -> ContextEdit:
    """Replace the whole conversation after the task by your summary of it, to make room. Nothing else is kept."""
    if not summary.strip():
        raise ToolError("condense: the summary is empty, so everything would be forgotten: write one")
    if len(summary) > MAX_CHARS:
        raise ToolError(f"condense: the summary has {len(summary)} characters: write at most {MAX_CHARS}")
    return ContextEdit(messages=condensed(ctx.opening, summary))


def condensed(opening: Sequence[Message], summary: str) -> tuple[Message, ...]:
    """The conversation that goes on from a summary: as it was opened, the last message extended."""
    *before, task = opening
    return (*before, replace(task, content=f"{task.content}\n\n{_HEADING}\n{summary.strip()}"))
