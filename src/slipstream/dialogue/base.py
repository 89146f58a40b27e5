"""Dialogue: a conversation with a model, turn by turn. The only maker of Turns.

Enters: new messages. Leaves: the model's reply; and, into the log, one Turn for each model call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from slipstream.errors import ContextOverflow
from slipstream.seams import TurnGate
from slipstream.types import JobKey, Message, SampleParams, Span, StopReason, ToolSpec, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    message: Message
    stop: StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Under which an attempt talks to its model; every branch of its dialogue shares them."""

    params: SampleParams
    max_context_tokens: int
    gate: TurnGate
    key: JobKey
    attempt: int
    timeout_s: float | None = None
    """Of one model call, its retries included."""

    @property
    def session(self) -> str:
        """The name under which an engine knows the attempt."""
        return f"{self.key}#{self.attempt}"

    def saying_at_most(self, max_tokens: int | None) -> Terms:
        if max_tokens is None:
            return self
        return replace(self, params=replace(self.params, max_tokens=min(self.params.max_tokens, max_tokens)))

    def params_within(self, num_context_tokens: int, seed: int) -> SampleParams:
        """What may be sampled next. Raises ContextOverflow if there is no room for anything."""
        room = self.max_context_tokens - num_context_tokens
        if room <= 0:
            raise ContextOverflow(f"{num_context_tokens} tokens of conversation, {self.max_context_tokens} allowed")
        return replace(self.params, max_tokens=min(self.params.max_tokens, room), seed=seed)


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

    def spawn(self, *, trainable: bool, max_tokens: int | None = None) -> Dialogue:
        """An empty conversation with the same model: a sub-agent's, which is trained on with the rollout, or a
        judge's or summariser's, which never is. `max_tokens` is the most it may say at once."""
        ...


class TurnLog:
    """The turns of one attempt, over all its branches, in the order they were taken."""

    def __init__(self, *, seed: int, on_turn: Callable[[Turn], None], on_span: Callable[[Span], None]) -> None:
        self.turns: list[Turn] = []
        self.on_span = on_span
        self._on_turn = on_turn
        self._seed = seed
        self._num_branches = 1
        self._num_seeds = 0

    @property
    def next_index(self) -> int:
        return len(self.turns)

    def new_branch(self) -> int:
        self._num_branches += 1
        return self._num_branches - 1

    def next_seed(self) -> int:
        """The sampling seed of the next call: it depends on the job's seed and the call's number alone, and differs
        between branches that ask side by side."""
        digest = hashlib.blake2b(f"{self._seed}:{self._num_seeds}".encode(), digest_size=4).digest()
        self._num_seeds += 1
        return int.from_bytes(digest, "big") >> 1

    def take(self, turn: Turn) -> None:
        self.turns.append(turn)
        self._on_turn(turn)
