"""The chat format of GPT-OSS, which OpenAI calls harmony, over any tokenizer that has its special tokens.

A reply is one or more messages: thinking in the channel `analysis`, text before a call in `commentary`, the answer in
`final`, and a call in `commentary` to `functions.NAME`:

    <|start|>assistant to=functions.look<|channel|>commentary <|constrain|>json<|message|>{"at": "x"}<|call|>

Invariants: a prompt ends in `<|start|>assistant`, and a reply is what comes after it. A message in the history has the
ids of `encode_reply`, except that `<|return|>` at its end becomes `<|end|>`, as OpenAI requires. `extend` keeps what
was sampled, including `<|return|>`. `parse` accepts any ids and never raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from slipstream.errors import ConfigError
from slipstream.render.base import Tokenizer
from slipstream.render.formats.typescript import namespace_text
from slipstream.types import CallProblem, Json, Message, Role, ToolCall, ToolSpec

HARMONY_TOKENS = ("<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|channel|>", "<|message|>", "<|constrain|>")

MODEL_IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."

ReasoningEffort = Literal["low", "medium", "high"]

_CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
_FUNCTIONS = "\nCalls to these tools must go to the commentary channel: 'functions'."
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class HarmonyFormat:
    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        reasoning_effort: ReasoningEffort = "medium",
        conversation_date: str | None = None,
        keep_thinking: bool = True,
        knowledge_cutoff: str = "2024-06",
        model_identity: str = MODEL_IDENTITY,
    ) -> None:
        """The prompt has a date only if one is given, so that it is the same every day.

        Without `keep_thinking`, thinking before a final answer is dropped, as OpenAI's template does.
        """
        if reasoning_effort not in get_args(ReasoningEffort):
            raise ConfigError(f'there is no reasoning effort "{reasoning_effort}": use low, medium or high')
        self._tokenizer = tokenizer
        self._keep_thinking = keep_thinking
        dates = [f"Knowledge cutoff: {knowledge_cutoff}"]
        if conversation_date is not None:
            dates.append(f"Current date: {conversation_date}")
        self._system = "\n".join([model_identity, *dates]) + f"\n\nReasoning: {reasoning_effort}\n\n{_CHANNELS}"
        self._start, self._end, self._return, self._call = map(self._mark, HARMONY_TOKENS[:4])
        self._channel, self._message, self._constrain = map(self._mark, HARMONY_TOKENS[4:])
        self.stop_ids: tuple[int, ...] = (self._return, self._call)
        self._opening = [self._start, *self._encode("assistant")]

    def _mark(self, token: str) -> int:
        index = self._tokenizer.convert_tokens_to_ids(token)
        if index is None or index == self._tokenizer.unk_token_id:
            raise ConfigError(
                f"the tokenizer {self._tokenizer.name_or_path!r} does not fit the family 'gpt-oss': it has no {token}"
            )
        return index

    # ---------------------------------------------------------------- writing

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        instructions, rest = "", list(messages)
        if rest and rest[0].role is Role.SYSTEM:
            instructions, rest = rest[0].content, rest[1:]
        ids = self._block("system", self._system + (_FUNCTIONS if tools else ""))
        if instructions or tools:
            ids += self._block("developer", _developer_text(instructions, tools))
        num_settled = 0 if self._keep_thinking else _num_settled(rest)
        for place, message in enumerate(rest):
            if message.role is Role.ASSISTANT:
                for part in self._reply_parts(message, thinking=place >= num_settled):
                    ids += [*self._opening, *part]
            else:
                ids += self._given(message)
        return ids + self._opening

    def extend(
        self, tail: list[int], sampled: list[int], new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> list[int] | None:
        """See ChatFormat. What was sampled after the end of the reply is left out."""
        reply = sampled[: self._reply_length(sampled)]
        if any(message.role is Role.ASSISTANT for message in new) or self._drops_thinking(tail, reply):
            return None
        last = self._blocks([*self._opened(tail), *reply])[-1]
        closing: list[int] = []
        if last.end is None:
            closing = [self._message, self._end] if last.body is None else [self._end]
        given = [index for message in new for index in self._given(message)]
        return [*tail, *reply, *closing, *given, *self._opening]

    def encode_reply(self, message: Message) -> list[int]:
        """A model makes one call in a reply; a message with several is written as that many messages in a row."""
        first, *others = self._reply_parts(message, thinking=True)
        ids = first + [index for part in others for index in (*self._opening, *part)]
        if ids[-1] == self._end:
            ids[-1] = self._return
        return ids

    def _reply_parts(self, message: Message, *, thinking: bool) -> list[list[int]]:
        """The messages of a reply, each from after `<|start|>assistant` to its closing token."""
        parts = []
        if message.thinking and thinking:
            parts.append(self._rest(message.thinking, channel="analysis"))
        if message.content or not (message.calls or message.thinking):
            parts.append(self._rest(message.content, channel="commentary" if message.calls else "final"))
        return parts + [self._call_rest(call) for call in message.calls]

    def _call_rest(self, call: ToolCall) -> list[int]:
        end = self._end if call.problem is CallProblem.UNCLOSED else self._call
        if not call.name:
            return self._rest(call.raw, channel="commentary", end=end)
        to = _recipient(call.name)
        return self._rest(_arguments_text(call), to=to, channel="commentary", is_json=True, end=end)

    def _given(self, message: Message) -> list[int]:
        if message.images:
            raise ConfigError("this chat format has no images: use a chat endpoint")
        match message.role:
            case Role.TOOL:
                author = _recipient(message.name) if message.name else "functions"
                return self._block(author, message.content, to="assistant", channel="commentary")
            case Role.SYSTEM:
                return self._block("developer", _developer_text(message.content, ()))
            case _:
                return self._block(message.role.value, message.content)

    def _block(self, author: str, text: str, *, to: str = "", channel: str = "") -> list[int]:
        return [self._start, *self._encode(author), *self._rest(text, to=to, channel=channel)]

    def _rest(
        self, text: str, *, to: str = "", channel: str = "", is_json: bool = False, end: int | None = None
    ) -> list[int]:
        """A message without its start and author, split into pieces as OpenAI's encoder does."""
        ids = self._encode(f" to={to}") if to else []
        if channel:
            ids += [self._channel, *self._encode(channel)]
        if is_json:
            ids += [*self._encode(" "), self._constrain, *self._encode("json")]
        return [*ids, self._message, *self._encode(text), self._end if end is None else end]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    # ---------------------------------------------------------------- reading

    def parse(self, sampled: list[int], tail: list[int], tools: Sequence[ToolSpec]) -> Message:
        reply = sampled[: self._reply_length(sampled)]
        thinking: list[str] = []
        content: list[str] = []
        calls: list[ToolCall] = []
        for block in self._blocks([*self._opened(tail), *reply]):
            header = self._header(block)
            if not header.is_assistant:
                continue
            text = header.text if block.body is None else self._tokenizer.decode(block.body)
            if header.to is not None:
                calls.append(_read_call(header.to, text, closed=block.end is not None))
            elif header.channel == "analysis":
                thinking.append(text)
            elif block.end == self._call:
                calls.append(ToolCall(id="", name="", problem=CallProblem.NO_NAME, raw=text))
            else:
                content.append(text)
        return Message(
            role=Role.ASSISTANT,
            content="\n\n".join(filter(None, content)),
            thinking="\n\n".join(filter(None, thinking)),
            calls=tuple(calls),
        )

    def _reply_length(self, sampled: list[int]) -> int:
        """How many tokens the reply has. A call ends it, unless the assistant continues at once."""
        for place, index in enumerate(sampled):
            if index in self.stop_ids:
                follows = sampled[place + 1 : place + 1 + len(self._opening)]
                if index == self._return or follows != self._opening:
                    return place + 1
        return len(sampled)

    def _opened(self, tail: list[int]) -> list[int]:
        """The message that the prompt opened for the reply."""
        for place in range(len(tail) - 1, -1, -1):
            if tail[place] == self._start:
                return tail[place:]
        return self._opening

    def _blocks(self, ids: list[int]) -> list[_Block]:
        blocks: list[_Block] = []
        header: list[int] | None = None
        body: list[int] | None = None
        for index in ids:
            if index == self._start:
                if header is not None:
                    blocks.append(_Block(header=header, body=body, end=None))
                header, body = [], None
            elif index in (self._end, self._return, self._call):
                blocks.append(_Block(header=header or [], body=body, end=index))
                header, body = None, None
            elif body is not None:
                body.append(index)
            else:
                header = [] if header is None else header
                if index == self._message:
                    body = []
                else:
                    header.append(index)
        return blocks if header is None else [*blocks, _Block(header=header, body=body, end=None)]

    def _header(self, block: _Block) -> _Header:
        """The recipient may come after the author or after the channel: models write both."""
        ids = block.header
        at = ids.index(self._channel) if self._channel in ids else len(ids)
        author = self._tokenizer.decode(ids[:at])
        behind = " ".join(self._tokenizer.decode(piece) for piece in self._pieces(ids[at + 1 :])).split()
        words = author.split()
        recipients = [word.removeprefix("to=") for word in (*words, *behind) if word.startswith("to=")]
        return _Header(
            is_assistant=not words or words[0].startswith(("assistant", "to=")),
            channel=behind[0] if behind else "",
            to=recipients[0] if recipients and recipients[0] != "all" else None,
            text=" ".join(behind[1:]) if at < len(ids) else author.removeprefix("assistant"),
        )

    def _pieces(self, ids: list[int]) -> list[list[int]]:
        pieces: list[list[int]] = [[]]
        for index in ids:
            if index in (self._channel, self._constrain):
                pieces.append([])
            else:
                pieces[-1].append(index)
        return pieces

    def _drops_thinking(self, tail: list[int], reply: list[int]) -> bool:
        """Whether the template would drop thinking once there is this reply; yes if the tail does not show it."""
        if self._keep_thinking:
            return False
        message = self.parse(reply, tail, ())
        if message.calls or not message.content:
            return False
        beginning = [self._start, *self._encode("system")]
        if tail[: len(beginning)] != beginning:
            return True
        headers = map(self._header, self._blocks([*tail, *reply]))
        return any(header.is_assistant and header.channel == "analysis" for header in headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """One sampled message, which may be incomplete."""

    header: list[int]
    body: list[int] | None
    """None if there was no `<|message|>`."""
    end: int | None
    """Its closing token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    is_assistant: bool
    channel: str
    to: str | None
    text: str
    """The text of the header, or all of it if there was no `<|message|>`."""


def _developer_text(instructions: str, tools: Sequence[ToolSpec]) -> str:
    parts = [f"# Instructions\n\n{instructions}"] if instructions or not tools else []
    if tools:
        parts.append(f"# Tools\n\n{namespace_text('functions', tools)}")
    return "\n\n".join(parts)


def _num_settled(messages: Sequence[Message]) -> int:
    """How many messages there are up to the last final answer."""
    finals = [
        place
        for place, message in enumerate(messages)
        if message.role is Role.ASSISTANT and message.content and not message.calls
    ]
    return finals[-1] + 1 if finals else 0


def _recipient(name: str) -> str:
    """Only the built-in tools, such as `browser.search`, have a dot in their name; they are not functions."""
    return name if "." in name else f"functions.{name}"


def _arguments_text(call: ToolCall) -> str:
    """The arguments as the model wrote them if that is known, else as OpenAI's template writes an object."""
    if call.problem is not None or (call.raw and _read_json(call.raw) == call.arguments):
        return call.raw
    text = json.dumps(dict(call.arguments), ensure_ascii=False)
    return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _read_call(to: str, text: str, *, closed: bool) -> ToolCall:
    name = to.removeprefix("functions.")
    arguments = _read_json(text)
    problem = None
    if not closed:
        problem = CallProblem.UNCLOSED
    elif not name:
        problem = CallProblem.NO_NAME
    elif arguments is _NO_JSON:
        problem = CallProblem.BAD_JSON
    elif not isinstance(arguments, dict):
        problem = CallProblem.BAD_SHAPE
    if problem is not None or not isinstance(arguments, dict):
        return ToolCall(id="", name=name, problem=problem, raw=text)
    return ToolCall(id="", name=name, arguments=arguments, raw=text)


_NO_JSON = object()


def _read_json(text: str) -> Json | object:
    try:
        read: Json = json.loads(text, parse_constant=_refuse)
        return read
    except (ValueError, RecursionError):
        return _NO_JSON


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
