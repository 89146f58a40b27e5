"""A model folder's own chat template, as Hugging Face's libraries would run it.

It is what a family's renderer is compared with, and what the family `template` renders through. Templates come from
strangers, so they run in Jinja's sandbox.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any

from slipstream.errors import ConfigError
from slipstream.types import Json, Message, Role, ToolCall, ToolSpec

DATE = "2024-07-26"
"""What templates are told is today, unless set: the same every day, so that a resumed run has the same prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a template wants calls to be given to it."""

    json_arguments: bool = False
    """Arguments as a JSON string, not as an object."""
    no_content: bool = False
    """None, not an empty string, as the content of a reply that is calls alone."""
    short_ids: bool = False
    """Ids of calls as nine letters or digits, as Mistral's templates demand."""


class ChatTemplate:
    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        args: Mapping[str, Json] | None = None,
        today: str = DATE,
    ) -> None:
        """`args` are variables that the template reads besides the messages, such as `enable_thinking`."""
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation_tag()]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _day(today).strftime
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as raised:
            raise ConfigError(f"the chat template cannot be read: {raised}") from raised
        self.source = source
        self.special_tokens: Mapping[str, str] = dict(special_tokens or {})
        self._variables = {**self.special_tokens, **(args or {})}

    @staticmethod
    def load(folder: Path, *, args: Mapping[str, Json] | None = None, today: str = DATE) -> ChatTemplate | None:
        """The template of a model folder; None if it has none."""
        settings = _json(folder / "tokenizer_config.json")
        source = settings.get("chat_template")
        beside = folder / "chat_template.jinja"
        if beside.is_file():
            source = beside.read_text()
        if isinstance(source, list):  # several, by name
            source = {entry["name"]: entry["template"] for entry in source if isinstance(entry, dict)}.get("default")
        if not isinstance(source, str):
            return None
        tokens = {name: _token(value) for name, value in settings.items() if name.endswith("_token")}
        special_tokens = {name: token for name, token in tokens.items() if token is not None}
        return ChatTemplate(source, special_tokens=special_tokens, args=args, today=today)

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, add_generation_prompt: bool = True
    ) -> str:
        """The conversation as text. Raises ConfigError if the template refuses it."""
        has_calls = any(message.calls or message.role is Role.TOOL for message in messages)
        dialect = self._dialect if has_calls else Dialect()
        return self._render(messages, tools, dialect, add_generation_prompt)

    def _render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], dialect: Dialect, add_generation_prompt: bool
    ) -> str:
        try:
            return self._template.render(
                messages=[_as_dict(message, dialect) for message in messages],
                tools=[_tool_dict(tool) for tool in tools] or None,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            )
        except Exception as raised:  # a stranger's template may fail in any way
            raise ConfigError(f"the chat template refuses the conversation: {raised}") from raised

    @cached_property
    def _dialect(self) -> Dialect:
        """The first way to give a call in which the template shows the call and its answer."""
        call = ToolCall(id="functions.look:0", name="look", arguments={"what": "asked 7"})
        messages = (
            Message(role=Role.USER, content="Where?"),
            Message(role=Role.ASSISTANT, calls=(call,)),
            Message(role=Role.TOOL, content="answered 7", call_id=call.id, name=call.name),
        )
        tool = ToolSpec(name="look", description="Look.", parameters={"type": "object", "properties": {}})

        def num_shown(dialect: Dialect) -> int:
            try:
                text = self._render(messages, (tool,), dialect, True)
            except ConfigError:
                return -1
            shows_call = "asked 7" in text and "'asked 7'" not in text and '\\"asked 7' not in text
            return 2 * shows_call + ("answered 7" in text)

        choices = (
            Dialect(json_arguments=json_arguments, no_content=no_content, short_ids=short_ids)
            for short_ids, no_content, json_arguments in product((False, True), repeat=3)
        )
        return max(choices, key=num_shown)

    def default_system(self) -> str:
        """The system message that it writes where there is none, for templates in ChatML."""
        try:
            text = self.render([Message(role=Role.USER, content="?")])
        except ConfigError:
            return ""
        before, _, _ = text.partition("<|im_start|>user")
        _, started, system = before.partition("<|im_start|>system\n")
        return system.partition("<|im_end|>")[0] if started else ""


def _as_dict(message: Message, dialect: Dialect) -> dict[str, Any]:
    if message.images:
        raise ConfigError("images need a multimodal renderer, which is not wired in: use a chat endpoint")
    entry: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if message.thinking:
        entry["reasoning_content"] = message.thinking
    if message.calls:
        if dialect.no_content and not message.content:
            entry["content"] = None
        entry["tool_calls"] = [_call_dict(call, dialect) for call in message.calls]
    if message.role is Role.TOOL:
        entry |= {"tool_call_id": _id(message.call_id, dialect), "name": message.name}
    return entry


def _call_dict(call: ToolCall, dialect: Dialect) -> dict[str, Any]:
    arguments = dict(call.arguments)
    given = _to_json(arguments) if dialect.json_arguments else arguments
    return {"type": "function", "id": _id(call.id, dialect), "function": {"name": call.name, "arguments": given}}


def _id(call_id: str, dialect: Dialect) -> str:
    if not dialect.short_ids or re.fullmatch("[A-Za-z0-9]{9}", call_id):
        return call_id
    return blake2b(call_id.encode(), digest_size=5).hexdigest()[:9]


def _tool_dict(tool: ToolSpec) -> dict[str, Any]:
    about = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": about}


def _generation_tag() -> Any:
    """The tag by which some templates mark what a model says; it changes nothing of the text."""
    from jinja2.ext import Extension
    from jinja2.nodes import Node

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 (declared so by the base class)

        def parse(self, parser: Any) -> list[Node]:
            next(parser.stream)
            body: list[Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return body

    return Generation


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Jinja's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> None:
    raise ValueError(message)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except (TypeError, ValueError):
        raise ConfigError(f"the date {text!r} is no day: write it like {DATE}") from None


def _json(path: Path) -> dict[str, Json]:
    if not path.is_file():
        return {}
    try:
        read = json.loads(path.read_text())
    except ValueError as raised:
        raise ConfigError(f"{path} is no JSON: {raised}") from raised
    return read if isinstance(read, dict) else {}


def _token(value: Json) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
