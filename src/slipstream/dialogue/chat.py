"""The chat dialogue, for endpoints that only accept messages. Evaluation only: it sees no tokens, so its turns are
marked as not trainable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slipstream.dialogue.base import CallContext, ModelCall, Reply, TurnLog, check_straight
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
    def messages(self) -> tuple[Message, ...]:
        return self._messages

    async def settled(self) -> None:
        await self._log.settled()

    def close(self) -> None:
        """Endpoints have no such call."""

    def restore(self, turns: Sequence[Turn]) -> None:
        """The server's token counts are not recorded: counting starts again with the next reply."""
        check_straight(turns)
        self._log.restore(turns)
        self._messages = tuple(message for turn in turns for message in turn.messages)
        self._parent, self._extends = turns[-1].index, True

    def rewrite(self, messages: Sequence[Message]) -> ChatDialogue:
        branch = self._branched(ForkReason.CONTEXT_EDIT)
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

    def fit(self, new_messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[Message, ...]:
        context = self._context
        if not self._num_tokens:
            return tuple(new_messages)
        room = room_beside(context.max_context_tokens, self._num_tokens, context.params.max_tokens)
        return fit(new_messages, room, _estimated_tokens)

    async def respond(self, new_messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply:
        context, log = self._context, self._log
        self._messages += tuple(new_messages)
        params = context.params_within(self._num_tokens, log.next_seed())
        if context.params.max_tokens == NO_LIMIT:
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
    return sum(len(message.content.encode("utf-8", "replace")) // BYTES_PER_TOKEN + 8 for message in messages)
