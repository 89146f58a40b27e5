"""Trust and advantages: what each ending is worth in a batch."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.batch.advantages import ESTIMATORS, dr_grpo, grpo, leave_one_out, reinforce
from slipstream.batch.rows import make_batch
from slipstream.types import (
    Ending,
    EndReason,
    Group,
    Job,
    JobKey,
    Rollout,
    Sampled,
    StopReason,
    Turn,
    Verdict,
    token_ids,
)


def member(sample: int, reward: float | None, reason: EndReason = EndReason.FINISHED, *, task: str = "t") -> Rollout:
    sampled = Sampled.at_version([10, 11], [-0.1, -0.2], version=0, stop=StopReason.STOP)
    return Rollout(
        job=Job(key=JobKey(phase="train", step=0, task_id=task, sample=sample), seed=0),
        attempt=1,
        ending=Ending(reason=reason),
        turns=(Turn(index=0, added=token_ids([1]), sampled=sampled),),
        verdict=None if reward is None else Verdict(reward=reward),
    )


def group(*members: Rollout, task: str = "t") -> Group:
    return Group(phase="train", step=0, task_id=task, rollouts=members)


def test_advantages_of_each_estimator() -> None:
    rewards = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0]]
    assert leave_one_out(rewards) == [[pytest.approx(value) for value in (2 / 3, -2 / 3, -2 / 3, 2 / 3)], [0.0, 0.0]]
    assert grpo(rewards)[0] == [pytest.approx(value, abs=1e-5) for value in (1, -1, -1, 1)]
    assert dr_grpo(rewards) == [[0.5, -0.5, -0.5, 0.5], [0.0, 0.0]]
    assert reinforce(rewards) == [
        [pytest.approx(value) for value in (2 / 3, -1 / 3, -1 / 3, 2 / 3)],
        [pytest.approx(-1 / 3)] * 2,
    ]


def test_the_trust_table_decides_baseline_and_loss() -> None:
    batch = make_batch(
        [
            group(
                member(0, 1.0),
                member(1, 0.0),
                member(2, 0.0, EndReason.TURN_LIMIT),
                member(3, None, EndReason.INFRASTRUCTURE),
                member(4, None, EndReason.CANCELLED),
            )
        ],
        dr_grpo,
    )
    assert [(row.sample.key.sample, row.in_loss) for row in batch.rows] == [(0, True), (1, True), (2, False)]
    assert [row.advantage for row in batch.rows] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert batch.metrics["rollouts_untrusted"] == 1
    assert batch.metrics["rollouts_absent"] == 1
    assert batch.metrics["ended_turn_limit"] == 1
    assert batch.metrics["tokens_in_loss"] == 4


def test_a_group_with_fewer_than_two_to_compare_is_dropped_and_counted() -> None:
    alone = group(member(0, 1.0, task="a"), member(1, None, EndReason.DEADLINE, task="a"), task="a")
    batch = make_batch([alone, group(member(0, 1.0), member(1, 1.0))], leave_one_out)
    assert {row.sample.key.task_id for row in batch.rows} == {"t"}
    assert (batch.metrics["groups_dropped"], batch.metrics["groups_without_signal"]) == (1, 1)


rewards_strategy = st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=2, max_size=6)


@settings(max_examples=100, derandomize=True)
@given(st.lists(rewards_strategy, min_size=1, max_size=4), st.sampled_from(sorted(ESTIMATORS)), st.integers(0, 3))
def test_untrusted_rollouts_change_no_advantage(rewards: list[list[float]], name: str, num_untrusted: int) -> None:
    sound = [
        group(*(member(index, reward, task=str(place)) for index, reward in enumerate(values)), task=str(place))
        for place, values in enumerate(rewards)
    ]
    tainted = [
        group(
            *each.rollouts,
            *(member(100 + extra, None, EndReason.INFRASTRUCTURE, task=each.task_id) for extra in range(num_untrusted)),
            task=each.task_id,
        )
        for each in sound
    ]
    estimator = ESTIMATORS[name]
    assert make_batch(tainted, estimator).rows == make_batch(sound, estimator).rows
