"""A model folder's own chat template, as Hugging Face's libraries would run it.

A family's renderer is compared with it, and the family `template` renders through it. Templates are untrusted, so they
run in Jinja's sandbox.
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
from slipstream.messages import chat_tool
from slipstream.render.tokenizers import read_object, token_text
from slipstream.types import Json, Message, Role, ToolCall, ToolSpec

DATE = "2024-07-26"
"""The date that templates get, unless set: fixed, so that a resumed run has the same prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a template expects calls."""

    json_arguments: bool = False
    """Arguments as a JSON string, not as an object."""
    no_content: bool = False
    """None, not an empty string, as the content of a reply that has only calls."""
    short_ids: bool = False
    """Call ids of nine letters or digits, as Mistral's templates require."""


PLAIN = Dialect()


class ChatTemplate:
    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        args: Mapping[str, Json] | None = None,
        today: str = DATE,
    ) -> None:
        """`args` are further variables of the template, such as `enable_thinking`."""
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
        settings = read_object(folder / "tokenizer_config.json")
        source = settings.get("chat_template")
        beside = folder / "chat_template.jinja"
        if beside.is_file():
            source = beside.read_text()
        if isinstance(source, list):  # several, by name
            source = {entry["name"]: entry["template"] for entry in source if isinstance(entry, dict)}.get("default")
        if not isinstance(source, str):
            return None
        tokens = {name: token_text(value) for name, value in settings.items() if name.endswith("_token")}
        special_tokens = {name: token for name, token in tokens.items() if token is not None}
        return ChatTemplate(source, special_tokens=special_tokens, args=args, today=today)

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, add_generation_prompt: bool = True
    ) -> str:
        """The conversation as text. Raises ConfigError if the template refuses it."""
        has_calls = any(message.calls or message.role is Role.TOOL for message in messages)
        dialect = self._dialect if has_calls else PLAIN
        return self._render(messages, tools, dialect, add_generation_prompt)

    def _render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], dialect: Dialect, add_generation_prompt: bool
    ) -> str:
        try:
            return self._template.render(
                messages=[template_message(message, dialect) for message in messages],
                tools=[chat_tool(tool) for tool in tools] or None,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            )
        except Exception as raised:  # an untrusted template may fail in any way
            raise ConfigError(f"the chat template refuses the conversation: {raised}") from raised

    @cached_property
    def _dialect(self) -> Dialect:
        """The first dialect in which the template shows a call and its answer."""
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
        """The system message that a ChatML template adds if there is none."""
        try:
            text = self.render([Message(role=Role.USER, content="?")])
        except ConfigError:
            return ""
        before, _, _ = text.partition("<|im_start|>user")
        _, started, system = before.partition("<|im_start|>system\n")
        return system.partition("<|im_end|>")[0] if started else ""


def template_message(message: Message, dialect: Dialect = PLAIN) -> dict[str, Any]:
    """A message as chat templates read it."""
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


def _generation_tag() -> Any:
    """The tag with which some templates mark the model's own text; it does not change the text."""
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
        raise ConfigError(f"the date {text!r} is not a date: write it like {DATE}") from None
