"""Rollouts for the tests of export/: written by hand, one for each thing that a run may hold, and any at all."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from slipstream.record import RunReader, RunStore
from slipstream.record.hardware import HardwareSample
from slipstream.seams import Event, RolloutDone
from slipstream.types import (
    CallProblem,
    Ending,
    EndReason,
    Failure,
    ForkReason,
    Image,
    Job,
    JobKey,
    Json,
    Message,
    Role,
    Rollout,
    Sampled,
    Span,
    SpanKind,
    StopReason,
    ToolCall,
    Turn,
    Verdict,
    token_ids,
)

SYSTEM = Message(role=Role.SYSTEM, content="Be brief.")
ASK = Message(role=Role.USER, content="How many files?")
CALL = Message(
    role=Role.ASSISTANT,
    thinking="Count them.",
    content="Counting.",
    calls=(ToolCall(id="call_0_0", name="bash", arguments={"command": "ls | wc -l"}, raw='{"name": "bash"}'),),
)
ANSWER = Message(role=Role.TOOL, content="7", call_id="call_0_0", name="bash", hints=("be_brief",))
DONE = Message(role=Role.ASSISTANT, content="Seven.")


def key(sample: int = 0, *, task_id: str = "count", step: int = 0, phase: str = "train") -> JobKey:
    return JobKey(phase=phase, step=step, task_id=task_id, sample=sample)


def rollout(
    *turns: Turn,
    reward: float = 1.0,
    reason: EndReason = EndReason.FINISHED,
    sample: int = 0,
    task_id: str = "count",
    step: int = 0,
    phase: str = "train",
) -> Rollout:
    return Rollout(
        job=Job(key=key(sample, task_id=task_id, step=step, phase=phase), seed=7, group_size=4),
        attempt=2,
        ending=Ending(reason=reason, answer="7" if reason.trust.graded else None, detail="so it was"),
        turns=turns,
        verdict=Verdict(reward=reward, components={"tests": reward}, detail="half") if reason.trust.graded else None,
        spans=(Span(kind=SpanKind.MODEL, start_s=1.25, end_s=2.5, name="m", counts={"new": 3}),),
        failures=(Failure(attempt=1, stage="init", error="SandboxError", message="no room"),),
    )


def turn(
    index: int,
    added: list[int],
    sampled: list[int],
    *messages: Message,
    parent: int | None = None,
    kept: int = 0,
    branch: int = 0,
    fork: ForkReason | None = None,
    trainable: bool = True,
    has_logprobs: bool = True,
) -> Turn:
    """Logprobs are -id/100, so that each is unique; the version is the turn's index."""
    logprobs = [-token / 100 for token in sampled] if has_logprobs else None
    return Turn(
        index=index,
        branch=branch,
        parent=parent,
        num_kept=kept,
        added=token_ids(added),
        sampled=Sampled.at_version(sampled, logprobs, version=index, stop=StopReason.STOP),
        messages=messages,
        trainable=trainable,
        fork=fork,
    )


def plain(*, has_logprobs: bool = True) -> tuple[Turn, ...]:
    """A call, its answer, the end."""
    return (
        turn(0, [1, 2], [10, 11], SYSTEM, ASK, CALL, has_logprobs=has_logprobs),
        turn(1, [3], [12], ANSWER, DONE, parent=0, kept=4, has_logprobs=has_logprobs),
    )


SUMMARY = Message(role=Role.USER, content="So far: there are seven files.")
EDITED = (
    *plain(),
    turn(2, [9], [13], SYSTEM, ASK, SUMMARY, DONE, parent=1, kept=1, branch=1, fork=ForkReason.CONTEXT_EDIT),
    turn(3, [5], [14], ASK, DONE, parent=2, kept=3, branch=1),
)
WITH_SUB_AGENT = (
    turn(0, [1, 2], [10, 11], SYSTEM, ASK, CALL),
    turn(1, [7], [20], Message(role=Role.USER, content="List."), DONE, branch=1, fork=ForkReason.SUB_AGENT),
    turn(2, [8], [21], ASK, DONE, parent=1, kept=2, branch=1),
    turn(3, [6], [30], SUMMARY, DONE, branch=2, fork=ForkReason.NESTED, trainable=False),
    turn(4, [3], [12], ANSWER, DONE, parent=0, kept=4),
)
PARALLEL = (
    *plain(),
    turn(2, [4], [15], ANSWER, DONE, parent=0, kept=4, fork=ForkReason.PARALLEL),
)
TEMPLATE = (
    turn(0, [1, 2], [10, 11], SYSTEM, ASK, CALL),
    turn(1, [3], [12], ANSWER, DONE, parent=0, kept=2, fork=ForkReason.TEMPLATE),
)
CHAT = (
    Turn(index=0, messages=(SYSTEM, ASK, CALL), trainable=False),
    Turn(index=1, parent=0, messages=(ANSWER, DONE), trainable=False),
    Turn(index=2, branch=1, parent=1, messages=(SUMMARY, DONE), trainable=False, fork=ForkReason.CONTEXT_EDIT),
    Turn(index=3, branch=2, messages=(SUMMARY, DONE), trainable=False, fork=ForkReason.NESTED),
)
WITH_CHAT_JUDGE = (
    *plain(),
    Turn(index=2, branch=1, messages=(SUMMARY, DONE), trainable=False, fork=ForkReason.NESTED),
)
ONLY_NESTED = (turn(0, [6], [30], SUMMARY, DONE, fork=ForkReason.NESTED, trainable=False),)
ODD = (
    turn(
        0,
        [],
        [10],
        Message(role=Role.TOOL, content="an answer to nothing", call_id="gone"),
        Message(role=Role.USER, content="snow ☃, half a pair \ud83d, no end\u2028of line, \0", name="me"),
        Message(
            role=Role.USER,
            content="look",
            images=(Image(data=b"\x89PNG"), Image(data=b"BM", media_type="image/bmp")),
        ),
        Message(role=Role.ASSISTANT, content="an earlier one"),
        Message(
            role=Role.ASSISTANT,
            calls=(
                ToolCall(id="a", name="", problem=CallProblem.BAD_JSON, raw="{"),
                ToolCall(id="b", name="sum", arguments={"x": float("inf"), "\udcff": ["python:'", None, 1.5]}),
            ),
        ),
    ),
    turn(
        1,
        [2],
        [],
        Message(role=Role.TOOL, call_id="b", images=(Image(data=b"GIF", media_type="image/gif"),)),
        parent=0,
        kept=1,
    ),
)
TREES: dict[str, tuple[Turn, ...]] = {
    "plain": plain(),
    "no logprobs": plain(has_logprobs=False),
    "context edit": EDITED,
    "sub-agent": WITH_SUB_AGENT,
    "parallel": PARALLEL,
    "template": TEMPLATE,
    "chat": CHAT,
    "chat judge": WITH_CHAT_JUDGE,
    "only nested": ONLY_NESTED,
    "odd": ODD,
    "no turn": (),
}


def one_of_each() -> list[Rollout]:
    """A run's worth: all trees, every second of them twice in a group, and one that failed."""
    found = [
        rollout(*turns, reward=float(number % 3), task_id=name, sample=sample)
        for number, (name, turns) in enumerate(TREES.items())
        for sample in range(1 + number % 2)
    ]
    failed = rollout(reason=EndReason.INFRASTRUCTURE, task_id="plain", sample=9)
    return sorted([*found, failed], key=lambda each: each.job.key)


def recorded(
    folder: Path, rollouts: Sequence[Rollout], samples: Sequence[HardwareSample] = (), events: Sequence[Event] = ()
) -> RunReader:
    """A run on disk that holds these."""

    async def write() -> None:
        config: Json = {"settings": {"name": "demo", "model": {"name": "tiny", "script": ""}}}
        async with RunStore.create(folder, config=config, clock_offset_s=0.0) as store:
            for each in rollouts:
                store.append(RolloutDone(rollout=each))
            for event in events:
                store.append(event)
            for sample in samples:
                store.add_sample(sample)
            await store.flush()

    asyncio.run(write())
    return RunReader(folder)


# ---------------------------------------------------------------- anything at all

texts = st.text(st.characters(exclude_categories=()), max_size=8) | st.sampled_from(
    ["python:", "python:nan", "\ud83d\ude00"]
)
jsons: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
calls = st.builds(
    ToolCall,
    id=st.sampled_from(["a", "b"]) | texts,
    name=texts,
    arguments=st.dictionaries(texts, jsons, max_size=2),
    problem=st.none() | st.sampled_from(CallProblem),
    raw=texts,
)
images = st.builds(Image, data=st.binary(max_size=9), media_type=st.sampled_from(["image/png", "image/bmp"]) | texts)
messages = st.builds(
    Message,
    role=st.sampled_from(Role),
    content=texts,
    thinking=texts,
    calls=st.lists(calls, max_size=2).map(tuple),
    call_id=st.sampled_from(["a", "b"]) | texts,
    name=texts,
    images=st.lists(images, max_size=2).map(tuple),
    hints=st.lists(texts, max_size=2).map(tuple),
    is_error=st.booleans(),
)
int32s = st.integers(-(2**31), 2**31 - 1)
endings = st.builds(Ending, reason=st.sampled_from(EndReason), answer=st.none() | texts, detail=texts)
verdicts = st.builds(
    Verdict,
    reward=st.floats(allow_nan=False, allow_infinity=False),
    components=st.dictionaries(texts, st.floats(allow_nan=False), max_size=2),
    detail=texts,
)


@st.composite
def sampleds(draw: st.DrawFn) -> Sampled:
    ids = draw(st.lists(int32s, max_size=4))
    number = len(ids)
    logprobs = draw(st.none() | st.lists(st.floats(width=32, allow_nan=False), min_size=number, max_size=number))
    return Sampled(
        ids=token_ids(ids),
        logprobs=None if logprobs is None else array("f", logprobs),
        versions=array("i", draw(st.lists(int32s, min_size=number, max_size=number))),
        stop=draw(st.sampled_from(StopReason)),
    )


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    """Any tree of turns that a dialogue could leave, with any messages."""
    turns: list[Turn] = []
    lengths: list[int] = []
    for index in range(draw(st.integers(0, 4))):
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        whole = 0 if parent is None else lengths[parent]
        sampled = draw(st.none() | sampleds())
        kept = 0 if sampled is None else draw(st.sampled_from([whole, draw(st.integers(0, whole))]))
        added = token_ids(() if sampled is None else draw(st.lists(int32s, max_size=3)))
        turns.append(
            Turn(
                index=index,
                branch=draw(st.integers(0, 1)),
                parent=parent,
                num_kept=kept,
                added=added,
                sampled=sampled,
                messages=draw(st.lists(messages, max_size=3).map(tuple)),
                trainable=draw(st.booleans()),
                fork=draw(st.none() | st.sampled_from(ForkReason)),
            )
        )
        lengths.append(kept + len(added) + (0 if sampled is None else len(sampled.ids)))
    ended = draw(endings)
    span = Span(
        kind=SpanKind.TOOL, start_s=draw(st.floats(0, 2e9)), end_s=0.5, name=draw(texts), counts={draw(texts): 3}
    )
    return Rollout(
        job=Job(key=JobKey(phase=draw(texts), step=3, task_id=draw(texts), sample=1), seed=2**63 - 1, weight=0),
        attempt=draw(st.integers(1, 9)),
        ending=ended,
        turns=tuple(turns),
        verdict=draw(verdicts) if ended.reason.trust.graded else None,
        spans=(span,),
        failures=(Failure(attempt=1, stage=draw(texts), error="E", message=draw(texts)),),
    )
