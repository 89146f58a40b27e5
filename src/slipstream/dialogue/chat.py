"""The chat dialogue, for endpoints that only speak messages. Evaluation only: it sees no tokens, so none of its turns
can be trained on, and each says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from slipstream.dialogue.base import Reply, Terms, TurnLog
from slipstream.model.base import ChatModel
from slipstream.types import ForkReason, Message, Span, SpanKind, ToolSpec, Turn


class ChatDialogue:
    def __init__(self, model: ChatModel, terms: Terms, log: TurnLog) -> None:
        self._model = model
        self._terms = terms
        self._log = log
        self._branch = 0
        self._parent: int | None = None
        self._messages: tuple[Message, ...] = ()
        self._num_tokens = 0
        """Tokens of the conversation as the server counted them at the last reply."""
        self._extends = False
        self._fork: ForkReason | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        return self._messages

    def rewrite(self, messages: Sequence[Message]) -> ChatDialogue:
        branch = self._branched(ForkReason.CONTEXT_EDIT)
        branch._parent, branch._messages = self._parent, tuple(messages)
        return branch

    def spawn(self, *, trainable: bool, max_tokens: int | None = None) -> ChatDialogue:
        branch = self._branched(ForkReason.SUB_AGENT if trainable else ForkReason.NESTED)
        branch._terms = self._terms.saying_at_most(max_tokens)
        return branch

    def _branched(self, why: ForkReason) -> ChatDialogue:
        branch = ChatDialogue(self._model, self._terms, self._log)
        branch._branch, branch._fork = self._log.new_branch(), why
        return branch

    async def respond(self, new_messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply:
        terms, log = self._terms, self._log
        self._messages += tuple(new_messages)
        params = terms.params_within(self._num_tokens, log.next_seed())
        async with terms.gate.turn(terms.key, self._num_tokens):
            start_s = asyncio.get_running_loop().time()
            reply = await self._model.chat(
                self._messages, tools, params, session=terms.session, timeout_s=terms.timeout_s
            )
            end_s = asyncio.get_running_loop().time()
        turn = Turn(
            index=log.next_index,
            branch=self._branch,
            parent=self._parent,
            messages=(*(new_messages if self._extends else self._messages), reply.message),
            trainable=False,
            fork=self._fork,
        )
        log.take(turn)
        counts = {"prompt": reply.num_prompt_tokens, "sampled": reply.num_sampled_tokens}
        log.on_span(Span(kind=SpanKind.MODEL, start_s=start_s, end_s=end_s, attempt=terms.attempt, counts=counts))
        self._parent, self._extends, self._fork = turn.index, True, None
        self._num_tokens = reply.num_prompt_tokens + reply.num_sampled_tokens
        self._messages += (reply.message,)
        return Reply(message=reply.message, stop=reply.stop)
