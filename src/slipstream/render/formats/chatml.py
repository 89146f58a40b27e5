"""ChatML for models whose only special tokens are `<|im_start|>` and `<|im_end|>`, such as SmolLM2.

Tools are described in the system message, unless that is switched off; a call is plain text between `<tool_call>` and
`</tool_call>`, and a tool answers in a message with the role `tool`, so nothing is added to the vocabulary. The text
between the two marks of a message is encoded in one piece, as with the model's own template; only a reply starts a new
piece, since it was sampled that way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby

from slipstream.errors import ConfigError
from slipstream.render.base import Tokenizer
from slipstream.types import CallProblem, Json, Message, Role, ToolCall, ToolSpec

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

_TOOLS_BEFORE = "You can use these tools:\n<tools>\n"
_TOOLS_AFTER = "\n</tools>\nTo use one, write its name and its arguments as JSON:\n"
_EXAMPLE = f'{CALL_OPEN}\n{{"name": "<tool>", "arguments": {{"<argument>": <value>}}}}\n{CALL_CLOSE}'
_CALL = re.compile(rf"\n?{re.escape(CALL_OPEN)}(.*?)({re.escape(CALL_CLOSE)}|\Z)", re.DOTALL)
_THINKING = re.compile(rf"\s*{re.escape(THINK_OPEN)}(.*?)({re.escape(THINK_CLOSE)}\s*|\Z)", re.DOTALL)


class ChatMLFormat:
    def __init__(self, tokenizer: Tokenizer, *, default_system: str = "", show_tools: bool = True) -> None:
        """`default_system` is the system message that the model's own template adds if there is none. Without
        `show_tools` the system message does not describe the tools: for a model that knows them by training."""
        self._tokenizer = tokenizer
        self._default_system = default_system
        self._show_tools = show_tools
        self._start = self._mark("<|im_start|>")
        self._end = self._mark("<|im_end|>")
        past_end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
        self.stop_ids: tuple[int, ...] = (self._end,) if past_end is None else (self._end, past_end)
        self._newline = tokenizer.encode("\n", add_special_tokens=False)

    def _mark(self, token: str) -> int:
        index = self._tokenizer.convert_tokens_to_ids(token)
        if index is None or index == self._tokenizer.unk_token_id:
            raise ConfigError(
                f"the tokenizer {self._tokenizer.name_or_path!r} does not fit a ChatML family: it has no {token}"
            )
        return index

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        system, rest = self._default_system, list(messages)
        if rest and rest[0].role is Role.SYSTEM:
            system, rest = rest[0].content, rest[1:]
        system = self._system(system, tools if self._show_tools else ())
        ids = self._turn(f"system\n{system}") if system else []
        for is_reply, messages_ in groupby(rest, lambda message: message.role is Role.ASSISTANT):
            run = list(messages_)
            ids += [index for reply in run for index in self._reply(reply)] if is_reply else self._given(run)
        return ids + self._opening()

    def extend(
        self, tail: list[int], sampled: list[int], new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> list[int] | None:
        if not new or any(message.role is Role.ASSISTANT for message in new):
            return None
        ended = next((place for place, index in enumerate(sampled) if index in self.stop_ids), None)
        reply = [*sampled, self._end] if ended is None else sampled[: ended + 1]
        return [*tail, *reply, *self._newline, *self._given(new), *self._opening()]

    def parse(self, sampled: list[int], tail: list[int], tools: Sequence[ToolSpec]) -> Message:
        ended = next((place for place, index in enumerate(sampled) if index in self.stop_ids), len(sampled))
        return parse_text(self._tokenizer.decode(sampled[:ended]))

    def encode_reply(self, message: Message) -> list[int]:
        return [*self._encode(reply_text(message)), self._end]

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _system(self, system: str, tools: Sequence[ToolSpec]) -> str:
        """The content of the system message, including the description of the tools."""
        return "\n\n".join(part for part in (system, about_tools(tools)) if part)

    def _turn(self, text: str) -> list[int]:
        return [self._start, *self._encode(text), self._end, *self._newline]

    def _given(self, messages: Sequence[Message]) -> list[int]:
        """Messages that are not replies."""
        if any(message.images for message in messages):
            raise ConfigError("this chat format has no images: use a chat endpoint")
        return [index for one in messages for index in self._turn(f"{one.role.value}\n{one.content}")]

    def _reply(self, message: Message) -> list[int]:
        return [*self._opening(), *self.encode_reply(message), *self._newline]

    def _opening(self) -> list[int]:
        return [self._start, *self._encode("assistant\n")]


def about_tools(tools: Sequence[ToolSpec], example: str = "") -> str:
    """A description of the tools, with an example call; empty without tools."""
    if not tools:
        return ""
    specs = (
        {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)} for tool in tools
    )
    return (
        _TOOLS_BEFORE
        + "\n".join(json.dumps(spec, ensure_ascii=False) for spec in specs)
        + _TOOLS_AFTER
        + (example or _EXAMPLE)
    )


def reply_text(message: Message) -> str:
    """The text of a reply: thinking, content, calls."""
    calls = (_call_text(call) for call in message.calls if call.problem is None)
    thinking = f"{THINK_OPEN}\n{message.thinking}\n{THINK_CLOSE}\n\n" if message.thinking else ""
    return thinking + "\n".join(part for part in (message.content, *calls) if part)


def _call_text(call: ToolCall) -> str:
    written = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    return f"{CALL_OPEN}\n{written}\n{CALL_CLOSE}"


def parse_text(text: str) -> Message:
    """The message of a text, with every call in order. A call inside thinking is not a call."""
    thinking = ""
    if thought := _THINKING.match(text):
        thinking, text = thought[1].strip("\n"), text[thought.end() :]
    content, calls = read_calls(text)
    return Message(role=Role.ASSISTANT, content=content, thinking=thinking, calls=calls)


def read_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Content, and the calls between tags."""
    return _CALL.sub("", text), tuple(call for found in _CALL.finditer(text) for call in _calls(found))


def _calls(found: re.Match[str]) -> list[ToolCall]:
    raw = found[0].lstrip("\n")
    try:
        written: Json = json.loads(found[1])
    except (ValueError, RecursionError):
        problem = CallProblem.BAD_JSON if found[2] else CallProblem.UNCLOSED
        return [ToolCall(id="", name="", problem=problem, raw=raw)]
    entries = written if isinstance(written, list) and written else [written]
    return [_call(entry, raw, closed=bool(found[2])) for entry in entries]


def _call(written: Json, raw: str, *, closed: bool) -> ToolCall:
    if not isinstance(written, dict):
        return ToolCall(id="", name="", problem=CallProblem.BAD_SHAPE, raw=raw)
    name, arguments = written.get("name"), written.get("arguments", {})
    if not isinstance(name, str) or not name:
        return ToolCall(id="", name="", problem=CallProblem.NO_NAME, raw=raw)
    if not isinstance(arguments, dict):
        return ToolCall(id="", name=name, problem=CallProblem.BAD_SHAPE, raw=raw)
    problem = None if closed else CallProblem.UNCLOSED
    return ToolCall(id="", name=name, arguments=arguments, problem=problem, raw=raw)
