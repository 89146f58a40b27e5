"""The drift report: forks by reason, what they carry twice, and that nothing unknown passes for none."""

from collections import Counter
from collections.abc import Iterator

import pytest
from batch_trees import rollout, steady, turn, turns
from hypothesis import given
from hypothesis import strategies as st

from slipstream.batch.drift import Drift, drift, drift_lines
from slipstream.batch.merge import merge
from slipstream.errors import ConfigError
from slipstream.types import EndReason, ForkReason, Rollout, Turn

PLAIN = rollout(turn(0, [1], [10]), turn(1, [2], [11], parent=0, kept=2))
EDITED = rollout(
    turn(0, [1, 2], [10]),
    turn(1, [3], [11], parent=0, kept=3),
    turn(2, [9], [12], parent=1, kept=2, fork=ForkReason.CONTEXT_EDIT),
    turn(3, [5], [13], parent=2, kept=3, fork=ForkReason.TEMPLATE),
)
JUDGED = rollout(
    turn(0, [1], [10]),
    turn(1, [7], [20], trainable=False, fork=ForkReason.NESTED),
    turn(2, [2], [11], parent=0, kept=2),
)
CHAT = rollout(Turn(index=0, trainable=False))
NEVER_BEGAN = rollout(reason=EndReason.INFRASTRUCTURE)


def test_forks_are_counted_by_reason_with_the_tokens_they_carry_twice() -> None:
    assert drift([PLAIN, EDITED]) == Drift(
        num_rollouts=2,
        num_samples=4,
        num_forked=2,
        by_reason={ForkReason.CONTEXT_EDIT: 1, ForkReason.TEMPLATE: 1},
        num_tokens_repeated=2 + 3,
        num_rollouts_forked=1,
        num_without_tokens=0,
    )
    assert drift([PLAIN, EDITED]).share == 0.5


def test_a_nested_conversation_is_no_fork() -> None:
    report = drift([JUDGED])
    assert (report.num_samples, report.num_forked, dict(report.by_reason), report.share) == (1, 0, {}, 0.0)


def test_rollouts_without_tokens_are_counted_apart_and_never_as_no_drift() -> None:
    report = drift([CHAT, NEVER_BEGAN, PLAIN])
    assert (report.num_rollouts, report.num_without_tokens, report.num_samples) == (1, 2, 1)
    assert drift([CHAT]).share is None
    half_chat = rollout(turn(0, [1], [10]), Turn(index=1, trainable=False, fork=ForkReason.NESTED))
    assert drift([half_chat]).num_without_tokens == 1


def test_logprobs_are_not_needed() -> None:
    assert drift([rollout(turn(0, [1], [10], logprobs=False))]).num_samples == 1


def test_a_damaged_tree_is_refused_here_as_in_merging() -> None:
    with pytest.raises(ConfigError, match="keeps 9 of 2 tokens"):
        drift([rollout(turn(0, [1], [10]), turn(1, [2], [11], parent=0, kept=9))])


def test_a_fork_that_does_not_say_why_is_unexplained() -> None:
    report = drift([rollout(turn(0, [1], [10]), turn(1, [2], [11], parent=0, kept=1))])
    assert (report.num_forked, dict(report.by_reason), report.num_unexplained) == (1, {}, 1)
    assert drift_lines(report) == [
        "1 of 2 samples forked: 1 for no stated reason; 1 token carried twice",
        "1 of 1 rollout forked",
    ]


def test_rollouts_are_taken_one_at_a_time() -> None:
    seen: list[int] = []

    def stream() -> Iterator[Rollout]:
        for number in range(3):
            seen.append(number)
            yield PLAIN

    assert drift(stream()).num_rollouts == len(seen) == 3


def test_the_lines_say_how_much_drifted_and_why() -> None:
    report = Drift(
        num_rollouts=250,
        num_samples=256,
        num_forked=3,
        by_reason={ForkReason.CONTEXT_EDIT: 1, ForkReason.TEMPLATE: 2},
        num_tokens_repeated=1204,
        num_rollouts_forked=2,
        num_without_tokens=4,
    )
    assert drift_lines(report) == [
        "3 of 256 samples forked: 2 template, 1 context edit; 1,204 tokens carried twice",
        "2 of 250 rollouts forked",
        "4 rollouts without tokens, of which nothing is known",
    ]
    assert drift_lines(drift([PLAIN])) == ["none of 1 sample forked"]
    assert drift_lines(drift([CHAT])) == ["1 rollout without tokens, of which nothing is known"]
    assert drift_lines(drift([])) == ["no rollouts"]


@steady
@given(st.lists(turns(), max_size=4))
def test_the_samples_that_are_counted_are_those_of_merging(trees: list[tuple[Turn, ...]]) -> None:
    rollouts = [rollout(*tree) for tree in trees]
    samples = [merge(each).samples for each in rollouts]
    forks = [sample for each in samples for sample in each[1:]]
    report = drift(rollouts)
    assert report.num_samples == sum(len(each) for each in samples)
    assert report.num_forked == len(forks)
    assert report.num_rollouts_forked == sum(len(each) > 1 for each in samples)
    assert report.by_reason == Counter(sample.fork for sample in forks if sample.fork is not None)
    assert report.num_tokens_repeated <= sum(sample.mask.count(0) for sample in forks)
