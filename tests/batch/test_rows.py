"""Trust and advantages: what each ending is worth in a batch."""

import pytest
from batch_trees import assert_tokens, group, groups, rollout, steady, turn
from hypothesis import given
from hypothesis import strategies as st

from slipstream.batch.advantages import ESTIMATORS, Estimator, dr_grpo, grpo, leave_one_out, reinforce
from slipstream.batch.rows import make_batch
from slipstream.errors import ConfigError
from slipstream.types import EndReason, ForkReason, Group, Rollout, Row, Trust

IN_BASELINE = tuple(reason for reason in EndReason if reason.trust.in_baseline)
NOT_IN_BASELINE = tuple(reason for reason in EndReason if not reason.trust.in_baseline)


def member(sample: int, reward: float, reason: EndReason = EndReason.FINISHED, *, task: str = "t") -> Rollout:
    return rollout(turn(0, [1], [10, 11]), sample=sample, reason=reason, reward=reward, task=task)


def test_advantages_of_each_estimator() -> None:
    rewards = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0]]
    assert leave_one_out(rewards) == [[pytest.approx(value) for value in (2 / 3, -2 / 3, -2 / 3, 2 / 3)], [0.0, 0.0]]
    assert grpo(rewards)[0] == [pytest.approx(value, abs=1e-5) for value in (1, -1, -1, 1)]
    assert dr_grpo(rewards) == [[0.5, -0.5, -0.5, 0.5], [0.0, 0.0]]
    assert reinforce(rewards) == [
        [pytest.approx(value) for value in (2 / 3, -1 / 3, -1 / 3, 2 / 3)],
        [pytest.approx(-1 / 3)] * 2,
    ]


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS.keys())
@pytest.mark.parametrize("reward", [0.1, -0.7, 1 / 3, 1e30])
def test_equal_rewards_give_advantages_of_exactly_zero(estimator: Estimator, reward: float) -> None:
    for num in (2, 3, 7, 10):
        assert estimator([[reward] * num]) == [[0.0] * num]


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS.keys())
@pytest.mark.parametrize("rewards", [[1e308, 1e308, -1e308], [-1e31, 0.0], [0.0, 1e31]])
def test_a_reward_too_large_to_learn_from_is_refused(estimator: Estimator, rewards: list[float]) -> None:
    with pytest.raises(ConfigError, match=r"a reward of -?1e\+3(08|1) is too large .*: keep it within \+-1e\+30"):
        estimator([rewards])


def test_the_trust_table_decides_baseline_and_loss() -> None:
    batch = make_batch(
        [
            group(
                member(0, 1.0),
                member(1, 0.0),
                member(2, 0.0, EndReason.TURN_LIMIT),
                member(3, 0.0, EndReason.INFRASTRUCTURE),
                member(4, 0.0, EndReason.CANCELLED),
                member(5, 0.0, EndReason.TOO_LATE),
            )
        ],
        dr_grpo,
    )
    assert [(row.sample.key.sample, row.in_loss) for row in batch.rows] == [(0, True), (1, True), (2, False), (5, True)]
    assert [row.advantage for row in batch.rows] == pytest.approx([3 / 4, -1 / 4, -1 / 4, -1 / 4])


def test_a_rollout_that_hit_its_own_limit_is_in_the_baseline_and_outside_the_loss() -> None:
    limited = rollout(
        turn(0, [1], [10], version=2),
        turn(1, [2, 3], [11, 12], parent=0, kept=2, version=2),
        sample=1,
        reason=EndReason.TOKEN_LIMIT,
        reward=0.0,
    )
    finished, own_limit = make_batch([group(member(0, 1.0), limited)], leave_one_out).rows
    assert (finished.advantage, finished.in_loss) == (1.0, True)
    assert (own_limit.advantage, own_limit.in_loss) == (-1.0, False)
    assert_tokens(
        own_limit.sample,
        ids=[1, 10, 2, 3, 11, 12],
        mask=[0, 1, 0, 0, 1, 1],
        logprobs=[0, -0.10, 0, 0, -0.11, -0.12],
        versions=[-1, 2, -1, -1, 2, 2],
    )


def test_an_infrastructure_failure_gives_no_row_and_changes_no_advantage() -> None:
    failed = rollout(turn(0, [1], [10]), sample=2, reason=EndReason.INFRASTRUCTURE)
    rows = make_batch([group(member(0, 1.0), failed, member(1, 0.0))], leave_one_out).rows
    assert [(row.sample.key.sample, row.advantage, row.in_loss) for row in rows] == [(0, 1.0, True), (1, -1.0, True)]
    for row in rows:
        assert_tokens(row.sample, ids=[1, 10, 11], mask=[0, 1, 1], logprobs=[0, -0.10, -0.11], versions=[-1, 0, 0])


def test_all_samples_of_a_rollout_share_its_advantage() -> None:
    forked = rollout(turn(0, [1], [10]), turn(1, [2], [11], parent=0, kept=1), sample=0)
    rows = make_batch([group(forked, member(1, 0.0))], leave_one_out).rows
    assert [(row.sample.key.sample, row.advantage) for row in rows] == [(0, 1.0), (0, 1.0), (1, -1.0)]


def test_a_group_with_fewer_than_two_to_compare_is_dropped_and_counted() -> None:
    alone = group(member(0, 1.0, task="a"), member(1, 0.0, EndReason.DEADLINE, task="a"), task="a")
    batch = make_batch([alone, group(member(0, 1.0), member(1, 0.0))], leave_one_out)
    assert [(row.sample.key.task_id, row.advantage) for row in batch.rows] == [("t", 1.0), ("t", -1.0)]
    assert batch.metrics["groups/dropped"] == 1


@steady
@given(
    groups(reasons=IN_BASELINE, fewest=2, task="0"),
    groups(reasons=IN_BASELINE, fewest=2, task="1"),
    groups(reasons=NOT_IN_BASELINE, fewest=1),
    st.sampled_from(sorted(ESTIMATORS)),
    st.integers(0, 5),
)
def test_the_untrusted_change_no_advantage_and_no_row_of_others(
    one: Group, other: Group, untrusted: Group, name: str, at: int
) -> None:
    sound = make_batch([one, other], ESTIMATORS[name]).rows
    tainted = group(*one.rollouts[:at], *untrusted.rollouts, *one.rollouts[at:], task=one.task_id)
    assert make_batch([tainted, other], ESTIMATORS[name]).rows == sound


@steady
@given(groups(fewest=2), st.sampled_from(sorted(ESTIMATORS)), st.data())
def test_the_order_of_rollouts_in_a_group_does_not_matter(whole: Group, name: str, data: st.DataObject) -> None:
    shuffled = group(*data.draw(st.permutations(whole.rollouts)))
    before = _by_rollout(make_batch([whole], ESTIMATORS[name]).rows)
    after = _by_rollout(make_batch([shuffled], ESTIMATORS[name]).rows)
    assert before.keys() == after.keys()
    for sample, rows in before.items():
        assert [row.sample for row in rows] == [row.sample for row in after[sample]]
        assert [row.advantage for row in rows] == pytest.approx([row.advantage for row in after[sample]])


@steady
@given(groups())
def test_rows_are_of_the_graded_alone_and_in_the_loss_if_trusted(whole: Group) -> None:
    trust = {each.job.key.sample: each.trust for each in whole.rollouts}
    for row in make_batch([whole], dr_grpo).rows:
        assert trust[row.sample.key.sample] in (Trust.TRUSTED, Trust.MASKED)
        assert row.in_loss == (trust[row.sample.key.sample] is Trust.TRUSTED)


def _by_rollout(rows: tuple[Row, ...]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.sample.key.sample, []).append(row)
    return found


def test_every_turn_of_a_rewritten_rollout_is_a_row_with_the_advantage_of_the_rollout() -> None:
    """A memory agent: [1, 2] is the question, which each rewriting keeps; then the memory and a section."""
    reads = rollout(
        turn(0, [1, 2], [10]),
        turn(1, [50, 60], [11, 12], parent=0, kept=2, branch=1, fork=ForkReason.CONTEXT_EDIT),
        turn(2, [51, 61], [13], parent=1, kept=2, branch=2, fork=ForkReason.CONTEXT_EDIT),
        turn(3, [7], [14], parent=2, kept=5, branch=2),
        sample=0,
        reward=1.0,
    )
    batch = make_batch([group(reads, member(1, 0.0), member(2, 0.0))], leave_one_out)
    own = [row for row in batch.rows if row.sample.key.sample == 0]
    assert [row.sample.ids.tolist() for row in own] == [
        [1, 2, 10],
        [1, 2, 50, 60, 11, 12],
        [1, 2, 51, 61, 13, 7, 14],
    ]
    assert [row.sample.mask.tolist() for row in own] == [
        [0, 0, 1],
        [0, 0, 0, 0, 1, 1],
        [0, 0, 0, 0, 1, 0, 1],
    ]
    assert [(row.advantage, row.in_loss) for row in own] == [(1.0, True)] * 3
    others = [row.advantage for row in batch.rows if row.sample.key.sample != 0]
    assert others == [-0.5, -0.5], "the baseline counts rollouts, however many samples each has"
