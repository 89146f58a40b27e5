"""What a helper sends for every turn: it arrives as it was, is written as it would have been, and is soon durable."""

from __future__ import annotations

import asyncio
import socket
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from slipstream.errors import JournalError
from slipstream.link import Link
from slipstream.placement.journal import HelpersJournal, RemoteJournal
from slipstream.placement.messages import span_fields, spans_of, turn_fields, turn_of
from slipstream.record import MemoryJournal, RunStore
from slipstream.record.codec import encode_turn
from slipstream.seams import Event, JobAdmitted, TurnTaken
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
    token_ids,
)

KEY = JobKey(phase="train", step=3, task_id="a\udc80", sample=1)
SAMPLED = Sampled(
    ids=array("i", [1, 70_000]),
    logprobs=array("f", [-0.1, float("-inf")]),
    versions=array("i", [4, 5]),
    stop=StopReason.LENGTH,
    num_cached=7,
)
CALLS = (
    ToolCall(id="c1", name="look", arguments={"at": [1, {"deep": None}], "x": 0.5}),
    ToolCall(id="c2", name="", problem=CallProblem.BAD_JSON, raw="{"),
)
MESSAGES = (
    Message(
        role=Role.USER, content="é\ud800", images=(Image(data=b"\0png"), Image(data=b"j", media_type="image/jpeg"))
    ),
    Message(role=Role.TOOL, content="no", call_id="c1", name="look", hints=("loop", "limit"), is_error=True),
    Message(role=Role.ASSISTANT, thinking="hm", calls=CALLS),
)
TURNS = (
    Turn(index=0, added=token_ids([1, 2, 3]), sampled=SAMPLED, messages=MESSAGES),
    Turn(index=1, branch=2, parent=0, num_kept=4, sampled=None, trainable=False, fork=ForkReason.NESTED),
    Turn(index=2, parent=1, sampled=Sampled.at_version([], None, version=0, stop=StopReason.STOP)),
)


@pytest.mark.parametrize("turn", TURNS)
def test_a_turn_arrives_as_it_was_with_its_columns(turn: Turn) -> None:
    event = turn_of(turn_fields(TurnTaken(key=KEY, attempt=2, turn=turn)))
    assert event == TurnTaken(key=KEY, attempt=2, turn=turn)
    assert event.columns == encode_turn(turn)
    if turn.sampled is not None and event.turn.sampled is not None:
        assert event.turn.sampled.num_cached == turn.sampled.num_cached


def test_arrays_of_another_width_arrive_as_the_types_say() -> None:
    wide = Turn(index=0, added=array("l", [1, 2]), sampled=None)
    assert turn_of(turn_fields(TurnTaken(key=KEY, attempt=1, turn=wide))).turn.added == token_ids([1, 2])


def test_spans_arrive_as_they_were() -> None:
    spans = [
        Span(kind=SpanKind.MODEL, start_s=1.5, end_s=2.5, attempt=2, counts={"new": 3}),
        Span(kind=SpanKind.TOOL, start_s=0.0, end_s=1.0, name="look"),
    ]
    assert spans_of(span_fields(spans)) == spans


def test_the_store_writes_what_was_encoded_elsewhere_and_reads_the_turn(tmp_path: Path) -> None:
    job = Job(key=JobKey(phase="train", step=0, task_id="t", sample=0), seed=1)

    async def main() -> None:
        async with RunStore.create(tmp_path, config={}) as store:
            store.append(JobAdmitted(job=job))
            for turn in TURNS:
                store.append(turn_of(turn_fields(TurnTaken(key=job.key, attempt=1, turn=turn))))
            await store.flush()

    asyncio.run(main())
    found = [event.turn for event in RunStore.read(tmp_path).events() if isinstance(event, TurnTaken)]
    assert found == list(TURNS)


# ---------------------------------------------------------------- durable turns


@asynccontextmanager
async def helpers_of(shared: HelpersJournal, num: int) -> AsyncIterator[list[RemoteJournal]]:
    """The journals of helpers, each at the far end of a link."""
    links, journals = [], []
    for _ in range(num):
        ours, theirs = socket.socketpair()
        near, far = Link(calls={}, tells={}), Link(calls={}, tells={})
        journal = RemoteJournal(far)
        near._tells = {
            "append": lambda event, near=near: shared.append(near, event),
            "append_turn": lambda fields, near=near: shared.append_turn(near, fields),
        }
        far._tells = {"durable": journal.durable, "refuse_events": journal.refuse}
        for link, end in ((near, ours), (far, theirs)):
            end.setblocking(False)
            await link.connect(end)
        links += [near, far]
        journals.append(journal)
    try:
        yield journals
    finally:
        await shared.aclose()
        for link in links:
            link.close()
        await asyncio.gather(*(link.over(grace_s=1.0) for link in links))


def taken(helper: int, index: int) -> TurnTaken:
    key = JobKey(phase="train", step=0, task_id="t", sample=helper)
    return TurnTaken(key=key, attempt=1, turn=Turn(index=index))


def test_a_flush_of_one_is_a_flush_for_all_and_comes_after_all_that_was_sent() -> None:
    async def main() -> None:
        seen: list[Event] = []
        shared = HelpersJournal(seen.append)
        shared.journal = journal = MemoryJournal()
        async with helpers_of(shared, 3) as journals:
            await journals[0].flush()  # nothing was sent, so nothing is waited for
            assert journal.num_flushes == 0
            for index in range(4):
                for helper, remote in enumerate(journals):
                    remote.append(taken(helper, index))
            await asyncio.gather(*(remote.flush() for remote in journals))
            assert journal.num_flushes == 1
            assert list(journal.events()) == seen and len(seen) == 12
            for helper in range(3):
                assert [event for event in seen if isinstance(event, TurnTaken) and event.key.sample == helper] == [
                    taken(helper, i) for i in range(4)
                ]
            journals[1].append(taken(1, 4))
            await journals[1].flush()
            assert journal.num_flushes == 2 and len(seen) == 13

    asyncio.run(main())


def test_turns_become_durable_though_nobody_asks() -> None:
    async def main() -> None:
        shared = HelpersJournal(lambda event: None)
        shared.journal = journal = MemoryJournal()
        async with helpers_of(shared, 1) as (remote,):
            remote.append(taken(0, 0))
            while not list(journal.events()):  # noqa: ASYNC110 - at the other end of the link
                await asyncio.sleep(0)

    asyncio.run(main())


def test_a_journal_that_refuses_an_event_says_so_at_the_next_flush() -> None:
    async def main() -> None:
        shared = HelpersJournal(lambda event: None)
        shared.journal = MemoryJournal()
        async with helpers_of(shared, 1) as (remote,):
            remote.append(taken(0, 0))
            remote.append(taken(0, 0))
            with pytest.raises(JournalError, match="was taken before"):
                await remote.flush()
            with pytest.raises(JournalError, match="was taken before"):
                await remote.flush()

    asyncio.run(main())


def test_what_cannot_be_encoded_is_sent_as_it_is() -> None:
    """The run store then says what is wrong with it, as without helpers."""
    odd = Turn(index=0, messages=(Message(role=Role.TOOL, content="x", hints=({1},)),))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        encode_turn(odd)

    async def main() -> None:
        seen: list[Event] = []
        shared = HelpersJournal(seen.append)
        shared.journal = MemoryJournal()
        async with helpers_of(shared, 1) as (remote,):
            remote.append(TurnTaken(key=KEY, attempt=1, turn=odd))
            await remote.flush()
        (event,) = seen
        assert isinstance(event, TurnTaken) and event.turn == odd and event.columns is None

    asyncio.run(main())
