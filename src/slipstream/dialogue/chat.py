"""The chat dialogue, for endpoints that only speak messages. Evaluation only: it sees no tokens, so none of its turns
can be trained on, and each says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.dialogue.base import Reply, TurnLog
from slipstream.errors import ContextOverflow
from slipstream.model.base import ChatModel
from slipstream.seams import TurnGate
from slipstream.types import JobKey, Message, SampleParams, Span, SpanKind, ToolSpec, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatVoice:
    """What every branch of a chat dialogue shares."""

    model: ChatModel
    params: SampleParams
    max_context_tokens: int
    gate: TurnGate
    key: JobKey
    attempt: int
    timeout_s: float | None = None


class ChatDialogue:
    def __init__(self, voice: ChatVoice, log: TurnLog) -> None:
        self._voice = voice
        self._log = log
        self._branch = 0
        self._parent: int | None = None
        self._messages: tuple[Message, ...] = ()
        self._num_tokens = 0
        """Tokens of the conversation as the server counted them at the last reply."""
        self._extends = False

    @property
    def messages(self) -> tuple[Message, ...]:
        return self._messages

    def rewrite(self, messages: Sequence[Message]) -> ChatDialogue:
        branch = ChatDialogue(self._voice, self._log)
        branch._branch, branch._parent = self._log.new_branch(), self._parent
        branch._messages = tuple(messages)
        return branch

    async def respond(self, new_messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply:
        voice, log = self._voice, self._log
        self._messages += tuple(new_messages)
        room = voice.max_context_tokens - self._num_tokens
        if room <= 0:
            raise ContextOverflow(f"{self._num_tokens} tokens of conversation, {voice.max_context_tokens} allowed")
        params = replace(voice.params, max_tokens=min(voice.params.max_tokens, room), seed=log.next_seed())
        async with voice.gate.turn(voice.key, self._num_tokens):
            start_s = asyncio.get_running_loop().time()
            reply = await voice.model.chat(
                self._messages, tools, params, session=f"{voice.key}#{voice.attempt}", timeout_s=voice.timeout_s
            )
            end_s = asyncio.get_running_loop().time()
        turn = Turn(
            index=log.next_index,
            branch=self._branch,
            parent=self._parent,
            messages=(*(new_messages if self._extends else self._messages), reply.message),
            trainable=False,
        )
        log.take(turn)
        counts = {"prompt": reply.num_prompt_tokens, "sampled": reply.num_sampled_tokens}
        log.on_span(Span(kind=SpanKind.MODEL, start_s=start_s, end_s=end_s, attempt=voice.attempt, counts=counts))
        self._parent, self._extends = turn.index, True
        self._num_tokens = reply.num_prompt_tokens + reply.num_sampled_tokens
        self._messages += (reply.message,)
        return Reply(message=reply.message, stop=reply.stop)
