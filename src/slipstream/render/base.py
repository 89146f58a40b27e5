"""What a chat format is: one family's way to write messages as tokens, over one tokenizer.

`library.LibraryFormat` has most families, over the `renderers` library; `chatml` and `harmony` are written here, for
models that the library does not fit. A Renderer puts thinking, shielding and ids of calls on top, the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.types import Json, Message, ToolSpec

SHIELD = "\ufdd0"
"""Put into text that spells a special token, so that it stays text (`tokenizers.ShieldedTokenizer`). It is a code point
that is no character and never will be, so no text loses anything by its absence."""


class Tokenizer(Protocol):
    """What is asked of a tokenizer here; the extra arguments are Hugging Face's and are not needed."""

    name_or_path: str
    unk_token_id: int | None
    eos_token_id: int | None

    @property
    def special_tokens(self) -> Sequence[str]:
        """All texts that `encode` takes for one token of their own, whatever stands around them."""
        ...

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *args: Any, **kwargs: Any) -> str: ...

    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a family's format can carry."""

    thinking: bool = True
    several_calls: bool = True
    text_with_call: bool = True


class ChatFormat(Protocol):
    """Messages in, ids out, and back. The ids of a reply are those that a model samples, its closing token included."""

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
        """`tail` and `sampled` as they are, closed where the model did not, then `new`, ready for the next reply.

        `tail` is the end of the prompt that was sampled from, back to the last reply at least. None if the format
        cannot go on from there.
        """
        ...

    def parse(self, sampled: list[int], tail: list[int], tools: Sequence[ToolSpec]) -> Message:
        """What the model said. Calls have an id only if the format gives them one."""
        ...

    def encode_reply(self, message: Message) -> list[int]:
        """The ids that a model would sample to say `message`."""
        ...


def same_reply(one: Message, other: Message) -> bool:
    """Whether two replies say the same: calls by name, arguments and problem, text but for the blanks around it."""

    def said(message: Message) -> object:
        calls = [(_plain(call.name), _plain(dict(call.arguments)), call.problem) for call in message.calls]
        return _plain(message.content.strip()), _plain(message.thinking.strip()), calls

    return said(one) == said(other)


def _plain(value: Json) -> Json:
    """A text, or what holds some, without the marks that shield special tokens."""
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
    """Tools that take just what the calls of `message` give: formats without types in them are read by a schema."""
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
