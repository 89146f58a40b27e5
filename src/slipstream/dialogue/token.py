"""The token dialogue: token ids in, token ids out. Its turns can be trained on.

Invariants: the ids of a turn's sample are those that the engine returned; they appear unchanged in every later prompt
of the branch, and only new messages are encoded. If the template cannot be extended, the whole conversation is rendered
again, and the turn records that by keeping less of its parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.dialogue.base import CallContext, ModelCall, Reply, TurnLog, Window, check_restorable, conversation_of
from slipstream.dialogue.fitting import at_most_tokens, fit, room_beside
from slipstream.errors import ReplayError
from slipstream.model.base import Completer, SessionKeeper
from slipstream.render.renderer import Renderer
from slipstream.types import ForkReason, Message, TokenIds, ToolSpec, Turn, token_ids


class TokenDialogue:
    def __init__(self, renderer: Renderer, completer: Completer, context: CallContext, log: TurnLog) -> None:
        self._renderer = renderer
        self._completer = completer
        self._context = context
        self._log = log
        self._branch = 0
        self._parent: Turn | None = None
        self._fork: ForkReason | None = None
        """Why the next turn does not continue its parent."""
        self._trainable = True
        self._prompt = token_ids()
        self._tail = token_ids()
        """The end of the prompt, at least back to the last reply."""
        self._sampled = token_ids()
        self._messages: tuple[Message, ...] = ()
        self._extends = False
        """Whether the next prompt continues the last sample; otherwise the whole conversation is rendered."""

    @property
    def window(self) -> Window:
        return Window(num_used=len(self._prompt) + len(self._sampled), num_allowed=self._context.max_context_tokens)

    @property
    def max_context_tokens(self) -> int:
        return self._context.max_context_tokens

    @property
    def messages(self) -> tuple[Message, ...]:
        return self._messages

    async def settled(self) -> None:
        await self._log.settled()

    def close(self) -> None:
        if isinstance(self._completer, SessionKeeper):
            self._completer.end_session(self._context.session)

    def restore(self, turns: Sequence[Turn]) -> None:
        check_restorable(turns)
        prompt, sampled = token_ids(), token_ids()
        for turn in turns:
            if turn.sampled is None:
                raise ReplayError(f"turn {turn.index} was recorded without its tokens")
            prompt, sampled = (prompt + sampled)[: turn.num_kept] + turn.added, turn.sampled.ids
        self._log.restore(turns)
        self._messages, self._branch = conversation_of(turns), turns[-1].branch
        self._parent, self._prompt, self._tail, self._sampled = turns[-1], prompt, prompt, sampled
        self._extends = True

    def rewrite(self, messages: Sequence[Message], *, fork: ForkReason = ForkReason.CONTEXT_EDIT) -> TokenDialogue:
        branch = self._branched(fork)
        branch._parent, branch._prompt, branch._sampled = self._parent, self._prompt, self._sampled
        branch._messages = tuple(messages)
        branch._trainable = self._trainable
        return branch

    def spawn(self, *, trainable: bool, max_tokens: int | None = None) -> TokenDialogue:
        branch = self._branched(ForkReason.SUB_AGENT if trainable else ForkReason.NESTED)
        branch._context = self._context.inside_a_tool(max_tokens)
        branch._trainable = trainable and self._trainable
        return branch

    def _branched(self, why: ForkReason) -> TokenDialogue:
        branch = TokenDialogue(self._renderer, self._completer, self._context, self._log)
        branch._branch, branch._fork = self._log.new_branch(), why
        return branch

    def fit(
        self, new_messages: Sequence[Message], tools: Sequence[ToolSpec], *, reserve: int = 0
    ) -> tuple[Message, ...]:
        context, num_used = self._context, self.window.num_used
        room = room_beside(context.max_context_tokens, num_used, context.params.max_tokens, reserve)
        return fit(new_messages, room, lambda some: len(self._next(some, tools).prompt) - num_used)

    def exceeds(self, num_tokens: int, new_messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        if self.window.num_used + at_most_tokens(new_messages) <= num_tokens:
            return False
        return len(self._next(new_messages, tools).prompt) > num_tokens

    async def respond(
        self,
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        max_tokens: int | None = None,
        reserve: int = 0,
        trainable: bool = True,
    ) -> Reply:
        context, log = self._context, self._log
        next_ = self._next(new_messages, tools)
        self._messages += tuple(new_messages)
        prompt = next_.prompt
        params = context.params_within(len(prompt), log.next_seed(), max_tokens=max_tokens, reserve=reserve)
        params = replace(params, stop_ids=self._renderer.stop_ids)
        async with ModelCall(context, log, len(prompt)) as counts:
            counts |= {"new": len(prompt) - next_.num_kept, "kept": next_.num_kept, "encoded": next_.num_encoded}
            sampled = await self._completer.complete(
                prompt, params, session=context.session, timeout_s=context.timeout_s
            )
            counts["sampled"] = len(sampled.ids)
            if sampled.num_cached is not None:
                counts["cached"] = sampled.num_cached
        message = self._renderer.parse(sampled.ids, next_.tail, tools, call_prefix=f"call_{log.next_index}_")
        turn = Turn(
            index=log.next_index,
            branch=self._branch,
            parent=None if self._parent is None else self._parent.index,
            num_kept=next_.num_kept,
            added=prompt[next_.num_kept :],
            sampled=sampled,
            messages=(*(new_messages if self._extends else self._messages), message),
            trainable=self._trainable and trainable,
            fork=next_.fork,
        )
        log.take(turn)
        self._parent, self._prompt, self._tail, self._sampled = turn, prompt, next_.tail, sampled.ids
        self._extends, self._fork = True, None
        self._messages += (message,)
        return Reply(message=message, stop=sampled.stop)

    def _next(self, new_messages: Sequence[Message], tools: Sequence[ToolSpec]) -> _Next:
        before, fork = self._prompt + self._sampled, self._fork
        if self._extends:
            extension = self._renderer.extend(self._tail, self._sampled, new_messages, tools)
            if extension is not None:
                num_kept = len(before) - extension.num_dropped
                return _Next(
                    prompt=before[:num_kept] + extension.added,
                    tail=extension.added,
                    num_kept=num_kept,
                    num_encoded=len(extension.added),
                    fork=ForkReason.TRIMMED if extension.num_dropped else None,
                )
            fork = ForkReason.TEMPLATE
        prompt = self._renderer.render((*self._messages, *new_messages), tools)
        num_kept = _common_prefix(before, prompt)
        goes_on = num_kept == len(before)
        return _Next(
            prompt=prompt,
            tail=prompt,
            num_kept=num_kept,
            num_encoded=len(prompt),
            fork=None if goes_on and self._parent is not None else fork,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Next:
    """The next prompt, and its relation to the previous one."""

    prompt: TokenIds
    tail: TokenIds
    """Its end, at least back to the last reply."""
    num_kept: int
    """How many of its first tokens are those of the parent's prompt and sample."""
    num_encoded: int
    fork: ForkReason | None


def _common_prefix(one: TokenIds, other: TokenIds) -> int:
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(index for index in range(length) if one[index] != other[index])
