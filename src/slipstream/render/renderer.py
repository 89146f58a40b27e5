"""Renders messages as tokens and parses replies, in the same way for every family.

Input: messages and tool specs, or sampled ids. Output: prompt ids, or the message of the reply.
Invariants: sampled ids are never encoded again. `extend` keeps them and encodes only what is new; if a family's format
cannot be extended it returns None, and the caller renders again, as a visible fork. Thinking stays in the history,
unless the family's own template is requested. Text from outside is text: a special token's name in it stays text and
never ends a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from slipstream.errors import ConfigError
from slipstream.names import load_object
from slipstream.render.base import ChatFormat, Tokenizer, Traits, same_reply, tools_of
from slipstream.render.families import TRAITS
from slipstream.render.formats.own_templates import OWN_TEMPLATES
from slipstream.render.tokenizers import ShieldedTokenizer
from slipstream.types import Json, Message, Role, TokenIds, ToolCall, ToolSpec, token_ids

Thinking = Literal["keep", "template"]

_OWN = {
    "chatml": "slipstream.render.formats.chatml:ChatMLFormat",
    "qwen2.5": "slipstream.render.formats.qwen25:Qwen25Format",
    "gpt-oss": "slipstream.render.formats.harmony:HarmonyFormat",
    "template": "slipstream.render.formats.jinja:JinjaFormat",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """How a prompt continues after a reply."""

    num_dropped: int
    """Sampled tokens that are dropped because they came after the end of the reply."""
    added: TokenIds


class Renderer:
    """One model family's chat format with one tokenizer: `Renderer("qwen3", ByteTokenizer())`.

    `family` is `chatml`, `gpt-oss`, a name of the `renderers` library, or `module:Class` of your own ChatFormat, which
    is called with the tokenizer. `args` are further variables of the family's template, such as `enable_thinking`.
    """

    def __init__(
        self,
        family: str,
        tokenizer: Tokenizer,
        *,
        thinking: Thinking = "keep",
        args: Mapping[str, Json] | None = None,
    ) -> None:
        self.family = family
        self._tokenizer = ShieldedTokenizer(tokenizer)
        self._format = _make_format(family, self._tokenizer, thinking, dict(args or {}))
        self._keeps_thinking = thinking == "keep"
        self.stop_ids = self._format.stop_ids
        self._opening = self._format.render([Message(role=Role.USER, content="?")], ())

    @property
    def traits(self) -> Traits:
        """What the format can represent."""
        traits: Traits = getattr(self._format, "traits", TRAITS.get(self.family, Traits()))
        return traits

    @property
    def limits(self) -> tuple[str, ...]:
        """What the format loses, in sentences; known only for the family `template`."""
        limits: tuple[str, ...] = getattr(self._format, "limits", ())
        return limits

    @property
    def special_tokens(self) -> Sequence[str]:
        return self._tokenizer.special_tokens

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> TokenIds:
        """A whole conversation, ready for the model's next reply."""
        shielded = [self._shielded(message) for message in messages]
        ids = self._fold(shielded, tools) if self._keeps_thinking else None
        return token_ids(self._format.render(shielded, tools) if ids is None else ids)

    def extend(
        self, tail: TokenIds, sampled: TokenIds, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Extension | None:
        """What follows `sampled`, ready for the next reply; None if nothing can.

        `tail` is the end of the prompt that was sampled from, from the last reply or earlier; the whole prompt is fine.
        """
        before = [*tail, *sampled]
        extended = self._format.extend(before[: len(tail)], before[len(tail) :], [*map(self._shielded, new)], tools)
        if extended is None:
            return None
        num_kept = len(before)
        if extended[:num_kept] != before:
            num_kept = next(place for place, index in enumerate(before) if extended[place : place + 1] != [index])
        if num_kept < len(tail):
            return None
        return Extension(num_dropped=len(before) - num_kept, added=token_ids(extended[num_kept:]))

    def parse(self, sampled: TokenIds, tail: TokenIds, tools: Sequence[ToolSpec], *, call_prefix: str) -> Message:
        """The message of a reply, with every call in order. A call inside thinking is not a call."""
        message = self._format.parse(sampled.tolist(), tail.tolist(), tools)
        calls = (
            call if call.id else replace(call, id=f"{call_prefix}{place}") for place, call in enumerate(message.calls)
        )
        return replace(message, calls=tuple(calls))

    def encode_reply(self, message: Message) -> TokenIds:
        """The ids that a model of this family would sample for `message`: for scripts and demonstrations.

        Raises ConfigError if the family cannot represent it, such as thinking in a family without it.
        """
        ids = self._format.encode_reply(self._shielded(message))
        parsed = self._format.parse(ids, self._opening, tools_of(message))
        if not same_reply(parsed, message):
            raise ConfigError(f"the family {self.family!r} cannot represent {message}: it would be parsed as {parsed}")
        return token_ids(ids)

    def encode_text(self, text: str) -> TokenIds:
        """`text` as it is, including special tokens."""
        return token_ids(self._tokenizer.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids))

    def _fold(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int] | None:
        """The conversation as it would have grown turn by turn; None if it could not have."""
        replies = [place for place, message in enumerate(messages) if message.role is Role.ASSISTANT]
        if not replies or not replies[0]:
            return None
        ids: list[int] | None = self._format.render(messages[: replies[0]], tools)
        for place, until in zip(replies, [*replies[1:], len(messages)], strict=True):
            if ids is not None:
                reply = self._format.encode_reply(messages[place])
                ids = self._format.extend(ids, reply, messages[place + 1 : until], tools)
        return ids

    def _shielded(self, message: Message) -> Message:
        shield = self._tokenizer.shield
        content = shield(message.content)
        broken = [call.raw for call in message.calls if call.problem is not None]
        return replace(
            message,
            # Keep what the model wrote even if it was not a call.
            content="\n".join(part for part in (content, *broken) if part) if broken else content,
            thinking=shield(message.thinking),
            calls=tuple(_shielded_call(call, shield) for call in message.calls if call.problem is None),
            name=shield(message.name),
        )


def _make_format(family: str, tokenizer: ShieldedTokenizer, thinking: Thinking, args: dict[str, Json]) -> ChatFormat:
    if own := OWN_TEMPLATES.get(family):
        from slipstream.render.formats.jinja import JinjaFormat

        given: dict[str, Any] = {"source": own.source, "special_tokens": own.special_tokens, **args}
        return JinjaFormat(tokenizer, keep_thinking=thinking == "keep", **given)
    if family not in _OWN and ":" not in family:
        from slipstream.render.formats.library import LibraryFormat

        return LibraryFormat(family, tokenizer, keep_thinking=thinking == "keep", args=args)
    made = load_object(_OWN.get(family, family), "model.family")
    if not callable(made):
        raise ConfigError(f"model.family {family} is not a class: name a ChatFormat that takes a tokenizer")
    if family in ("gpt-oss", "template"):
        args = {"keep_thinking": thinking == "keep", **args}
    try:
        chat_format: ChatFormat = made(tokenizer, **args)
    except TypeError as raised:
        raise ConfigError(f"the family {family!r} does not take model.family_args {args}: {raised}") from raised
    return chat_format


def _shielded_call(call: ToolCall, shield: Callable[[str], str]) -> ToolCall:
    arguments = {shield(name): _shielded_json(value, shield) for name, value in call.arguments.items()}
    return replace(call, name=shield(call.name), arguments=arguments)


def _shielded_json(value: Json, shield: Callable[[str], str]) -> Json:
    match value:
        case str():
            return shield(value)
        case list():
            return [_shielded_json(item, shield) for item in value]
        case dict():
            return {shield(name): _shielded_json(item, shield) for name, item in value.items()}
        case _:
            return value
