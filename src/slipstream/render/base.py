"""The interface of a chat format: how one model family writes messages as tokens, with one tokenizer.

`library.LibraryFormat` covers most families, through the `renderers` library; `chatml` and `harmony` are for models
that the library does not fit. A Renderer adds thinking, shielding and ids of calls, in the same way for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.types import Json, Message, ToolSpec

SHIELD = "\ufdd0"
"""Inserted into text that spells a special token, so that it stays text (`tokenizers.ShieldedTokenizer`). This code
point will never be a character, so no text needs it."""


class Tokenizer(Protocol):
    """What a format needs of a tokenizer; the extra arguments are Hugging Face's."""

    name_or_path: str
    unk_token_id: int | None
    eos_token_id: int | None

    @property
    def special_tokens(self) -> Sequence[str]:
        """All texts that `encode` turns into a single token, whatever surrounds them."""
        ...

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *args: Any, **kwargs: Any) -> str: ...

    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a family's format can represent."""

    thinking: bool = True
    several_calls: bool = True
    text_with_call: bool = True


class ChatFormat(Protocol):
    """Messages to ids and back. The ids of a reply are those that a model samples, including its closing token."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokens that end a reply."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """A whole conversation as the family's own template writes it, ready for the next reply."""
        ...

    def extend(
        self, tail: list[int], sampled: list[int], new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> list[int] | None:
        """`tail` and `sampled` unchanged, closed if the model did not do so, then `new`, ready for the next reply.

        `tail` is the end of the prompt that was sampled from, from the last reply or earlier. None if the format
        cannot be extended there.
        """
        ...

    def parse(self, sampled: list[int], tail: list[int], tools: Sequence[ToolSpec]) -> Message:
        """The message of a reply. Calls have an id only if the format has them."""
        ...

    def encode_reply(self, message: Message) -> list[int]:
        """The ids that a model would sample for `message`."""
        ...


def same_reply(one: Message, other: Message) -> bool:
    """Whether two replies are equivalent: equal calls (name, arguments, problem), and equal text once stripped."""

    def content_of(message: Message) -> object:
        calls = [(_plain(call.name), _plain(dict(call.arguments)), call.problem) for call in message.calls]
        return _plain(message.content.strip()), _plain(message.thinking.strip()), calls

    return content_of(one) == content_of(other)


def _plain(value: Json) -> Json:
    """A text, or a container of texts, without the marks that shield special tokens."""
    match value:
        case str():
            return value.replace(SHIELD, "")
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {name.replace(SHIELD, ""): _plain(item) for name, item in value.items()}
        case _:
            return value


def tools_of(message: Message) -> tuple[ToolSpec, ...]:
    """Tools that take exactly the arguments of the calls of `message`: formats without types need a schema."""
    return tuple(
        ToolSpec(
            name=call.name,
            description="",
            parameters={
                "type": "object",
                "properties": {name: {"type": _json_type(value)} for name, value in call.arguments.items()},
            },
        )
        for call in message.calls
    )


def _json_type(value: Json) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
        case None:
            return "null"
