"""A model folder's own chat template, as Hugging Face's libraries would run it.

Slipstream does not render through it: it is what a renderer is compared with, and where a default system message is
found. Templates come from strangers, so they run in Jinja's sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.errors import ConfigError
from slipstream.types import Json, Message, Role, ToolSpec


class ChatTemplate:
    def __init__(self, source: str, *, special_tokens: dict[str, str] | None = None) -> None:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _no_clock
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as raised:
            raise ConfigError(f"the chat template cannot be read: {raised}") from raised
        self._special_tokens = special_tokens or {}

    @staticmethod
    def load(folder: Path) -> ChatTemplate | None:
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
        return ChatTemplate(source, special_tokens={name: token for name, token in tokens.items() if token is not None})

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, add_generation_prompt: bool = True
    ) -> str:
        """The conversation as text. Raises ConfigError if the template refuses it."""
        try:
            return self._template.render(
                messages=[_as_dict(message) for message in messages],
                tools=[_tool_dict(tool) for tool in tools] or None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except Exception as raised:  # a stranger's template may fail in any way
            raise ConfigError(f"the chat template refuses the conversation: {raised}") from raised

    def default_system(self) -> str:
        """The system message that it writes where there is none, for templates in ChatML."""
        try:
            text = self.render([Message(role=Role.USER, content="?")])
        except ConfigError:
            return ""
        before, _, _ = text.partition("<|im_start|>user")
        _, started, system = before.partition("<|im_start|>system\n")
        return system.partition("<|im_end|>")[0] if started else ""


def _as_dict(message: Message) -> dict[str, Any]:
    entry: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if message.thinking:
        entry["reasoning_content"] = message.thinking
    if message.calls:
        entry["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in message.calls
        ]
    if message.role is Role.TOOL:
        entry |= {"tool_call_id": message.call_id, "name": message.name}
    return entry


def _tool_dict(tool: ToolSpec) -> dict[str, Any]:
    about = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": about}


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Jinja's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> None:
    raise ValueError(message)


def _no_clock(form: str) -> str:
    raise ValueError("the template asks for the date, so it cannot be compared with")


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
