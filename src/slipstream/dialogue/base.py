"""Dialogue: a conversation with a model, turn by turn. The only maker of Turns.

Enters: new messages. Leaves: the model's reply; and, into the log, one Turn for each model call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.types import Message, Span, StopReason, ToolSpec, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    message: Message
    stop: StopReason


class Dialogue(Protocol):
    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far."""
        ...

    async def respond(self, new_messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply:
        """Add messages and let the model reply.

        Raises ContextOverflow if the conversation does not fit any more, ModelError if the model fails.
        """
        ...

    def rewrite(self, messages: Sequence[Message]) -> Dialogue:
        """The conversation as it goes on from other messages: a branch of its own."""
        ...


class TurnLog:
    """The turns of one attempt, over all its branches, in the order they were taken."""

    def __init__(self, *, seed: int, on_turn: Callable[[Turn], None], on_span: Callable[[Span], None]) -> None:
        self.turns: list[Turn] = []
        self.on_span = on_span
        self._on_turn = on_turn
        self._seed = seed
        self._num_branches = 1

    @property
    def next_index(self) -> int:
        return len(self.turns)

    def new_branch(self) -> int:
        self._num_branches += 1
        return self._num_branches - 1

    def next_seed(self) -> int:
        """The sampling seed of the next turn: it depends on the job's seed and the turn's number alone."""
        digest = hashlib.blake2b(f"{self._seed}:{self.next_index}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1

    def take(self, turn: Turn) -> None:
        self.turns.append(turn)
        self._on_turn(turn)
