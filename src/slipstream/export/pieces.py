"""Turns and messages as pieces of ATIF (steps of a trajectory, results of an observation), and back.

Invariants: a piece for a message of a turn names the turn and the message's place under `extra.slipstream`, and reading
it gives an equal message: if ATIF's own fields cannot hold all of it, the message is there too, in chat form.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.export.portable import float32_list
from slipstream.messages import ReadFields, from_chat, image_from_url, image_to_url, read_call, to_chat
from slipstream.types import (
    ForkReason,
    Image,
    Message,
    Role,
    Sampled,
    StopReason,
    TokenIds,
    ToolCall,
    Turn,
    token_ids,
)

OURS = "slipstream"
"""The key under `extra` for everything that ATIF has no field for."""

_SOURCES: Mapping[Role, str] = {Role.SYSTEM: "system", Role.USER: "user", Role.ASSISTANT: "agent"}
_ROLES = {source: role for role, source in _SOURCES.items()}
_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


def ours_of(piece: ReadFields) -> ReadFields:
    """Our fields of a piece; empty if it is not for a message of a turn."""
    extra: ReadFields = piece.get("extra") or {}
    ours: ReadFields = extra.get(OURS) or {}
    return ours


# ---------------------------------------------------------------- messages


def step_of(message: Message, ours: ReadFields) -> dict[str, Any]:
    """A message as a step, unless it is a tool's."""
    step: dict[str, Any] = {"source": _SOURCES[message.role], "message": _content(message)}
    if message.role is Role.ASSISTANT:
        if message.thinking:
            step["reasoning_content"] = message.thinking
        if message.calls:
            step["tool_calls"] = [_call_fields(call) for call in message.calls]
    return _with_ours(step, message, ours)


def result_of(message: Message, ours: ReadFields, *, answers_call: bool) -> dict[str, Any]:
    """A tool's message as a result of an observation; `answers_call` if its call is in the same step."""
    result: dict[str, Any] = {"content": _content(message)}
    if answers_call:
        result["source_call_id"] = message.call_id
    return _with_ours(result, message, ours)


def message_of_piece(piece: ReadFields) -> Message:
    """The message of a step or a result."""
    ours = ours_of(piece)
    return from_chat(ours["message"]) if "message" in ours else _plain_message(piece, ours)


def _with_ours(piece: dict[str, Any], message: Message, ours: ReadFields) -> dict[str, Any]:
    named: dict[str, Any] = {"name": message.name} if message.name else {}
    if message.hints:
        named["hints"] = list(message.hints)
    if message.is_error:
        named["is_error"] = True
    ours = {**ours, **named}
    if _plain_message(piece, ours) != message:
        ours = {**ours, "message": to_chat(message)}
    return {**piece, "extra": {OURS: ours}} if ours else piece


def _plain_message(piece: ReadFields, ours: ReadFields) -> Message:
    """The message, as far as ATIF's own fields hold it."""
    is_step = "source" in piece
    text, images = _content_of(piece["message" if is_step else "content"])
    return Message(
        role=_ROLES[piece["source"]] if is_step else Role.TOOL,
        content=text,
        thinking=piece.get("reasoning_content", ""),
        calls=tuple(_call_of(call) for call in piece.get("tool_calls", ())),
        call_id=piece.get("source_call_id", ""),
        name=ours.get("name", ""),
        images=images,
        hints=tuple(ours.get("hints", ())),
        is_error=ours.get("is_error", False),
    )


def _content(message: Message) -> Any:
    images = [image for image in message.images if image.media_type in _IMAGE_TYPES]
    if not images:
        return message.content
    parts: list[Any] = [{"type": "text", "text": message.content}] if message.content else []
    for image in images:
        parts.append({"type": "image", "source": {"media_type": image.media_type, "path": image_to_url(image)}})
    return parts


def _content_of(content: Any) -> tuple[str, tuple[Image, ...]]:
    if isinstance(content, str):
        return content, ()
    text = "".join(part["text"] for part in content if part["type"] == "text")
    return text, tuple(image_from_url(part["source"]["path"]) for part in content if part["type"] == "image")


def _call_fields(call: ToolCall) -> dict[str, Any]:
    fields = {"tool_call_id": call.id, "function_name": call.name, "arguments": dict(call.arguments)}
    if call.problem is not None or call.raw:
        fields["extra"] = {OURS: {"problem": None if call.problem is None else call.problem.value, "raw": call.raw}}
    return fields


def _call_of(fields: ReadFields) -> ToolCall:
    return read_call(fields["tool_call_id"], fields["function_name"], fields["arguments"], ours_of(fields))


# ---------------------------------------------------------------- turns


def reply_step_of(turn: Turn, prompt: TokenIds, reply: Message | None) -> dict[str, Any]:
    """The step of a model call: the reply, if the turn has one, with its tokens."""
    ours = {
        "turn": turn.index,
        "place": None if reply is None else len(turn.messages) - 1,
        "branch": turn.branch,
        "parent": turn.parent,
        "num_kept": turn.num_kept,
        "trainable": turn.trainable,
        "fork": None if turn.fork is None else turn.fork.value,
    }
    step = step_of(reply or Message(role=Role.ASSISTANT), ours)
    step["llm_call_count"] = 1
    if turn.sampled is not None or prompt:
        step["metrics"] = _metrics(turn.sampled, prompt)
    return step


def is_reply_step(piece: ReadFields) -> bool:
    return "num_kept" in ours_of(piece)


def turn_of(step: ReadFields, messages: Sequence[Message]) -> Turn:
    """The inverse of `reply_step_of`."""
    ours = ours_of(step)
    metrics = step.get("metrics")
    prompt = token_ids() if metrics is None else token_ids(metrics["prompt_token_ids"])
    return Turn(
        index=ours["turn"],
        branch=ours["branch"],
        parent=ours["parent"],
        num_kept=ours["num_kept"],
        added=prompt[ours["num_kept"] :],
        sampled=None if metrics is None or "completion_token_ids" not in metrics else _sampled(metrics),
        messages=tuple(messages),
        trainable=ours["trainable"],
        fork=None if ours["fork"] is None else ForkReason(ours["fork"]),
    )


def _metrics(sampled: Sampled | None, prompt: TokenIds) -> dict[str, Any]:
    metrics: dict[str, Any] = {"prompt_tokens": len(prompt), "prompt_token_ids": prompt.tolist()}
    if sampled is None:
        return metrics
    extra: dict[str, Any] = {"stop": sampled.stop.value, "policy_versions": sampled.versions.tolist()}
    metrics |= {
        "completion_tokens": len(sampled.ids),
        "completion_token_ids": sampled.ids.tolist(),
        "extra": {OURS: extra},
    }
    if sampled.logprobs is not None:
        is_finite = all(map(math.isfinite, sampled.logprobs))
        (metrics if is_finite else extra)["logprobs"] = float32_list(sampled.logprobs)
    return metrics


def _sampled(metrics: ReadFields) -> Sampled:
    ours = ours_of(metrics)
    logprobs = metrics.get("logprobs", ours.get("logprobs"))
    return Sampled(
        ids=token_ids(metrics["completion_token_ids"]),
        logprobs=None if logprobs is None else array("f", logprobs),
        versions=array("i", ours["policy_versions"]),
        stop=StopReason(ours["stop"]),
    )
