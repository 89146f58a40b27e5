"""Lets a tool ask the model, in a separate conversation that is recorded with the rollout but never trained on."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.dialogue.base import Dialogue
from slipstream.errors import ContextOverflow, ToolError
from slipstream.types import Message


class NestedDialogue:
    """A NestedModel over the rollout's own model; every question is a new conversation."""

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue

    async def ask(self, messages: Sequence[Message], *, max_tokens: int) -> str:
        """What the model says to `messages`. Raises ToolError if they do not fit into its window."""
        asked = self._dialogue.spawn(trainable=False, max_tokens=max_tokens)
        try:
            reply = await asked.respond(messages, ())
        except ContextOverflow as raised:
            raise ToolError(f"this is too long for the model: {raised}") from raised
        return reply.message.content
