"""What was stored is what is read, to the bit."""

from __future__ import annotations

import asyncio
import math
import sys
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import artifacts, endings, job, job_events, jsons, key, rollout, rollouts, turn, turns_at

from slipstream.record import RunStore
from slipstream.record.codec import (
    MAX_BLOB_BYTES,
    _run_pieces,
    decode_run,
    decode_turn,
    encode_run,
    encode_turn,
    pack,
    unpack,
)
from slipstream.seams import Event, JobAdmitted, RolloutDone, RunEnded, TurnTaken
from slipstream.types import (
    Artifact,
    CallProblem,
    Ending,
    EndReason,
    Failure,
    Image,
    Job,
    JobKey,
    Json,
    Message,
    Role,
    Rollout,
    Sampled,
    Span,
    StopReason,
    ToolCall,
    Turn,
    Verdict,
    token_ids,
)


def stored(folder: Path, events: Iterable[Event], *, clock_offset_s: float = 0.0) -> list[Event]:
    async def write() -> None:
        async with RunStore.create(folder, config={}, clock_offset_s=clock_offset_s) as store:
            for event in events:
                store.append(event)

    asyncio.run(write())
    return list(RunStore.read(folder).events())


@given(turns_at(3))
def test_a_turn_returns_exactly(turn: Turn) -> None:
    read = decode_turn(encode_turn(turn))
    assert read == turn
    assert read.added.typecode == "i"
    if turn.sampled is not None and turn.sampled.logprobs is not None:
        assert read.sampled is not None and read.sampled.logprobs is not None
        assert read.sampled.logprobs.typecode == "f"
        assert read.sampled.logprobs.tobytes() == turn.sampled.logprobs.tobytes()


@given(endings, artifacts)
def test_an_ended_run_returns_exactly(ending: Ending, artifact: Artifact) -> None:
    assert decode_run(encode_run(ending, artifact)) == (ending, artifact)


@given(st.binary(max_size=400) | st.integers(0, 2000).map(bytes))
def test_a_blob_is_deflated_only_where_that_is_smaller(raw: bytes) -> None:
    blob = pack(raw)
    assert unpack(blob) == raw
    assert len(blob) <= len(raw) + 1


@settings(max_examples=25, deadline=None)
@given(rollouts(), endings, artifacts)
def test_a_whole_job_returns_exactly_from_the_file(rollout: Rollout, ending: Ending, artifact: Artifact) -> None:
    key, attempt = rollout.job.key, rollout.attempt
    events: list[Event] = [
        JobAdmitted(job=rollout.job),
        *(TurnTaken(key=key, attempt=attempt, turn=turn) for turn in rollout.turns),
        RunEnded(key=key, attempt=attempt, ending=ending, artifact=artifact),
        RolloutDone(rollout=rollout),
    ]
    with TemporaryDirectory() as root:
        folder = Path(root) / "run"
        assert stored(folder, events) == events
        store = RunStore.read(folder)
        assert list(store.rollouts()) == [rollout]
        assert store.done_keys() == {key}
        assert store.turns(key, attempt) == tuple(sorted(rollout.turns, key=lambda turn: turn.index))


@settings(max_examples=25, deadline=None)
@given(jsons)
def test_a_config_returns(config: Json) -> None:
    with TemporaryDirectory() as root:
        store = RunStore.create(Path(root), config=config)
        # Two surrogates that happen to make a pair are one character in JSON's own escapes.
        assert _paired(store.config()) == _paired(config)
        asyncio.run(store.aclose())


def _paired(value: Json) -> Json:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        case list():
            return [_paired(item) for item in value]
        case dict():
            return {str(_paired(name)): _paired(item) for name, item in value.items()}
    return value


def test_logprobs_keep_nan_and_infinity_bit_by_bit() -> None:
    logprobs = array("f", [math.nan, -math.inf, -0.0, 1e-45])
    taken = Turn(
        index=0,
        sampled=Sampled(
            ids=token_ids([1, 2, 3, 4]), logprobs=logprobs, versions=array("i", [1, 1, 2, 1]), stop=StopReason.LENGTH
        ),
    )
    read = decode_turn(encode_turn(taken)).sampled
    assert read is not None and read.logprobs is not None
    assert read.logprobs.tobytes() == logprobs.tobytes()
    assert read.versions == array("i", [1, 1, 2, 1])


def test_token_arrays_are_little_endian_int32() -> None:
    columns = encode_turn(Turn(index=0, added=token_ids([1, -2])))
    assert columns[6] == b"\x00\x01\x00\x00\x00\xfe\xff\xff\xff"


def test_one_version_for_all_tokens_is_one_run() -> None:
    taken = Turn(index=0, sampled=Sampled.at_version(range(1000), None, version=5, stop=StopReason.STOP))
    assert encode_turn(taken)[10] == b"\x00\xe8\x03\x00\x00\x05\x00\x00\x00"


def test_deeply_nested_arguments_return() -> None:
    nested: Json = 1
    for _ in range(sys.getrecursionlimit() // 2):
        nested = [nested]
    call = ToolCall(id="1", name="f", arguments={"x": nested})
    taken = Turn(index=0, messages=(Message(role=Role.ASSISTANT, calls=(call,)),))
    assert encode_turn(decode_turn(encode_turn(taken))) == encode_turn(taken)


def test_surrogate_pairs_in_two_pieces_stay_two_pieces() -> None:
    taken = Turn(index=0, messages=(Message(role=Role.TOOL, content="\ud83d\ude00"),))
    read = decode_turn(encode_turn(taken))
    assert len(read.messages[0].content) == 2
    assert read == taken


def test_spans_are_read_in_epoch_seconds(tmp_path: Path) -> None:
    stored(tmp_path / "run", job_events(), clock_offset_s=1000.0)
    (read,) = RunStore.read(tmp_path / "run").rollouts()
    assert [(span.start_s, span.end_s) for span in read.spans] == [(1001.0, 1002.5)]


def test_turns_that_were_never_taken_are_kept_with_their_rollout(tmp_path: Path) -> None:
    turns = (turn(0), turn(1))
    events: list[Event] = [
        JobAdmitted(job=job()),
        TurnTaken(key=key(), attempt=1, turn=turns[0]),
        RolloutDone(rollout=rollout(turns=turns)),
    ]
    assert stored(tmp_path / "run", events) == events
    assert RunStore.read(tmp_path / "run").turns(key(), 1) == turns


def test_a_rollout_has_its_own_turns_alone(tmp_path: Path) -> None:
    events: list[Event] = [
        JobAdmitted(job=job()),
        TurnTaken(key=key(), attempt=1, turn=turn(0, token=1)),
        TurnTaken(key=key(), attempt=2, turn=turn(0, token=2)),
        TurnTaken(key=key(), attempt=2, turn=turn(1, token=3)),
        RolloutDone(rollout=rollout(attempt=2, turns=(turn(0, token=2),))),
    ]
    assert stored(tmp_path / "run", events) == events
    assert next(RunStore.read(tmp_path / "run").rollouts(with_turns=False)).turns == ()


def test_keys_that_differ_in_lone_surrogates_stay_apart(tmp_path: Path) -> None:
    jobs = [Job(key=key(task_id=task_id, phase="p\udcff"), seed=1) for task_id in ("a\ud800", "a\ud801", "a?", "a\0b")]
    events: list[Event] = [
        *(JobAdmitted(job=admitted) for admitted in jobs),
        *(RolloutDone(rollout=replace(rollout(), job=done)) for done in jobs),
    ]
    assert stored(tmp_path / "run", events) == events
    assert RunStore.read(tmp_path / "run").done_keys() == {done.key for done in jobs}


STORED = {
    Job: "key seed weight group_size",
    JobKey: "phase step task_id sample",
    Turn: "index branch parent num_kept added sampled messages trainable fork",
    Sampled: "ids logprobs versions stop",
    Message: "role content thinking calls call_id name images hints is_error",
    ToolCall: "id name arguments problem raw",
    Image: "data media_type",
    Ending: "reason answer detail",
    Artifact: "answer files problems patch",
    Rollout: "job attempt ending turns verdict spans failures",
    Verdict: "reward components detail",
    Span: "kind start_s end_s attempt name counts",
    Failure: "attempt stage error message",
    JobAdmitted: "job",
    TurnTaken: "key attempt turn",
    RunEnded: "key attempt ending artifact",
    RolloutDone: "rollout",
}


@pytest.mark.parametrize("stored_type", STORED, ids=lambda stored_type: stored_type.__name__)
def test_a_field_added_to_a_stored_type_is_stored_too(stored_type: type) -> None:
    """Fails for a new field: give it to the codec, the schema and the strategies, then name it in STORED.

    A field that is no part of the value, such as what a span keeps, is not compared and not stored."""
    assert [field.name for field in fields(stored_type) if field.compare] == STORED[stored_type].split()


def test_a_resumed_turn_with_nan_logprobs_is_still_the_turn_that_was_taken(tmp_path: Path) -> None:
    def taken() -> Turn:
        return Turn(index=0, sampled=Sampled.at_version([1], [math.nan], version=0, stop=StopReason.STOP))

    stored(tmp_path / "run", [JobAdmitted(job=job()), TurnTaken(key=key(), attempt=1, turn=taken())])

    async def resume() -> None:
        async with RunStore.open(tmp_path / "run") as store:
            store.append(RolloutDone(rollout=rollout(turns=(taken(),))))

    asyncio.run(resume())
    assert RunStore.read(tmp_path / "run").counts().rollouts == 1


def test_a_blob_that_unpacks_to_too_much_is_damage() -> None:
    packing = zlib.compressobj(1)
    pieces = [packing.compress(bytes(1 << 20)) for _ in range((MAX_BLOB_BYTES >> 20) + 1)]
    with pytest.raises(ValueError, match=f"a blob is larger than the {MAX_BLOB_BYTES} bytes that are read"):
        unpack(b"\x01" + b"".join([*pieces, packing.flush()]))


@pytest.mark.parametrize("count", [2**31 - 1, -1, 1])
def test_versions_for_other_tokens_than_were_sampled_are_damage(count: int) -> None:
    """Eight bytes that say "the same version, two billion times"."""
    row = list(encode_turn(turn()))
    row[-2] = pack(array("i", [count, 0]).tobytes())
    with pytest.raises(ValueError, match=f"2 sampled tokens have versions for {count}"):
        decode_turn(row)


def test_a_large_artifact_is_written_in_pieces_and_read_whole() -> None:
    data = bytes(range(256)) * 3_000
    artifact = Artifact(
        answer="a", files={"x": data, 'odd "name"': b"", "y": data[1:]}, problems={"z": "p"}, patch=data
    )
    ending = Ending(reason=EndReason.FINISHED, answer="a")
    assert decode_run(encode_run(ending, artifact)) == (ending, artifact)
    assert max(map(len, _run_pieces(ending, artifact))) < 300_000


def test_messages_are_stored_as_before() -> None:
    call = ToolCall(id="c", name="add", arguments={"a": [1, None]}, problem=CallProblem.BAD_SHAPE, raw="{")
    message = Message(
        role=Role.ASSISTANT,
        content="é",
        thinking="hm",
        calls=(call, ToolCall(id="d", name="stop")),
        call_id="e",
        name="me",
        images=(Image(data=b"\x89PNG", media_type="image/png"),),
        hints=("be_brief",),
        is_error=True,
    )
    *_, column = encode_turn(Turn(index=0, messages=(message, Message(role=Role.USER))))
    assert isinstance(column, bytes)
    assert unpack(column).decode() == (
        '[{"role":"assistant","content":"é","thinking":"hm","call_id":"e","name":"me","calls":[{"id":"c","name":"add",'
        '"arguments":{"a":[1,null]},"problem":"bad_shape","raw":"{"},{"id":"d","name":"stop","arguments":{}}],'
        '"hints":["be_brief"],"images":[["image/png","iVBORw=="]],"is_error":true},{"role":"user"}]'
    )
