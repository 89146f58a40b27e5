"""Messages, tool calls, tools and images as JSON, and back.

There are two forms. The store form is what run stores keep: the fields of `types.Message`, empty ones left out. The
chat form is what chat endpoints, chat templates and most trainers know; what it has no field for stands under `problem`
and `raw` of a call, and `images` (data URLs), `hints` and `is_error` of a message. In it `content` is always there and
the arguments of a call are JSON text.

Invariant: reading a form gives back an equal message.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from slipstream.types import CallProblem, Image, Json, Message, Role, ToolCall, ToolSpec

Fields: TypeAlias = dict[str, Any]
"""A JSON object that we wrote ourselves: Any, since its shape is known where it is written and read."""

ReadFields: TypeAlias = Mapping[str, Any]


def to_store(message: Message) -> Fields:
    return _STORE.write(message)


def from_store(fields: ReadFields) -> Message:
    return _STORE.read(fields)


def to_chat(message: Message) -> Fields:
    return _CHAT.write(message)


def from_chat(fields: ReadFields) -> Message:
    """What `to_chat` was given; a field that is None reads like one that is left out."""
    return _CHAT.read(fields)


def chat_call(call_id: str, name: str, arguments: str) -> Fields:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat_tool(tool: ToolSpec) -> Fields:
    about = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": about}


def image_to_url(image: Image) -> str:
    return f"data:{image.media_type};base64,{_to_base64(image.data)}"


def image_from_url(url: str) -> Image:
    """Raises ValueError if it is not a data URL in base64."""
    head, found, data = url.rpartition(";base64,")
    if not found or not head.startswith("data:"):
        raise ValueError(f"{url[:80]!r} is not a base64 data URL")
    return Image(data=base64.b64decode(data, validate=True), media_type=head.removeprefix("data:"))


def read_call(call_id: str, name: str, arguments: Mapping[str, Json], extra: ReadFields) -> ToolCall:
    """A call whose `problem` and `raw` stand in `extra`."""
    problem = extra.get("problem")
    return ToolCall(
        id=call_id,
        name=name,
        arguments=arguments,
        problem=None if problem is None else CallProblem(problem),
        raw=extra.get("raw") or "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    keys: Mapping[str, str]
    """What a field of Message is called."""
    required: frozenset[str]
    """Fields that are written even if they are empty."""
    write_call: Callable[[ToolCall], Fields]
    read_call: Callable[[ReadFields], ToolCall]
    write_image: Callable[[Image], Json]
    read_image: Callable[[Any], Image]

    def write(self, message: Message) -> Fields:
        keys = self.keys
        fields: Fields = {keys["role"]: message.role.value}
        if message.content or "content" in self.required:
            fields[keys["content"]] = message.content
        if message.thinking:
            fields[keys["thinking"]] = message.thinking
        if message.call_id:
            fields[keys["call_id"]] = message.call_id
        if message.name:
            fields[keys["name"]] = message.name
        if message.calls:
            fields[keys["calls"]] = [self.write_call(call) for call in message.calls]
        if message.hints:
            fields[keys["hints"]] = list(message.hints)
        if message.images:
            fields[keys["images"]] = [self.write_image(image) for image in message.images]
        if message.is_error:
            fields[keys["is_error"]] = True
        return fields

    def read(self, fields: ReadFields) -> Message:
        found: Fields = {name: fields.get(key) for name, key in self.keys.items()}
        found |= {name: fields[self.keys[name]] for name in self.required}
        return Message(
            role=Role(found["role"]),
            content=found["content"] or "",
            thinking=found["thinking"] or "",
            calls=tuple(self.read_call(call) for call in found["calls"] or ()),
            call_id=found["call_id"] or "",
            name=found["name"] or "",
            images=tuple(self.read_image(image) for image in found["images"] or ()),
            hints=tuple(found["hints"] or ()),
            is_error=bool(found["is_error"]),
        )


def _store_call(call: ToolCall) -> Fields:
    return {"id": call.id, "name": call.name, "arguments": dict(call.arguments), **_extra(call)}


def _full_chat_call(call: ToolCall) -> Fields:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return {**chat_call(call.id, call.name, arguments), **_extra(call)}


def _read_chat_call(fields: ReadFields) -> ToolCall:
    function = fields["function"]
    return read_call(fields["id"], function["name"], json.loads(function["arguments"]), fields)


def _extra(call: ToolCall) -> Fields:
    extra: Fields = {}
    if call.problem is not None:
        extra["problem"] = call.problem.value
    if call.raw:
        extra["raw"] = call.raw
    return extra


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


_STORE = _Form(
    keys={
        name: name
        for name in ("role", "content", "thinking", "call_id", "name", "calls", "hints", "images", "is_error")
    },
    required=frozenset({"role"}),
    write_call=_store_call,
    read_call=lambda fields: read_call(fields["id"], fields["name"], fields["arguments"], fields),
    write_image=lambda image: [image.media_type, _to_base64(image.data)],
    read_image=lambda pair: Image(media_type=pair[0], data=base64.b64decode(pair[1])),
)
_CHAT = _Form(
    keys={
        "role": "role",
        "content": "content",
        "thinking": "reasoning_content",
        "calls": "tool_calls",
        "call_id": "tool_call_id",
        "name": "name",
        "images": "images",
        "hints": "hints",
        "is_error": "is_error",
    },
    required=frozenset({"role", "content"}),
    write_call=_full_chat_call,
    read_call=_read_chat_call,
    write_image=image_to_url,
    read_image=image_from_url,
)
