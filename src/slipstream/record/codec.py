"""Turns, rollouts and ended runs as columns of the run store, and back.

Invariant: decoding gives back what was encoded, with logprobs as float32. A blob is one flag byte, then its bytes,
deflated if that is smaller. Text is UTF-8 that may contain lone surrogates, since models and tools produce them.
"""

from __future__ import annotations

import base64
import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, TypeAlias, TypeVar

from slipstream.bounded import inflate
from slipstream.messages import Fields, from_store, to_store
from slipstream.types import (
    Artifact,
    Ending,
    EndReason,
    Failure,
    ForkReason,
    Job,
    JobKey,
    Rollout,
    Sampled,
    Span,
    SpanKind,
    StopReason,
    Turn,
    Verdict,
)

Number = TypeVar("Number", int, float)

Column: TypeAlias = int | str | bytes | None

_RAW = b"\x00"
_DEFLATED = b"\x01"
_WORTH_DEFLATING_BYTES = 512
_SMALL_BYTES = 4096
_SMALL_WINDOW_BITS = 12
_SMALL_MEMORY_LEVEL = 5
"""Blobs of up to that size take longer to deflate if zlib sets up its usual quarter of a megabyte."""
_PIECE_BYTES = 3 << 16
"""A multiple of three, so that the base64 of pieces is that of the whole."""
MAX_BLOB_BYTES = 256 << 20
"""Limit of an inflated blob: far more than the largest artifact."""
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

# ---------------------------------------------------------------- bytes, text and arrays


def pack(raw: bytes) -> bytes:
    """A flag byte, then `raw` or its deflated form, whichever is smaller. Short data is not deflated."""
    if len(raw) < _WORTH_DEFLATING_BYTES:
        return _RAW + raw
    if len(raw) > _SMALL_BYTES:
        deflated = zlib.compress(raw, 1)
    else:
        packing = zlib.compressobj(1, wbits=_SMALL_WINDOW_BITS, memLevel=_SMALL_MEMORY_LEVEL)
        deflated = packing.compress(raw) + packing.flush()
    return _DEFLATED + deflated if len(deflated) < len(raw) else _RAW + raw


def unpack(blob: bytes) -> bytes:
    flag, body = blob[:1], blob[1:]
    if flag == _DEFLATED:
        return inflate(body, MAX_BLOB_BYTES, "a blob")
    if flag == _RAW:
        return body
    raise ValueError(f"a blob begins with {flag!r}, which is neither {_RAW!r} nor {_DEFLATED!r}")


def pack_json(value: object) -> bytes:
    return pack(_json_bytes(value))


def _json_bytes(value: object) -> bytes:
    return _ENCODER.encode(value).encode("utf-8", "surrogatepass")


def unpack_json(blob: bytes) -> Any:
    """What `pack_json` was given; Any, as for `Fields`."""
    return json.loads(unpack(blob).decode("utf-8", "surrogatepass"))


def text_column(text: str) -> str | bytes:
    """`text` as SQLite can keep it: bytes if lone surrogates make it invalid UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def column_text(column: str | bytes) -> str:
    return column if isinstance(column, str) else column.decode("utf-8", "surrogatepass")


def _pack_ints(values: array[int]) -> bytes:
    if not values:
        return _RAW
    return pack(_little_endian(values if values.typecode == "i" else array("i", values)).tobytes())


def _unpack_ints(blob: bytes) -> array[int]:
    values = array("i")
    values.frombytes(unpack(blob))
    return _little_endian(values)


def _pack_floats(values: array[float]) -> bytes:
    return pack(_little_endian(values if values.typecode == "f" else array("f", values)).tobytes())


def _unpack_floats(blob: bytes) -> array[float]:
    values = array("f")
    values.frombytes(unpack(blob))
    return _little_endian(values)


def _little_endian(values: array[Number]) -> array[Number]:
    if sys.byteorder == "little":
        return values
    swapped = values[:]
    swapped.byteswap()
    return swapped


def _pack_runs(versions: array[int]) -> bytes:
    runs = array("i")
    for version, run in groupby(versions):
        runs.extend((sum(1 for _ in run), version))
    return _pack_ints(runs)


def _unpack_runs(blob: bytes, num_tokens: int) -> array[int]:
    runs = _unpack_ints(blob)
    versions = array("i")
    if sum(runs[::2]) != num_tokens or min(runs[::2], default=0) < 0:
        raise ValueError(f"{num_tokens} sampled tokens have versions for {sum(runs[::2])}")
    for count, version in zip(runs[::2], runs[1::2], strict=True):
        versions.extend(array("i", [version]) * count)
    return versions


# ---------------------------------------------------------------- jobs

KEY_COLUMNS = "phase, step, task_id, sample"
JOB_COLUMNS = f"{KEY_COLUMNS}, seed, weight, group_size"


def encode_key(key: JobKey) -> tuple[Column, ...]:
    """The values of KEY_COLUMNS."""
    return text_column(key.phase), key.step, text_column(key.task_id), key.sample


def decode_key(row: Iterable[Any]) -> JobKey:
    phase, step, task_id, sample = row
    return JobKey(phase=column_text(phase), step=step, task_id=column_text(task_id), sample=sample)


def encode_keys(keys: Iterable[JobKey]) -> str:
    return json.dumps([[key.phase, key.step, key.task_id, key.sample] for key in keys])


def decode_keys(text: str) -> tuple[JobKey, ...]:
    return tuple(
        JobKey(phase=phase, step=step, task_id=task_id, sample=sample)
        for phase, step, task_id, sample in json.loads(text)
    )


def encode_job(job: Job) -> tuple[Column, ...]:
    """The values of JOB_COLUMNS."""
    return *encode_key(job.key), job.seed, job.weight, job.group_size


def decode_job(row: Iterable[Any]) -> Job:
    *key, seed, weight, group_size = row
    return Job(key=decode_key(key), seed=seed, weight=weight, group_size=group_size)


# ---------------------------------------------------------------- turns

TURN_COLUMNS = (
    "turn, branch, parent, num_kept, trainable, fork, added, stop, sampled_ids, logprobs, version_runs, messages"
)


def encode_turn(turn: Turn) -> tuple[Column, ...]:
    """The values of TURN_COLUMNS."""
    sampled = turn.sampled
    return (
        turn.index,
        turn.branch,
        turn.parent,
        turn.num_kept,
        int(turn.trainable),
        None if turn.fork is None else turn.fork.value,
        _pack_ints(turn.added),
        None if sampled is None else sampled.stop.value,
        None if sampled is None else _pack_ints(sampled.ids),
        None if sampled is None or sampled.logprobs is None else _pack_floats(sampled.logprobs),
        None if sampled is None else _pack_runs(sampled.versions),
        pack_json([to_store(message) for message in turn.messages]),
    )


def decode_turn(row: Iterable[Any]) -> Turn:
    """A turn from the values of TURN_COLUMNS; Any, since SQLite's rows are untyped."""
    index, branch, parent, num_kept, trainable, fork, added, stop, sampled_ids, logprobs, version_runs, messages = row
    sampled = None
    if stop is not None:
        ids = _unpack_ints(sampled_ids)
        sampled = Sampled(
            ids=ids,
            logprobs=None if logprobs is None else _unpack_floats(logprobs),
            versions=_unpack_runs(version_runs, len(ids)),
            stop=StopReason(stop),
        )
    return Turn(
        index=index,
        branch=branch,
        parent=parent,
        num_kept=num_kept,
        added=_unpack_ints(added),
        sampled=sampled,
        messages=tuple(from_store(fields) for fields in unpack_json(messages)),
        trainable=bool(trainable),
        fork=None if fork is None else ForkReason(fork),
    )


# ---------------------------------------------------------------- ended runs


def encode_run(ending: Ending, artifact: Artifact) -> bytes:
    """JSON as `pack_json` writes it, piece by piece: many megabytes in one call would block all threads."""
    packing = zlib.compressobj(1)
    return b"".join([_DEFLATED, *map(packing.compress, _run_pieces(ending, artifact)), packing.flush()])


def _run_pieces(ending: Ending, artifact: Artifact) -> Iterator[bytes]:
    fields = {"ending": _ending_fields(ending), "answer": artifact.answer, "problems": dict(artifact.problems)}
    yield _json_bytes(fields)[:-1] + b',"files":{'
    for number, (path, data) in enumerate(artifact.files.items()):
        yield (b"," if number else b"") + _json_bytes(path) + b':"'
        yield from _base64_pieces(data)
        yield b'"'
    yield b'},"patch":"'
    yield from _base64_pieces(artifact.patch)
    yield b'"}'


def _base64_pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _PIECE_BYTES):
        yield base64.b64encode(data[start : start + _PIECE_BYTES])


def decode_run(blob: bytes) -> tuple[Ending, Artifact]:
    fields = unpack_json(blob)
    artifact = Artifact(
        answer=fields["answer"],
        files={path: base64.b64decode(data) for path, data in fields["files"].items()},
        problems=fields["problems"],
        patch=base64.b64decode(fields.get("patch", "")),
    )
    return _ending(fields["ending"]), artifact


def _ending_fields(ending: Ending) -> Fields:
    return {"reason": ending.reason.value, "answer": ending.answer, "detail": ending.detail}


def _ending(fields: Fields) -> Ending:
    return Ending(reason=EndReason(fields["reason"]), answer=fields["answer"], detail=fields["detail"])


# ---------------------------------------------------------------- rollouts


def encode_rollout(rollout: Rollout, *, clock_offset_s: float) -> bytes:
    """A rollout without its job, its attempt and the contents of its turns; spans move to epoch seconds."""
    verdict = rollout.verdict
    return pack_json(
        {
            "ending": _ending_fields(rollout.ending),
            "turns": [turn.index for turn in rollout.turns],
            "verdict": None if verdict is None else [verdict.reward, dict(verdict.components), verdict.detail],
            "spans": [
                [
                    span.kind.value,
                    span.start_s + clock_offset_s,
                    span.end_s + clock_offset_s,
                    span.attempt,
                    span.name,
                    dict(span.counts),
                ]
                for span in rollout.spans
            ],
            "failures": [
                [failure.attempt, failure.stage, failure.error, failure.message] for failure in rollout.failures
            ],
        }
    )


def turn_indexes(blob: bytes) -> list[int]:
    """Which turns of its attempt an encoded rollout has, in order."""
    indexes: list[int] = unpack_json(blob)["turns"]
    return indexes


def decode_rollout(blob: bytes, *, job: Job, attempt: int, turns: tuple[Turn, ...]) -> Rollout:
    fields = unpack_json(blob)
    verdict = None
    if fields["verdict"] is not None:
        reward, components, detail = fields["verdict"]
        verdict = Verdict(reward=reward, components=components, detail=detail)
    return Rollout(
        job=job,
        attempt=attempt,
        ending=_ending(fields["ending"]),
        turns=turns,
        verdict=verdict,
        spans=tuple(
            Span(kind=SpanKind(kind), start_s=start_s, end_s=end_s, attempt=number, name=name, counts=counts)
            for kind, start_s, end_s, number, name, counts in fields["spans"]
        ),
        failures=tuple(
            Failure(attempt=number, stage=stage, error=error, message=message)
            for number, stage, error, message in fields["failures"]
        ),
    )
