"""The chat dialogue, for endpoints that only accept messages. Evaluation only: it sees no tokens, so its turns are
marked as not trainable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slipstream.dialogue.base import CallContext, ModelCall, Reply, TurnLog, check_restorable, conversation_of
from slipstream.dialogue.fitting import fit, room_beside
from slipstream.model.base import ChatModel
from slipstream.types import NO_LIMIT, ForkReason, Message, ToolSpec, Turn

BYTES_PER_TOKEN = 3
"""Few for code and prose, so that the estimate is rather too high."""


class ChatDialogue:
    def __init__(self, model: ChatModel, context: CallContext, log: TurnLog) -> None:
        self._model = model
        self._context = context
        self._log = log
        self._branch = 0
        self._parent: int | None = None
        self._messages: tuple[Message, ...] = ()
        self._num_tokens = 0
        """Tokens in the conversation, as the server counted them at the last reply."""
        self._extends = False
        self._fork: ForkReason | None = None

    @property
    def window(self) -> None:
        """Unknown, since the server's counts are not recorded."""
        return None

    @property
    def max_context_tokens(self) -> int:
        return self._context.max_context_tokens

    @property
    def messages(self) -> tuple[Message, ...]:
        return self._messages

    async def settled(self) -> None:
        await self._log.settled()

    def close(self) -> None:
        """Endpoints have no such call."""

    def restore(self, turns: Sequence[Turn]) -> None:
        """The server's token counts are not recorded: counting starts again with the next reply."""
        check_restorable(turns)
        self._log.restore(turns)
        self._messages, self._branch = conversation_of(turns), turns[-1].branch
        self._parent, self._extends = turns[-1].index, True

    def rewrite(self, messages: Sequence[Message], *, fork: ForkReason = ForkReason.CONTEXT_EDIT) -> ChatDialogue:
        branch = self._branched(fork)
        branch._parent, branch._messages = self._parent, tuple(messages)
        return branch

    def spawn(self, *, trainable: bool, max_tokens: int | None = None) -> ChatDialogue:
        branch = self._branched(ForkReason.SUB_AGENT if trainable else ForkReason.NESTED)
        branch._context = self._context.inside_a_tool(max_tokens)
        return branch

    def _branched(self, why: ForkReason) -> ChatDialogue:
        branch = ChatDialogue(self._model, self._context, self._log)
        branch._branch, branch._fork = self._log.new_branch(), why
        return branch

    def fit(
        self, new_messages: Sequence[Message], tools: Sequence[ToolSpec], *, reserve: int = 0
    ) -> tuple[Message, ...]:
        context = self._context
        if not self._num_tokens:
            return tuple(new_messages)
        room = room_beside(context.max_context_tokens, self._num_tokens, context.params.max_tokens, reserve)
        return fit(new_messages, room, _estimated_tokens)

    def exceeds(self, num_tokens: int, new_messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        num_used = self._num_tokens or _estimated_tokens(self._messages)
        return num_used + _estimated_tokens(new_messages) > num_tokens

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
        self._messages += tuple(new_messages)
        params = context.params_within(self._num_tokens, log.next_seed(), max_tokens=max_tokens, reserve=reserve)
        if context.params.max_tokens == NO_LIMIT and max_tokens is None:
            params = replace(params, max_tokens=NO_LIMIT)  # the server knows its window better
        async with ModelCall(context, log, self._num_tokens) as counts:
            reply = await self._model.chat(
                self._messages, tools, params, session=context.session, timeout_s=context.timeout_s
            )
            counts |= {"prompt": reply.num_prompt_tokens, "sampled": reply.num_sampled_tokens}
            if reply.num_cached is not None:
                counts["cached"] = reply.num_cached
        turn = Turn(
            index=log.next_index,
            branch=self._branch,
            parent=self._parent,
            messages=(*(new_messages if self._extends else self._messages), reply.message),
            trainable=False,
            fork=self._fork,
        )
        log.take(turn)
        self._parent, self._extends, self._fork = turn.index, True, None
        self._num_tokens = reply.num_prompt_tokens + reply.num_sampled_tokens
        self._messages += (reply.message,)
        return Reply(message=reply.message, stop=reply.stop)


def _estimated_tokens(messages: Sequence[Message]) -> int:
    return sum(_num_bytes(message) // BYTES_PER_TOKEN + 8 for message in messages)


def _num_bytes(message: Message) -> int:
    called = sum(len(call.name) + len(str(call.arguments)) for call in message.calls)
    return len(message.content.encode("utf-8", "replace")) + called
