"""Condensation as a policy: when the window is nearly full, the agent is asked for a summary and goes on from it.

Input: a dialogue and the messages of its next turn; then the reply to the request. Output: those messages with the
request; then the rewritten dialogue.
Invariants: the request is a hint in the last message, so it forks nothing, and a recorded turn shows whether it was
there. The reply is a turn of its own and runs no tool. What follows is a fork (`ForkReason.CONDENSED`). It does not
depend on the recipe or on its tools.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.agent.answers import with_hints
from slipstream.agent.config import CondenseConfig
from slipstream.dialogue.base import Dialogue, Reply
from slipstream.tools.base import Hint
from slipstream.tools.condense import condensed
from slipstream.types import ForkReason, Message, ToolSpec

HINT = "condense_now"
"""The name of the hint that asks for a summary."""
ASK = (
    "The context window is nearly full, and the conversation will go on from the task and your summary alone. Reply "
    "with the summary, without a tool call: what you did and found, what is left to do, and every name, path and "
    "figure you still need."
)
NO_SUMMARY = "(You wrote no summary: what you did before is forgotten.)"
_ASK_TOKENS = 96
"""What the request takes, generously."""
_MAX_SHARE = 1 / 8
"""Of the window: no summary is longer, so that there is room to go on."""


class Condenser:
    """Of one rollout, which began with the messages `opening`."""

    def __init__(self, config: CondenseConfig, opening: Sequence[Message]) -> None:
        self._config = config
        self._opening = tuple(opening)

    def fit(
        self, dialogue: Dialogue, told: Sequence[Message], hints: Sequence[Hint], tools: Sequence[ToolSpec]
    ) -> tuple[Message, ...]:
        """The messages of the next turn, shortened to what the window leaves; with the request if it is nearly full."""
        num_tokens = int(self._config.at * dialogue.max_context_tokens)
        if not self._config.on or not dialogue.exceeds(num_tokens, told, tools):
            return with_hints(dialogue.fit(told, tools), hints)
        fitted = dialogue.fit(told, tools, reserve=self._reserve(dialogue))
        return with_hints(fitted, (*hints, Hint(name=HINT, text=ASK)))

    async def respond(self, dialogue: Dialogue, incoming: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply:
        """The next reply: an ordinary one leaves room for the request, a summary has its own limit."""
        if not self._config.on:
            return await dialogue.respond(incoming, tools)
        if not asks(incoming):
            return await dialogue.respond(incoming, tools, reserve=self._reserve(dialogue))
        most = self._max_tokens(dialogue)
        return await dialogue.respond(incoming, tools, max_tokens=most, trainable=self._config.trained)

    def rewritten(self, dialogue: Dialogue, reply: Reply) -> Dialogue:
        """The conversation that goes on from the summary in `reply`."""
        summary = reply.message.content.strip() or NO_SUMMARY
        return dialogue.rewrite(condensed(self._opening, summary), fork=ForkReason.CONDENSED)

    def _max_tokens(self, dialogue: Dialogue) -> int:
        return max(1, min(self._config.max_tokens, int(dialogue.max_context_tokens * _MAX_SHARE)))

    def _reserve(self, dialogue: Dialogue) -> int:
        return self._max_tokens(dialogue) + _ASK_TOKENS


def asks(messages: Sequence[Message]) -> bool:
    """Whether the last of these messages asks for a summary."""
    return bool(messages) and HINT in messages[-1].hints
