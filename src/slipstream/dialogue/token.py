"""The token dialogue: ids in, ids out. What it records can be trained on.

Always holds: the ids of a turn's sample are those that the engine returned; they stand unchanged in every later prompt
of the branch, and only new messages are encoded. Where the template cannot be extended the whole conversation is
rendered again, and the turn says so by keeping less of its parent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from slipstream.dialogue.base import Reply, Terms, TurnLog
from slipstream.model.base import Completer
from slipstream.render.renderer import Renderer
from slipstream.types import Message, Span, SpanKind, TokenIds, ToolSpec, Turn, token_ids


class TokenDialogue:
    def __init__(self, renderer: Renderer, completer: Completer, terms: Terms, log: TurnLog) -> None:
        self._renderer = renderer
        self._completer = completer
        self._terms = terms
        self._log = log
        self._branch = 0
        self._parent: Turn | None = None
        self._prompt = token_ids()
        self._sampled = token_ids()
        self._messages: tuple[Message, ...] = ()
        self._extends = False
        """Whether the next prompt goes on from the last sample; if not, the conversation is rendered whole."""

    @property
    def messages(self) -> tuple[Message, ...]:
        return self._messages

    def rewrite(self, messages: Sequence[Message]) -> TokenDialogue:
        branch = TokenDialogue(self._renderer, self._completer, self._terms, self._log)
        branch._branch = self._log.new_branch()
        branch._parent, branch._prompt, branch._sampled = self._parent, self._prompt, self._sampled
        branch._messages = tuple(messages)
        return branch

    async def respond(self, new_messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply:
        terms, log = self._terms, self._log
        self._messages += tuple(new_messages)
        prompt, num_kept = self._next_prompt(new_messages, tools)
        params = replace(terms.params_within(len(prompt), log.next_seed()), stop_ids=self._renderer.stop_ids)
        async with terms.gate.turn(terms.key, len(prompt)):
            start_s = asyncio.get_running_loop().time()
            sampled = await self._completer.complete(prompt, params, session=terms.session, timeout_s=terms.timeout_s)
            end_s = asyncio.get_running_loop().time()
        message = self._renderer.parse(sampled.ids, prompt, tools, call_prefix=f"call_{log.next_index}_")
        turn = Turn(
            index=log.next_index,
            branch=self._branch,
            parent=None if self._parent is None else self._parent.index,
            num_kept=num_kept,
            added=prompt[num_kept:],
            sampled=sampled,
            messages=(*(new_messages if self._extends else self._messages), message),
        )
        log.take(turn)
        log.on_span(
            Span(
                kind=SpanKind.MODEL,
                start_s=start_s,
                end_s=end_s,
                attempt=terms.attempt,
                counts={"new": len(turn.added), "kept": num_kept, "sampled": len(sampled.ids)},
            )
        )
        self._parent, self._prompt, self._sampled, self._extends = turn, prompt, sampled.ids, True
        self._messages += (message,)
        return Reply(message=message, stop=sampled.stop)

    def _next_prompt(self, new_messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[TokenIds, int]:
        """The next prompt, and how many of its first tokens stand in the parent's prompt and sample."""
        before = self._prompt + self._sampled
        prompt = None
        if self._extends:
            prompt = self._renderer.extend(self._prompt, self._sampled, new_messages, tools)
        if prompt is None:
            prompt = self._renderer.render(self._messages, tools)
        return prompt, _common_prefix(before, prompt)


def _common_prefix(one: TokenIds, other: TokenIds) -> int:
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(index for index in range(length) if one[index] != other[index])
