"""Samples pinned to token lists written by hand, and the rule that every sampled token is trained on once."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.batch.merge import Merged, merge
from slipstream.errors import ConfigError
from slipstream.types import (
    Ending,
    EndReason,
    Job,
    JobKey,
    Rollout,
    Sample,
    Sampled,
    StopReason,
    Turn,
    Verdict,
    token_ids,
)

JOB = Job(key=JobKey(phase="train", step=3, task_id="t", sample=1), seed=0)


def rollout(*turns: Turn) -> Rollout:
    ending = Ending(reason=EndReason.FINISHED)
    return Rollout(job=JOB, attempt=1, ending=ending, turns=turns, verdict=Verdict(reward=1.0))


def turn(
    index: int,
    added: list[int],
    sampled: list[int],
    *,
    parent: int | None = None,
    kept: int = 0,
    branch: int = 0,
    trainable: bool = True,
    version: int = 0,
) -> Turn:
    """Logprobs are -id/100, so that each can be told from all others."""
    logprobs = [-index_ / 100 for index_ in sampled]
    return Turn(
        index=index,
        branch=branch,
        parent=parent,
        num_kept=kept,
        added=token_ids(added),
        sampled=Sampled.at_version(sampled, logprobs, version=version, stop=StopReason.STOP),
        trainable=trainable,
    )


def shown(sample: Sample) -> list[tuple[int, int]]:
    return list(zip(sample.ids, sample.mask, strict=True))


def test_a_conversation_without_forks_is_one_sample() -> None:
    merged = merge(
        rollout(
            turn(0, [1, 2, 3], [10, 11], version=4),
            turn(1, [4, 5], [12], parent=0, kept=5, version=5),
        )
    )
    (sample,) = merged.samples
    assert shown(sample) == [(1, 0), (2, 0), (3, 0), (10, 1), (11, 1), (4, 0), (5, 0), (12, 1)]
    assert sample.logprobs == array("f", [0, 0, 0, -0.10, -0.11, 0, 0, -0.12])
    assert sample.versions.tolist() == [-1, -1, -1, 4, 4, -1, -1, 5]
    assert (sample.turns, sample.branch, sample.num_truncated, merged.num_truncated) == ((0, 1), 0, 0, 0)


def test_a_context_edit_is_a_second_sample_that_trains_only_what_came_after() -> None:
    merged = merge(
        rollout(
            turn(0, [1, 2], [10]),
            turn(1, [3], [11], parent=0, kept=3),
            turn(2, [9, 8], [12], parent=1, kept=1, branch=1),
            turn(3, [7], [13], parent=2, kept=4, branch=1),
        )
    )
    assert [shown(sample) for sample in merged.samples] == [
        [(1, 0), (2, 0), (10, 1), (3, 0), (11, 1)],
        [(1, 0), (9, 0), (8, 0), (12, 1), (7, 0), (13, 1)],
    ]
    assert [sample.branch for sample in merged.samples] == [0, 1]


def test_a_fork_after_a_sample_keeps_it_as_context_with_mask_0() -> None:
    merged = merge(rollout(turn(0, [1], [10, 11, 12]), turn(1, [5], [13], parent=0, kept=3, branch=1)))
    assert [shown(sample) for sample in merged.samples] == [
        [(1, 0), (10, 1), (11, 1), (12, 1)],
        [(1, 0), (10, 0), (11, 0), (5, 0), (13, 1)],
    ]
    assert merged.samples[1].logprobs == array("f", [0, 0, 0, 0, -0.13])


def test_branches_side_by_side_share_their_stem_as_context() -> None:
    merged = merge(
        rollout(
            turn(0, [1], [10]),
            turn(1, [2], [11], parent=0, kept=2, branch=1),
            turn(2, [3], [12], parent=0, kept=2, branch=2),
        )
    )
    assert [shown(sample) for sample in merged.samples] == [
        [(1, 0), (10, 1), (2, 0), (11, 1)],
        [(1, 0), (10, 0), (3, 0), (12, 1)],
    ]


def test_a_sub_agent_with_a_conversation_of_its_own_is_a_sample_of_its_own() -> None:
    merged = merge(rollout(turn(0, [1], [10]), turn(1, [7, 7], [20], branch=1), turn(2, [2], [11], parent=0, kept=2)))
    assert [shown(sample) for sample in merged.samples] == [
        [(1, 0), (10, 1), (2, 0), (11, 1)],
        [(7, 0), (7, 0), (20, 1)],
    ]


def test_a_nested_call_is_never_trained_on() -> None:
    merged = merge(rollout(turn(0, [1], [10]), turn(1, [7], [20, 21], branch=1, trainable=False)))
    assert [sum(sample.mask) for sample in merged.samples] == [1, 0]
    assert merged.num_truncated == 0


def test_a_sample_is_cut_between_turns_and_says_how_much_is_gone() -> None:
    whole = rollout(
        turn(0, [1, 2], [10]), turn(1, [3], [11, 12], parent=0, kept=3), turn(2, [4], [13], parent=1, kept=6)
    )
    (sample,) = merge(whole, max_tokens=7).samples
    assert shown(sample) == [(1, 0), (2, 0), (10, 1), (3, 0), (11, 1), (12, 1)]
    assert (sample.turns, sample.num_truncated) == ((0, 1), 1)
    assert merge(whole, max_tokens=2) == Merged(samples=(), num_truncated=4)


def test_what_cannot_be_trained_on_is_refused_and_never_made_up() -> None:
    chat = Turn(index=0)
    with pytest.raises(ConfigError, match="turn 0 of train/3/t/1 has no tokens"):
        merge(rollout(chat))
    bare = Sampled.at_version([10], None, version=0, stop=StopReason.STOP)
    with pytest.raises(ConfigError, match="has no logprobs"):
        merge(rollout(Turn(index=0, sampled=bare)))
    with pytest.raises(ConfigError, match="keeps 9 of 2 tokens"):
        merge(rollout(turn(0, [1], [10]), turn(1, [2], [11], parent=0, kept=9)))


@st.composite
def trees(draw: st.DrawFn) -> Rollout:
    """Any tree of turns; every token id occurs once, so that each can be followed."""
    turns: list[Turn] = []
    lengths: list[int] = []
    next_id = 0
    for index in range(draw(st.integers(1, 8))):
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        whole = 0 if parent is None else lengths[parent]
        kept = draw(st.sampled_from([whole, whole, whole, draw(st.integers(0, whole))]))
        num_added, num_sampled = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        added = list(range(next_id, next_id + num_added))
        sampled = list(range(next_id + num_added, next_id + num_added + num_sampled))
        next_id += num_added + num_sampled
        trainable = draw(st.booleans())
        turns.append(turn(index, added, sampled, parent=parent, kept=kept, branch=index, trainable=trainable))
        lengths.append(kept + num_added + num_sampled)
    return rollout(*turns)


@settings(max_examples=300, derandomize=True)
@given(trees(), st.none() | st.integers(0, 20))
def test_every_sampled_token_is_trained_on_exactly_once_or_counted_as_cut(
    tree: Rollout, max_tokens: int | None
) -> None:
    merged = merge(tree, max_tokens=max_tokens)
    trained = [token for sample in merged.samples for token, mask in zip(sample.ids, sample.mask, strict=True) if mask]
    sampled = [
        token for each in tree.turns if each.trainable and each.sampled is not None for token in each.sampled.ids
    ]
    assert len(trained) == len(set(trained))
    assert set(trained) <= set(sampled)
    assert len(sampled) - len(trained) == merged.num_truncated
    if max_tokens is None:
        assert merged.num_truncated == 0
    else:
        assert all(len(sample.ids) <= max_tokens for sample in merged.samples)


@settings(max_examples=300, derandomize=True)
@given(trees())
def test_every_prompt_stands_unchanged_in_the_sample_of_its_turn(tree: Rollout) -> None:
    full: dict[int, list[int]] = {}
    for each in tree.turns:
        assert each.sampled is not None
        before = [] if each.parent is None else full[each.parent][: each.num_kept]
        full[each.index] = [*before, *each.added, *each.sampled.ids]
    for sample in merge(tree).samples:
        for index in sample.turns:
            assert sample.ids.tolist()[: len(full[index])] == full[index]
