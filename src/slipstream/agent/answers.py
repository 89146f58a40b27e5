"""What the model reads after its calls. Enters: what came of them. Leaves: the messages that the next turn begins
with."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.tools.base import Observation
from slipstream.tools.toolset import CallResult
from slipstream.types import Message, Role

NO_CALL = "There was no tool call in your reply. Act by calling a tool; to end, call finish."


def answers(results: Sequence[CallResult]) -> tuple[Message, ...]:
    """One answer for each call, or a word about the missing one."""
    if not results:
        return (Message(role=Role.USER, content=NO_CALL),)
    return tuple(
        Message(
            role=Role.TOOL,
            content=result.text,
            call_id=result.call.id,
            name=result.call.name,
            images=result.outcome.images if isinstance(result.outcome, Observation) else (),
            hints=result.hints,
            is_error=result.is_error,
        )
        for result in results
    )
