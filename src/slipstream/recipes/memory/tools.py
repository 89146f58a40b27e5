"""The two tools of the memory agent: go on to the next section with a summary in hand, and finish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import slipstream as ss

NO_MEMORY = "none"
READ_ALL = "The whole document was read: call finish with the answer."


@ss.tool(effect=ss.Effect.STATE)
class NextWithSummary:
    """Show the next section of the document. Everything but your summary is forgotten."""

    def __init__(self) -> None:
        self._num_shown = 0
        """Sections shown so far; one more than there are, once the end was shown."""

    async def call(
        self,
        summary: Annotated[str, "all that is worth knowing so far; replaces your last summary"],
        *,
        ctx: ss.ToolContext,
    ) -> ss.ContextEdit:
        sections, memory_chars = _document(ctx)
        memory = " ".join(summary.split())
        if len(memory) > memory_chars:
            raise ss.ToolError(
                f"The summary has {len(memory)} characters, and {memory_chars} are kept: write a shorter one."
            )
        if self._num_shown > len(sections):
            raise ss.ToolError(READ_ALL)
        place, self._num_shown = self._num_shown, self._num_shown + 1
        told = self._told(sections, place)
        *before, problem = ctx.opening
        shown = f"{problem.content}\n\nMemory:\n{memory or NO_MEMORY}\n\n{told}"
        return ss.ContextEdit(
            messages=(*before, ss.Message(role=ss.Role.USER, content=shown)), note=told.partition("\n")[0]
        )

    @staticmethod
    def _told(sections: Sequence[str], place: int) -> str:
        if place == len(sections):
            return f"All {len(sections)} sections were read: call finish with the answer."
        return f"Section {place + 1} of {len(sections)}:\n{sections[place]}"


next_with_summary = NextWithSummary


@ss.tool(effect=ss.Effect.PURE, concurrent=False)
async def finish(answer: str) -> ss.Finish:
    """End with the answer."""
    return ss.Finish(answer=answer)


def _document(ctx: ss.ToolContext) -> tuple[Sequence[str], int]:
    sections, memory_chars = ctx.resources.get("sections"), ctx.resources.get("memory_chars")
    if not isinstance(sections, list) or not all(isinstance(section, str) and section.strip() for section in sections):
        raise ss.ConfigError("the task's resources have no list of texts, none of them empty, under `sections`")
    if not sections or not isinstance(memory_chars, int) or memory_chars < 1:
        raise ss.ConfigError("the task's resources need at least one section, and `memory_chars` of 1 or more")
    return [str(section) for section in sections], memory_chars
