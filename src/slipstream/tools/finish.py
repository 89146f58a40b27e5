"""finish: the agent declares that it is done. Input: optionally an answer. Output: a Finish."""

from __future__ import annotations

from typing import Annotated

from slipstream.tools.base import Effect, Finish
from slipstream.tools.define import tool


@tool(effect=Effect.PURE, concurrent=False)
async def finish(answer: Annotated[str, "the final answer, if one was asked for"] = "") -> Finish:
    """End the task. Call this once the work is complete."""
    return Finish(answer=answer or None)
