"""The JSON of OpenAI-compatible endpoints: messages, tool calls, tools and completions to JSON and back.

Invariants: a body with a missing or wrong field is a BadBody that names the field; a malformed tool call of a model is
not an error but a ToolCall with a problem; what is written is JSON that a strict server accepts, whatever the model
wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeGuard
from urllib.parse import quote, unquote

from slipstream.messages import chat_call, image_from_url, image_to_url, to_chat
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
"""vLLM's header for keeping the requests of one rollout on one engine; routers can be configured to follow it."""

FLOAT32_MAX = 3.4028234663852886e38
"""Logprobs are kept in float32, where anything larger is infinite."""

CHAT_STOPS: Mapping[str, StopReason] = {
    "stop": StopReason.STOP,
    "tool_calls": StopReason.STOP,
    "function_call": StopReason.STOP,
    "length": StopReason.LENGTH,
}


def session_to_headers(session: str) -> dict[str, str]:
    """Percent-encoded, since a session is named after a task, and a task id may contain anything."""
    return {SESSION_HEADER: quote(session, safe="/:=@+,;")} if session else {}


def session_from_headers(headers: Mapping[str, str]) -> str:
    return unquote(headers.get(SESSION_HEADER, ""))


class BadBody(ValueError):
    """A body is malformed. The message continues "a body that ..."."""


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
    """The string, or "" for anything else."""
    return value if isinstance(value, str) else ""


def count_of(value: Json) -> int:
    """The count, or 0 for anything else."""
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
    is_tool, is_assistant = message.role is Role.TOOL, message.role is Role.ASSISTANT
    wire: dict[str, Json] = to_chat(
        Message(
            role=message.role,
            content=message.content,
            thinking=message.thinking if thinking and is_assistant else "",
            name=message.name if is_tool else "",
        )
    )
    if is_tool:
        wire["tool_call_id"] = message.call_id
    if is_assistant and message.calls:
        wire |= {"tool_calls": [_call_to_wire(call) for call in message.calls], "content": message.content or None}
    elif message.images:
        wire["content"] = _content_parts(message)
    return wire


def message_from_wire(wire: Json) -> Message:
    """One message of a chat request or reply."""
    role = text_of(dig(wire, "role"))
    if role not in set(Role):
        raise BadBody(f"has the role {role!r}, not one of {', '.join(Role)}")
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


def _content_parts(message: Message) -> Json:
    parts: list[Json] = [{"type": "text", "text": message.content}] if message.content else []
    return parts + [{"type": "image_url", "image_url": {"url": image_to_url(image)}} for image in message.images]


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
    try:
        return image_from_url(text_of(url))
    except ValueError as raised:
        raise BadBody(f"has an image that cannot be read: {raised}") from None


# ---------------------------------------------------------------- tool calls and tools


def _call_to_wire(call: ToolCall) -> Json:
    # Servers parse the arguments of past calls and refuse the whole conversation if one is malformed or has no
    # name. The model should see what it wrote, so it is sent back as the value of an argument.
    arguments: Mapping[str, Json] = call.arguments if call.problem is None else {"malformed": call.raw}
    return chat_call(call.id, call.name or "unnamed", json.dumps(dict(arguments)))


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
        arguments = {}  # how several servers write a call without arguments
    else:
        try:
            arguments = json.loads(written) if isinstance(written, str) else written
            json.dumps(arguments, allow_nan=False)  # Python reads NaN, Infinity and 1e999, which JSON does not have
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
    """Arguments that a server sent as an object, as the text that the model may have written."""
    try:
        return json.dumps(arguments)
    except RecursionError:
        return ""


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
        raise BadBody(f"has the finish_reason {finish or None!r}, not one of {', '.join(CHAT_STOPS)}")
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
    """The body of a completion, with `token_ids`, `token_logprobs` and `prompt_logprobs` in vLLM's fields."""
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
    """The logprobs of the sampled tokens. All are finite, in float32 too."""
    return [_logprob(value, "token logprobs") for value in dig_list(choice, "logprobs", "token_logprobs")]


def scores_to_wire(scores: Sequence[TokenScore | None], ids: Sequence[int]) -> list[Json]:
    """vLLM's `prompt_logprobs`: for each token an object from ids to logprobs, which includes the token's own."""
    return [_score_to_wire(score, index) for score, index in zip(scores, ids, strict=True)]


def _score_to_wire(score: TokenScore | None, index: int) -> Json:
    if score is None:
        return None
    known = {index: score.logprob, **score.top}
    return {str(key): {"logprob": logprob} for key, logprob in known.items()}


def scores_from_wire(choice: Json, ids: Sequence[int], *, num_top: int) -> list[TokenScore | None]:
    """The scores of `ids`, which were the prompt; None for the first. Scores of other tokens are refused."""
    if dig_object(choice).get("prompt_logprobs") is None:
        raise BadBody("lacks prompt_logprobs, which were requested")
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
    """Prompt tokens that were in the server's cache, if it reports them."""
    found = body
    for name in ("usage", "prompt_tokens_details", "cached_tokens"):
        found = found.get(name) if isinstance(found, dict) else None
    return found if is_int(found) and found >= 0 else None
