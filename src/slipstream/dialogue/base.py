"""Dialogue: a conversation with a model, turn by turn. The only maker of Turns.

Input: new messages. Output: the model's reply; one Turn per model call is added to the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from types import TracebackType
from typing import Protocol

from slipstream.errors import ContextOverflow, ReplayError
from slipstream.seams import TurnGate, TurnPass
from slipstream.types import JobKey, Message, SampleParams, Span, SpanKind, StopReason, ToolSpec, Turn, turn_seed

MIN_WAIT_S = 0.001
"""A shorter delay at the gate does not count as waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    message: Message
    stop: StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """The settings for an attempt's model calls. All branches of its dialogue share them, except for what
    `inside_a_tool` changes."""

    params: SampleParams
    max_context_tokens: int
    gate: TurnGate
    key: JobKey
    attempt: int
    timeout_s: float | None = None
    """For one model call, retries included."""
    nested: bool = False
    """Whether one of the agent's tools is waiting for the reply."""

    session: str = field(init=False)
    """The attempt's session name in an engine."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "session", f"{self.key}#{self.attempt}")

    def inside_a_tool(self, max_tokens: int | None) -> CallContext:
        """The context for a conversation that one of the agent's tools has, and waits for."""
        most = self.params.max_tokens if max_tokens is None else min(self.params.max_tokens, max_tokens)
        return replace(self, params=replace(self.params, max_tokens=most), nested=True)

    def params_within(self, num_context_tokens: int, seed: int) -> SampleParams:
        """The sampling parameters for the next call. Raises ContextOverflow if there is no room left."""
        room = self.max_context_tokens - num_context_tokens
        if room <= 0:
            allowed = self.max_context_tokens
            raise ContextOverflow(f"the conversation has {num_context_tokens} tokens, but only {allowed} are allowed")
        return self.params.of_call(max_tokens=min(self.params.max_tokens, room), seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How much of the model's context window a conversation uses, in tokens."""

    num_used: int
    num_allowed: int


class Dialogue(Protocol):
    @property
    def window(self) -> Window | None:
        """As of the last recorded reply. None for a dialogue that sees no tokens."""
        ...

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far."""
        ...

    async def respond(self, new_messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply:
        """Add messages and let the model reply.

        Raises ContextOverflow if the conversation no longer fits, ModelError if the model fails.
        """
        ...

    async def settled(self) -> None:
        """Wait until every turn so far is durable."""
        ...

    def close(self) -> None:
        """The attempt makes no more calls, in any branch. An engine that keeps its cache is notified."""
        ...

    def fit(self, new_messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[Message, ...]:
        """The messages to add next, with the longest answers of tools shortened where they would leave the next reply
        no room. For the chat dialogue an estimate."""
        ...

    def restore(self, turns: Sequence[Turn]) -> None:
        """Before the first call: restore the state after these recorded turns of the same attempt, without model calls.

        Raises ReplayError if they are not one linear conversation.
        """
        ...

    def rewrite(self, messages: Sequence[Message]) -> Dialogue:
        """A new branch that continues from these messages instead."""
        ...

    def spawn(self, *, trainable: bool, max_tokens: int | None = None) -> Dialogue:
        """An empty conversation with the same model: a sub-agent's, which is trained on with the rollout, or a judge's
        or summarizer's, which never is. `max_tokens` limits each of its replies."""
        ...


class TurnLog:
    """The turns of one attempt, in all its branches, in order."""

    def __init__(
        self,
        *,
        seed: int,
        on_turn: Callable[[Turn], None],
        on_span: Callable[[Span], None],
        settle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`settle` returns once every turn so far is durable."""
        self.turns: list[Turn] = []
        self.on_span = on_span
        self._settle = settle
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
        """The sampling seed of the next call: it depends only on the job's seed and the call's number, and differs
        between concurrent branches."""
        self._num_seeds += 1
        return turn_seed(self._seed, self._num_seeds - 1)

    def take(self, turn: Turn) -> None:
        self.turns.append(turn)
        self._on_turn(turn)

    async def settled(self) -> None:
        """Wait until all turns so far are durable."""
        if self._settle is not None:
            await self._settle()

    def restore(self, turns: Sequence[Turn]) -> None:
        """Continue after turns that were recorded before."""
        self.turns = list(turns)
        self._num_branches = 1 + max((turn.branch for turn in turns), default=0)
        self._num_seeds = len(turns)


def check_straight(turns: Sequence[Turn]) -> None:
    """Raise ReplayError unless `turns` are one linear conversation from its start: no branches, nothing missing."""
    for place, turn in enumerate(turns):
        if turn.branch:
            why = "" if turn.fork is None else f" ({turn.fork})"
            raise ReplayError(
                f"turn {turn.index} is on a separate branch{why}: only a linear conversation can be resumed"
            )
        if (turn.index, turn.parent) != (place, place - 1 if place else None):
            raise ReplayError(
                f"the recorded turns have turn {turn.index} after turn {turn.parent}; turn {place} was expected"
            )


class ModelCall:
    """Passes the gate; the block then makes one model call and fills in the counts it is given.

    Records a span of the call, failed or not, and another one if the gate made it wait.
    """

    __slots__ = ("_asked_s", "_context", "_counts", "_log", "_passed", "_time", "_turn")

    def __init__(self, context: CallContext, log: TurnLog, num_context_tokens: int) -> None:
        self._context = context
        self._log = log
        self._time = asyncio.get_running_loop().time
        self._counts: dict[str, int] = {}
        self._turn = context.gate.turn(context.key, num_context_tokens, nested=context.nested)
        self._passed: TurnPass | None = None
        self._asked_s = self._time()

    async def __aenter__(self) -> dict[str, int]:
        try:
            self._passed = await self._turn.__aenter__()
        except BaseException:
            self._record(failed=True)
            raise
        return self._counts

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed = True
        try:
            await self._turn.__aexit__(kind, raised, trace)
            failed = raised is not None
        finally:
            self._record(failed=failed)

    def _record(self, *, failed: bool) -> None:
        passed, asked_s, attempt = self._passed, self._asked_s, self._context.attempt
        end_s = self._time()
        let_in_s = inf if passed is None else asked_s + passed.waited_s
        start_s = min(let_in_s, end_s)
        if start_s - asked_s >= MIN_WAIT_S:
            self._log.on_span(Span(kind=SpanKind.WAIT_TURN, start_s=asked_s, end_s=start_s, attempt=attempt))
        if passed is not None and let_in_s < inf:
            if failed:
                self._counts["failed"] = 1
            self._counts["concurrent"] = passed.num_under_way
            self._log.on_span(
                Span(kind=SpanKind.MODEL, start_s=start_s, end_s=end_s, attempt=attempt, counts=self._counts)
            )
