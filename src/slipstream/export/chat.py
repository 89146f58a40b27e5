"""Messages in chat form, as OpenAI's endpoints and most trainers know it.

Input: messages. Output: dicts with `role`, `content`, `reasoning_content`, `tool_calls`, `tool_call_id`; and
what that form has no place for under `problem` and `raw` of a call, `images` (as data URLs), `hints` and `is_error` of
a message.
Invariants: `content` is text, the arguments of a call are JSON text, empty fields are left out, and reading a form
back gives an equal message.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from slipstream.types import CallProblem, Image, Json, Message, Role, ToolCall

Fields: TypeAlias = Mapping[str, Any]
"""A JSON object that this room wrote: Any, since its shape is known here and nowhere else."""


def message_fields(message: Message) -> dict[str, Json]:
    fields: dict[str, Json] = {"role": message.role.value, "content": message.content}
    if message.thinking:
        fields["reasoning_content"] = message.thinking
    if message.calls:
        fields["tool_calls"] = [_call_fields(call) for call in message.calls]
    if message.call_id:
        fields["tool_call_id"] = message.call_id
    if message.name:
        fields["name"] = message.name
    if message.images:
        fields["images"] = [image_url(image) for image in message.images]
    if message.hints:
        fields["hints"] = list(message.hints)
    if message.is_error:
        fields["is_error"] = True
    return fields


def message_of(fields: Fields) -> Message:
    """What `message_fields` was given; a field that is None is as good as left out."""
    return Message(
        role=Role(fields["role"]),
        content=fields["content"],
        thinking=fields.get("reasoning_content") or "",
        calls=tuple(_call_of(call) for call in fields.get("tool_calls") or ()),
        call_id=fields.get("tool_call_id") or "",
        name=fields.get("name") or "",
        images=tuple(image_of(url) for url in fields.get("images") or ()),
        hints=tuple(fields.get("hints") or ()),
        is_error=bool(fields.get("is_error")),
    )


def image_url(image: Image) -> str:
    return f"data:{image.media_type};base64,{base64.b64encode(image.data).decode('ascii')}"


def image_of(url: str) -> Image:
    head, found, data = url.rpartition(";base64,")
    if not found or not head.startswith("data:"):
        raise ValueError(f"{url[:80]!r} is no image as a data URL")
    return Image(data=base64.b64decode(data, validate=True), media_type=head.removeprefix("data:"))


def _call_fields(call: ToolCall) -> dict[str, Json]:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    fields: dict[str, Json] = {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
    if call.problem is not None:
        fields["problem"] = call.problem.value
    if call.raw:
        fields["raw"] = call.raw
    return fields


def _call_of(fields: Fields) -> ToolCall:
    problem = fields.get("problem")
    return ToolCall(
        id=fields["id"],
        name=fields["function"]["name"],
        arguments=json.loads(fields["function"]["arguments"]),
        problem=None if problem is None else CallProblem(problem),
        raw=fields.get("raw") or "",
    )
