"""The JSON of OpenAI-compatible endpoints, as values: messages, tool calls, tools, completions. Both directions.

Input: JSON as it came over the wire, or values of ours. Output: the other.
Invariants: a body that lacks something, or holds something else than it should, is a BadBody that names the place; a
tool call that a model got wrong is no such error, but a ToolCall with its problem; what is written is JSON that a
strict server accepts, whatever the model wrote.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import TypeGuard
from urllib.parse import quote, unquote

from slipstream.model.base import ChatReply, TokenScore
from slipstream.types import (
    CallProblem,
    Image,
    Json,
    Message,
    Role,
    Sampled,
    StopReason,
    ToolCall,
    ToolSpec,
)

SESSION_HEADER = "X-Session-ID"
"""vLLM's name for what keeps the requests of one rollout on one engine; routers can be told to follow it."""

FLOAT32_MAX = 3.4028234663852886e38
"""Logprobs are kept in float32, where anything beyond is infinite."""

CHAT_STOPS: Mapping[str, StopReason] = {
    "stop": StopReason.STOP,
    "tool_calls": StopReason.STOP,
    "function_call": StopReason.STOP,
    "length": StopReason.LENGTH,
}


def session_to_headers(session: str) -> dict[str, str]:
    """Percent-encoded, since a session is named after a task, and a task may be called anything."""
    return {SESSION_HEADER: quote(session, safe="/:=@+,;")} if session else {}


def session_from_headers(headers: Mapping[str, str]) -> str:
    return unquote(headers.get(SESSION_HEADER, ""))


class BadBody(ValueError):
    """A body is not what it should be. The message goes on after "a body that"."""


# ---------------------------------------------------------------- looking into a body


def dig(body: Json, *path: str | int) -> Json:
    """The value at `path`: `dig(body, "choices", 0, "text")`."""
    here = body
    for depth, step in enumerate(path):
        try:
            here = _step(here, step)
        except LookupError:
            raise BadBody(f"lacks {_spelled(path[: depth + 1])}") from None
    return here


def _step(here: Json, step: str | int) -> Json:
    if isinstance(here, dict) and isinstance(step, str):
        return here[step]
    if isinstance(here, list) and isinstance(step, int):
        return here[step]
    raise LookupError(step)


def dig_object(body: Json, *path: str | int) -> dict[str, Json]:
    found = dig(body, *path)
    if not isinstance(found, dict):
        raise BadBody(f"has {_shown(found)} where {_spelled(path)} should be an object")
    return found


def dig_list(body: Json, *path: str | int) -> list[Json]:
    found = dig(body, *path)
    if not isinstance(found, list):
        raise BadBody(f"has {_shown(found)} where {_spelled(path)} should be a list")
    return found


def dig_ids(body: Json, *path: str | int) -> list[int]:
    found = dig_list(body, *path)
    for item in found:
        if not is_int(item) or not 0 <= item < 2**31:
            raise BadBody(f"has {_shown(item)} among the token ids of {_spelled(path)}")
    return [item for item in found if is_int(item)]


def text_of(value: Json) -> str:
    """A string, or nothing for anything else."""
    return value if isinstance(value, str) else ""


def count_of(value: Json) -> int:
    """A count, or zero where none was given."""
    return value if is_int(value) and value > 0 else 0


def is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _spelled(path: Sequence[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".") or "the body"


def _shown(value: Json) -> str:
    return json.dumps(value)[:80]


# ---------------------------------------------------------------- messages


def message_to_wire(message: Message, *, thinking: bool = False) -> Json:
    """As `messages` of a chat request holds it; with `thinking`, an assistant's thinking goes back too."""
    wire: dict[str, Json] = {"role": message.role.value, "content": _content_to_wire(message)}
    if message.role is Role.ASSISTANT:
        if message.calls:
            wire["tool_calls"] = [_call_to_wire(call) for call in message.calls]
            wire["content"] = message.content or None
        if thinking and message.thinking:
            wire["reasoning_content"] = message.thinking
    if message.role is Role.TOOL:
        wire["tool_call_id"] = message.call_id
        if message.name:
            wire["name"] = message.name
    return wire


def message_from_wire(wire: Json) -> Message:
    """One message of a chat request or reply."""
    role = text_of(dig(wire, "role"))
    if role not in set(Role):
        raise BadBody(f"has the role {role!r}, which is none of {', '.join(Role)}")
    fields = dig_object(wire)
    text, images = _content_from_wire(fields.get("content"))
    return Message(
        role=Role(role),
        content=text,
        thinking=text_of(fields.get("reasoning_content")) or text_of(fields.get("reasoning")),
        calls=_calls_from_wire(fields.get("tool_calls")),
        call_id=text_of(fields.get("tool_call_id")),
        name=text_of(fields.get("name")),
        images=images,
    )


def _content_to_wire(message: Message) -> Json:
    if not message.images:
        return message.content
    parts: list[Json] = [{"type": "text", "text": message.content}] if message.content else []
    for image in message.images:
        data = base64.b64encode(image.data).decode("ascii")
        parts.append({"type": "image_url", "image_url": {"url": f"data:{image.media_type};base64,{data}"}})
    return parts


def _content_from_wire(content: Json) -> tuple[str, tuple[Image, ...]]:
    if not isinstance(content, list):
        return text_of(content), ()
    texts = [text_of(part.get("text")) for part in content if isinstance(part, dict)]
    images = [
        _image_from_wire(dig(part, "image_url", "url"))
        for part in content
        if isinstance(part, dict) and part.get("type") == "image_url"
    ]
    return "".join(texts), tuple(images)


def _image_from_wire(url: Json) -> Image:
    head, comma, data = text_of(url).partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise BadBody("has an image that is no base64 data URL")
    try:
        return Image(data=base64.b64decode(data, validate=True), media_type=head[len("data:") : -len(";base64")])
    except binascii.Error:
        raise BadBody("has an image whose data is no base64") from None


# ---------------------------------------------------------------- tool calls and tools


def _call_to_wire(call: ToolCall) -> Json:
    # Servers parse the arguments of past calls and refuse the whole conversation over one that is malformed or has
    # no name. The model is to see what it wrote, so it goes back as the value of one argument.
    arguments: Mapping[str, Json] = call.arguments if call.problem is None else {"malformed": call.raw}
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name or "unnamed", "arguments": json.dumps(dict(arguments))},
    }


def _calls_from_wire(calls: Json) -> tuple[ToolCall, ...]:
    if not isinstance(calls, list):
        return ()
    return tuple(_call_from_wire(call, number) for number, call in enumerate(calls))


def _call_from_wire(call: Json, number: int) -> ToolCall:
    outer = call if isinstance(call, dict) else {}
    inner = outer.get("function")
    function = inner if isinstance(inner, dict) else {}
    call_id = text_of(outer.get("id")) or f"call_{number}"
    name = text_of(function.get("name"))
    written = function.get("arguments")
    arguments: Json = written
    problem: CallProblem | None = None
    if written is None or written == "":
        arguments = {}  # how several servers spell a call without arguments
    else:
        try:
            arguments = json.loads(written) if isinstance(written, str) else written
            json.dumps(arguments, allow_nan=False)  # Python reads NaN, Infinity and 1e999, which JSON cannot say
        except (ValueError, RecursionError):
            problem = CallProblem.BAD_JSON
    if problem is None and not isinstance(arguments, dict):
        problem = CallProblem.BAD_SHAPE
    raw = written if isinstance(written, str) else _written_again(written)
    if not name:
        problem = CallProblem.NO_NAME
    if problem is not None or not isinstance(arguments, dict):
        return ToolCall(id=call_id, name=name, problem=problem, raw=raw)
    return ToolCall(id=call_id, name=name, arguments=arguments, raw=raw)


def _written_again(arguments: Json) -> str:
    """Of arguments that a server sent as an object, not as text: what the model may have written."""
    try:
        return json.dumps(arguments)
    except RecursionError:
        return ""


def tool_to_wire(tool: ToolSpec) -> Json:
    function: dict[str, Json] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}


def tool_from_wire(wire: Json) -> ToolSpec:
    function = dig_object(wire, "function")
    parameters = function.get("parameters")
    return ToolSpec(
        name=text_of(dig(function, "name")),
        description=text_of(function.get("description")),
        parameters=parameters if isinstance(parameters, dict) else {},
    )


# ---------------------------------------------------------------- replies


def reply_to_wire(reply: ChatReply, *, model: str) -> dict[str, Json]:
    """The body of a chat completion."""
    finish = "tool_calls" if reply.message.calls and reply.stop is StopReason.STOP else reply.stop.value
    return {
        "object": "chat.completion",
        "model": model,
        "choices": [{"index": 0, "message": message_to_wire(reply.message, thinking=True), "finish_reason": finish}],
        "usage": usage_to_wire(reply.num_prompt_tokens, reply.num_sampled_tokens, reply.num_cached),
    }


def reply_from_wire(body: Json) -> ChatReply:
    choice = dig_object(body, "choices", 0)
    finish = text_of(choice.get("finish_reason"))
    if finish not in CHAT_STOPS:
        raise BadBody(f"ended by the finish_reason {finish or None!r}, which is no end of an answer")
    usage = body.get("usage") if isinstance(body, dict) else None
    counts = usage if isinstance(usage, dict) else {}
    message = message_from_wire({"role": Role.ASSISTANT.value, **dig_object(choice, "message")})
    return ChatReply(
        message=message,
        stop=CHAT_STOPS[finish],
        num_prompt_tokens=count_of(counts.get("prompt_tokens")),
        num_sampled_tokens=count_of(counts.get("completion_tokens")),
        num_cached=cached_from_wire(body),
    )


def sampled_to_wire(
    sampled: Sampled,
    prompt_ids: Sequence[int],
    *,
    model: str,
    text: str,
    with_ids: bool,
    with_logprobs: bool,
    scores: Sequence[TokenScore | None] | None = None,
) -> dict[str, Json]:
    """The body of a completion, with `token_ids`, `token_logprobs` and `prompt_logprobs` where vLLM has them."""
    choice: dict[str, Json] = {"index": 0, "text": text, "finish_reason": sampled.stop.value, "logprobs": None}
    if with_ids:
        choice["token_ids"] = list(sampled.ids)
        choice["prompt_token_ids"] = list(prompt_ids)
    if with_logprobs and sampled.logprobs is not None:
        choice["logprobs"] = {"token_logprobs": list(sampled.logprobs)}
    if scores is not None:
        choice["prompt_logprobs"] = scores_to_wire(scores, prompt_ids)
    return {
        "object": "text_completion",
        "model": model,
        "choices": [choice],
        "usage": usage_to_wire(len(prompt_ids), len(sampled.ids), sampled.num_cached),
    }


def logprobs_from_wire(choice: Json) -> list[float]:
    """The logprobs of the sampled tokens, all of them finite numbers, in float32 too."""
    return [_logprob(value, "token logprobs") for value in dig_list(choice, "logprobs", "token_logprobs")]


def scores_to_wire(scores: Sequence[TokenScore | None], ids: Sequence[int]) -> list[Json]:
    """As vLLM's `prompt_logprobs`: per token an object from ids to logprobs, the token's own among them."""
    return [_score_to_wire(score, index) for score, index in zip(scores, ids, strict=True)]


def _score_to_wire(score: TokenScore | None, index: int) -> Json:
    if score is None:
        return None
    known = {index: score.logprob, **score.top}
    return {str(key): {"logprob": logprob} for key, logprob in known.items()}


def scores_from_wire(choice: Json, ids: Sequence[int], *, num_top: int) -> list[TokenScore | None]:
    """The scores of `ids`, which were the prompt. The first has none; a score of any other token is no score."""
    if dig_object(choice).get("prompt_logprobs") is None:
        raise BadBody("lacks prompt_logprobs, which were asked for")
    places = dig_list(choice, "prompt_logprobs")
    if len(places) != len(ids):
        raise BadBody(f"has prompt_logprobs of {len(places)} tokens where {len(ids)} were sent")
    return [None, *(_score(place, index, num_top) for place, index in zip(places[1:], ids[1:], strict=True))]


def _score(place: Json, index: int, num_top: int) -> TokenScore:
    if not isinstance(place, dict) or str(index) not in place:
        raise BadBody(f"has {_shown(place)} among its prompt_logprobs where the token {index} was sent")
    known = {int(key): _logprob(dig(place, key, "logprob"), "prompt_logprobs") for key in place if key.isdecimal()}
    likeliest = sorted(known, key=known.__getitem__, reverse=True)[:num_top]
    return TokenScore(logprob=known[index], top={key: known[key] for key in likeliest})


def _logprob(value: Json, among: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= FLOAT32_MAX:
        raise BadBody(f"has {_shown(value)} among its {among}")
    return float(value)


def usage_to_wire(num_prompt_tokens: int, num_sampled_tokens: int, num_cached: int | None = None) -> Json:
    usage: dict[str, Json] = {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_sampled_tokens,
        "total_tokens": num_prompt_tokens + num_sampled_tokens,
    }
    if num_cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": num_cached}
    return usage


def cached_from_wire(body: Json) -> int | None:
    """Tokens of the prompt that the server had in its cache, where it says so."""
    found = body
    for name in ("usage", "prompt_tokens_details", "cached_tokens"):
        found = found.get(name) if isinstance(found, dict) else None
    return found if is_int(found) and found >= 0 else None
