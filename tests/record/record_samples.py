"""Values for the tests of record/: small ones written by hand, and hypothesis strategies for every field."""

from __future__ import annotations

from array import array

from hypothesis import strategies as st

from slipstream.seams import Event, JobAdmitted, RolloutDone, RunEnded, TurnTaken
from slipstream.types import (
    Artifact,
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


def key(sample: int = 0, *, step: int = 0, task_id: str = "task", phase: str = "train") -> JobKey:
    return JobKey(phase=phase, step=step, task_id=task_id, sample=sample)


def job(sample: int = 0, *, step: int = 0) -> Job:
    return Job(key=key(sample, step=step), seed=100 + sample, group_size=4)


def turn(index: int = 0, *, token: int = 7) -> Turn:
    return Turn(
        index=index,
        parent=index - 1 if index else None,
        num_kept=4 * index,
        added=token_ids([1, 2]),
        sampled=Sampled.at_version([token, 8], [-0.25, -1.5], version=3, stop=StopReason.STOP),
        messages=(Message(role=Role.USER, content="go on"), Message(role=Role.ASSISTANT, content="done")),
    )


def ending(reason: EndReason = EndReason.FINISHED) -> Ending:
    return Ending(reason=reason, answer="42")


def rollout(sample: int = 0, *, step: int = 0, attempt: int = 1, turns: tuple[Turn, ...] = ()) -> Rollout:
    return Rollout(
        job=job(sample, step=step),
        attempt=attempt,
        ending=ending(),
        turns=turns,
        verdict=Verdict(reward=1.0, components={"tests": 1.0}),
        spans=(Span(kind=SpanKind.RUN, start_s=1.0, end_s=2.5, counts={"turns": len(turns)}),),
    )


def job_events(sample: int = 0, *, num_turns: int = 2) -> list[Event]:
    """All events of one job, from admission to its last word."""
    turns = tuple(turn(index) for index in range(num_turns))
    return [
        JobAdmitted(job=job(sample)),
        *(TurnTaken(key=key(sample), attempt=1, turn=taken) for taken in turns),
        RunEnded(key=key(sample), attempt=1, ending=ending(), artifact=Artifact(answer="42")),
        RolloutDone(rollout=rollout(sample, turns=turns)),
    ]


# ---------------------------------------------------------------- strategies

texts = st.text(st.characters(exclude_categories=()), max_size=12)
"""Any code points, lone surrogates and NUL among them."""
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
counts = st.integers(0, 2**31 - 1)
seconds = st.floats(0, 2e9)
jsons: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)

calls = st.builds(
    ToolCall,
    id=texts,
    name=texts,
    arguments=st.dictionaries(texts, jsons, max_size=3),
    problem=st.none() | st.sampled_from(CallProblem),
    raw=texts,
)
messages = st.builds(
    Message,
    role=st.sampled_from(Role),
    content=texts,
    thinking=texts,
    calls=st.lists(calls, max_size=2).map(tuple),
    call_id=texts,
    name=texts,
    images=st.lists(st.builds(Image, data=st.binary(max_size=40), media_type=texts), max_size=2).map(tuple),
    hints=st.lists(texts, max_size=2).map(tuple),
    is_error=st.booleans(),
)


@st.composite
def sampleds(draw: st.DrawFn) -> Sampled:
    ids = draw(st.lists(int32s, max_size=40))
    logprob = st.floats(width=32, allow_nan=False)
    logprobs = draw(st.none() | st.lists(logprob, min_size=len(ids), max_size=len(ids)))
    versions = draw(st.lists(st.integers(-1, 2) | int32s, min_size=len(ids), max_size=len(ids)))
    return Sampled(
        ids=token_ids(ids),
        logprobs=None if logprobs is None else array("f", logprobs),
        versions=array("i", versions),
        stop=draw(st.sampled_from(StopReason)),
    )


def turns_at(index: int) -> st.SearchStrategy[Turn]:
    return st.builds(
        Turn,
        index=st.just(index),
        branch=counts,
        parent=st.none() | counts,
        num_kept=counts,
        added=st.lists(int32s, max_size=40).map(token_ids),
        sampled=st.none() | sampleds(),
        messages=st.lists(messages, max_size=3).map(tuple),
        trainable=st.booleans(),
        fork=st.none() | st.sampled_from(ForkReason),
    )


keys = st.builds(JobKey, phase=texts, step=int64s, task_id=texts, sample=int64s)
jobs = st.builds(Job, key=keys, seed=int64s, weight=int64s, group_size=int64s)
endings = st.builds(Ending, reason=st.sampled_from(EndReason), answer=st.none() | texts, detail=texts)
artifacts = st.builds(
    Artifact,
    answer=st.none() | texts,
    files=st.dictionaries(texts, st.binary(max_size=40), max_size=2),
    problems=st.dictionaries(texts, texts, max_size=2),
    patch=st.binary(max_size=40),
)
verdicts = st.builds(
    Verdict,
    reward=st.floats(allow_nan=False, allow_infinity=False),
    components=st.dictionaries(texts, st.floats(allow_nan=False), max_size=2),
    detail=texts,
)
spans = st.builds(
    Span,
    kind=st.sampled_from(SpanKind),
    start_s=seconds,
    end_s=seconds,
    attempt=counts,
    name=texts,
    counts=st.dictionaries(texts, st.integers(), max_size=2),
)
failures = st.builds(Failure, attempt=counts, stage=texts, error=texts, message=texts)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    ended = draw(endings)
    return Rollout(
        job=draw(jobs),
        attempt=draw(st.integers(1, 9)),
        ending=ended,
        turns=tuple(draw(turns_at(index)) for index in draw(st.permutations(range(draw(st.integers(0, 3)))))),
        verdict=draw(verdicts) if ended.reason.trust.graded else None,
        spans=draw(st.lists(spans, max_size=3).map(tuple)),
        failures=draw(st.lists(failures, max_size=2).map(tuple)),
    )
