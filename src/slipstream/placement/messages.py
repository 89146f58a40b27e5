"""Messages between the run's own process and a helper, in addition to the values of `types` and `seams`.

What is sent for every turn is tuples of plain values: pickled dataclasses take several times as long to read, and the
run's own process reads them for all helpers. A turn is sent with its columns of the run store, which are then written
as they are.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from slipstream.record.codec import encode_turn
from slipstream.seams import PastAttempt, TurnTaken
from slipstream.types import (
    CallProblem,
    ForkReason,
    Image,
    Job,
    JobKey,
    Message,
    Role,
    Sampled,
    Span,
    SpanKind,
    StopReason,
    ToolCall,
    Turn,
)

Number = TypeVar("Number", int, float)
KeyFields: TypeAlias = tuple[str, int, str, int]
Fields: TypeAlias = tuple[Any, ...]
"""Of a value, in the order in which its function here writes and reads them; Any, since they are of many types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpec:
    """What a helper opens an attempt from, before its first stage there."""

    job: Job
    number: int
    past: PastAttempt | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTurn:
    """A turn at the gate, which is asked for together with its model call: one message less."""

    number: int
    """Of this turn, among those of the helper."""
    key: JobKey
    num_context_tokens: int
    nested: bool


def key_fields(key: JobKey) -> KeyFields:
    return key.phase, key.step, key.task_id, key.sample


def key_of(fields: KeyFields) -> JobKey:
    phase, step, task_id, sample = fields
    return JobKey(phase=phase, step=step, task_id=task_id, sample=sample)


# ---------------------------------------------------------------- turns


def turn_fields(event: TurnTaken) -> Fields:
    turn = event.turn
    return (
        *(key_fields(event.key), event.attempt, turn.index, turn.branch, turn.parent, turn.num_kept),
        _bytes(turn.added, "i"),
        None if turn.sampled is None else _sampled_fields(turn.sampled),
        [_message_fields(message) for message in turn.messages],
        turn.trainable,
        None if turn.fork is None else turn.fork.value,
        encode_turn(turn),
    )


def turn_of(fields: Fields) -> TurnTaken:
    key, attempt, index, branch, parent, num_kept, added, sampled, messages, trainable, fork, columns = fields
    turn = Turn(
        index=index,
        branch=branch,
        parent=parent,
        num_kept=num_kept,
        added=_ints(added),
        sampled=None if sampled is None else _sampled(sampled),
        messages=tuple(map(_message, messages)),
        trainable=trainable,
        fork=None if fork is None else ForkReason(fork),
    )
    return TurnTaken(key=key_of(key), attempt=attempt, turn=turn, columns=columns)


def _sampled_fields(sampled: Sampled) -> Fields:
    logprobs = None if sampled.logprobs is None else _bytes(sampled.logprobs, "f")
    ids, versions = _bytes(sampled.ids, "i"), _bytes(sampled.versions, "i")
    return ids, logprobs, versions, sampled.stop.value, sampled.num_cached


def _sampled(fields: Fields) -> Sampled:
    ids, logprobs, versions, stop, num_cached = fields
    return Sampled(
        ids=_ints(ids),
        logprobs=None if logprobs is None else array("f", logprobs),
        versions=_ints(versions),
        stop=StopReason(stop),
        num_cached=num_cached,
    )


def _bytes(values: array[Number], typecode: str) -> bytes:
    return (values if values.typecode == typecode else array(typecode, values)).tobytes()


def _ints(data: bytes) -> array[int]:
    return array("i", data)


def _message_fields(message: Message) -> Fields:
    return (
        *(message.role.value, message.content, message.thinking),
        [_call_fields(call) for call in message.calls],
        *(message.call_id, message.name),
        [(image.data, image.media_type) for image in message.images],
        *(message.hints, message.is_error),
    )


def _message(fields: Fields) -> Message:
    role, content, thinking, calls, call_id, name, images, hints, is_error = fields
    return Message(
        role=Role(role),
        content=content,
        thinking=thinking,
        calls=tuple(map(_call, calls)),
        call_id=call_id,
        name=name,
        images=tuple(Image(data=data, media_type=media_type) for data, media_type in images),
        hints=hints,
        is_error=is_error,
    )


def _call_fields(call: ToolCall) -> Fields:
    return call.id, call.name, call.arguments, None if call.problem is None else call.problem.value, call.raw


def _call(fields: Fields) -> ToolCall:
    call_id, name, arguments, problem, raw = fields
    return ToolCall(
        id=call_id,
        name=name,
        arguments=arguments,
        problem=None if problem is None else CallProblem(problem),
        raw=raw,
    )


# ---------------------------------------------------------------- spans


def span_fields(spans: Iterable[Span]) -> list[Fields]:
    return [(span.kind.value, span.start_s, span.end_s, span.attempt, span.name, dict(span.counts)) for span in spans]


def spans_of(fields: Iterable[Fields]) -> list[Span]:
    return [
        Span(kind=SpanKind(kind), start_s=start_s, end_s=end_s, attempt=attempt, name=name, counts=counts)
        for kind, start_s, end_s, attempt, name, counts in fields
    ]
