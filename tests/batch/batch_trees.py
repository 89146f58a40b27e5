"""Rollouts for the tests of this folder: written by hand, or arbitrary trees of turns."""

from array import array
from collections.abc import Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from slipstream.types import (
    Ending,
    EndReason,
    Failure,
    ForkReason,
    Group,
    Job,
    JobKey,
    Message,
    Rollout,
    Sample,
    Sampled,
    Span,
    StopReason,
    Turn,
    Verdict,
    token_ids,
)

steady = settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""The same examples every time, however busy the machine is."""


def turn(
    index: int,
    added: Sequence[int],
    sampled: Sequence[int],
    *,
    parent: int | None = None,
    kept: int = 0,
    branch: int = 0,
    trainable: bool = True,
    version: int | Sequence[int] = 0,
    fork: ForkReason | None = None,
    stop: StopReason = StopReason.STOP,
    messages: tuple[Message, ...] = (),
    logprobs: bool = True,
) -> Turn:
    """Logprobs are -id/100, so that each is unique."""
    return Turn(
        index=index,
        branch=branch,
        parent=parent,
        num_kept=kept,
        added=token_ids(added),
        sampled=Sampled(
            ids=token_ids(sampled),
            logprobs=array("f", [-token / 100 for token in sampled]) if logprobs else None,
            versions=array("i", [version] * len(sampled) if isinstance(version, int) else version),
            stop=stop,
        ),
        messages=messages,
        trainable=trainable,
        fork=fork,
    )


def rollout(
    *turns: Turn,
    sample: int = 1,
    reason: EndReason = EndReason.FINISHED,
    reward: float = 1.0,
    components: dict[str, float] | None = None,
    task: str = "t",
    spans: tuple[Span, ...] = (),
    failures: tuple[Failure, ...] = (),
) -> Rollout:
    """With the reward as its verdict if its ending is graded."""
    return Rollout(
        job=Job(key=JobKey(phase="train", step=3, task_id=task, sample=sample), seed=0),
        attempt=1,
        ending=Ending(reason=reason),
        turns=turns,
        verdict=Verdict(reward=reward, components=components or {}) if reason.trust.graded else None,
        spans=spans,
        failures=failures,
    )


def group(*members: Rollout, task: str = "t") -> Group:
    return Group(phase="train", step=3, task_id=task, rollouts=members)


def assert_tokens(
    sample: Sample, *, ids: list[int], mask: list[int], logprobs: list[float], versions: list[int]
) -> None:
    assert sample.ids.tolist() == ids
    assert sample.mask.tolist() == mask
    assert sample.logprobs == array("f", logprobs)
    assert sample.versions.tolist() == versions


@st.composite
def turns(draw: st.DrawFn, *, most: int = 8) -> tuple[Turn, ...]:
    """Any tree of turns; every token id occurs once, so that each can be followed."""
    found: list[Turn] = []
    lengths: list[int] = []
    next_id = 0
    for index in range(draw(st.integers(1, most))):
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        whole = 0 if parent is None else lengths[parent]
        kept = draw(st.sampled_from([whole, whole, whole, draw(st.integers(0, whole))]))
        num_added, num_sampled = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        added = range(next_id, next_id + num_added)
        sampled = range(next_id + num_added, next_id + num_added + num_sampled)
        next_id += num_added + num_sampled
        found.append(
            turn(
                index,
                added,
                sampled,
                parent=parent,
                kept=kept,
                branch=index,
                trainable=draw(st.booleans()),
                version=draw(st.lists(st.integers(0, 3), min_size=num_sampled, max_size=num_sampled)),
                fork=draw(st.sampled_from(ForkReason)) if index and kept < whole else None,
                stop=draw(st.sampled_from(StopReason)),
            )
        )
        lengths.append(kept + num_added + num_sampled)
    return tuple(found)


@st.composite
def groups(
    draw: st.DrawFn, *, reasons: Sequence[EndReason] = tuple(EndReason), fewest: int = 0, task: str = "t"
) -> Group:
    """Any group of such rollouts, with any endings and rewards."""
    members = [
        rollout(
            *draw(turns(most=3)),
            sample=sample,
            reason=draw(st.sampled_from(reasons)),
            reward=draw(st.sampled_from([0.0, 0.25, 1.0])),
            task=task,
        )
        for sample in range(draw(st.integers(fewest, 5)))
    ]
    return group(*members, task=task)
