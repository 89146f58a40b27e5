"""What a trainer that makes its own baseline gets, with token lists written by hand."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.batch.advantages import leave_one_out
from slipstream.batch.rows import make_batch
from slipstream.bridges.outgoing import RowUse, make_evaluated, make_outgoing
from slipstream.errors import BridgeError
from slipstream.types import (
    Ending,
    EndReason,
    ForkReason,
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

END = 2
FAILED = EndReason.INFRASTRUCTURE


def turn(index: int, added: list[int], ids: list[int], *, kept: int = 0, fork: ForkReason | None = None) -> Turn:
    sampled = Sampled(
        ids=token_ids(ids),
        logprobs=array("f", [-token / 4 for token in ids]),
        versions=array("i", [7] * len(ids)),
        stop=StopReason.STOP,
    )
    parent = index - 1 if kept or fork else None
    return Turn(index=index, parent=parent, num_kept=kept, added=token_ids(added), sampled=sampled, fork=fork)


TWO_TURNS = (turn(0, [10, 11], [12, 13]), turn(1, [20], [21], kept=4))


def rollout(
    sample: int,
    reward: float | None,
    *,
    why: EndReason = EndReason.FINISHED,
    turns: tuple[Turn, ...] = TWO_TURNS,
    task: str = "t",
) -> Rollout:
    return Rollout(
        job=Job(key=JobKey(phase="train", step=3, task_id=task, sample=sample), seed=0, group_size=4),
        attempt=1,
        ending=Ending(reason=why, detail="the engine is gone" if why is FAILED else ""),
        turns=turns,
        verdict=None if reward is None else Verdict(reward=reward),
    )


def test_a_trusted_rollout_goes_out_as_it_is() -> None:
    ((first, second),) = make_outgoing([[rollout(0, 1.0), rollout(1, 0.0)]], end_id=END).groups
    (row,) = first.rows
    assert row.prompt_ids == [10, 11]
    assert row.response_ids == [12, 13, 20, 21]
    assert row.mask == [1, 1, 0, 1]
    assert row.logprobs == [-3.0, -3.25, 0.0, -5.25]
    assert row.versions == [7, 7, -1, 7]
    assert (first.score, second.score) == (1.0, 0.0)
    assert first.use is RowUse.LEARNT


def test_an_untrusted_rollout_has_mask_0_and_the_mean_of_the_trusted() -> None:
    group = [rollout(0, 1.0), rollout(1, None, why=FAILED), rollout(2, 0.0), rollout(3, 0.5)]
    out = make_outgoing([group], end_id=END)
    (members,) = out.groups
    assert [member.score for member in members] == [1.0, 0.5, 0.0, 0.5]
    assert members[1].rows[0].response_ids == [12, 13, 20, 21]
    assert members[1].rows[0].mask == [0, 0, 0, 0]
    assert members[1].use is RowUse.UNTRUSTED
    assert out.metrics["outgoing/untrusted"] == 1
    assert out.metrics["reward/mean"] == 0.5


def test_a_rollout_without_turns_is_one_end_token() -> None:
    group = [rollout(0, 1.0), rollout(1, None, why=FAILED, turns=()), rollout(2, 0.0)]
    (members,) = make_outgoing([group], end_id=END).groups
    (row,) = members[1].rows
    assert (row.prompt_ids, row.response_ids, row.mask, row.logprobs) == ([END], [END], [0], [0.0])


def test_a_rollout_that_hit_its_own_limit_keeps_its_reward_and_has_mask_0() -> None:
    group = [rollout(0, 1.0), rollout(1, 0.25, why=EndReason.TURN_LIMIT), rollout(2, None, why=FAILED)]
    (members,) = make_outgoing([group], end_id=END).groups
    assert [member.score for member in members] == [1.0, 0.25, 0.625]
    assert [member.rows[0].mask for member in members] == [[1, 1, 0, 1], [0] * 4, [0] * 4]
    assert members[1].use is RowUse.LIMIT


def test_a_group_with_fewer_than_two_trusted_is_masked_whole() -> None:
    poor = [rollout(0, 1.0), rollout(1, None, why=FAILED), rollout(2, None, why=EndReason.CANCELLED)]
    rich = [rollout(sample, float(sample), task="u") for sample in range(2)]
    out = make_outgoing([poor, rich], end_id=END)
    assert [member.rows[0].mask for member in out.groups[0]] == [[0] * 4] * 3
    assert [member.use for member in out.groups[0]] == [RowUse.TOO_FEW, RowUse.UNTRUSTED, RowUse.UNTRUSTED]
    assert all(sum(member.rows[0].mask) == 3 for member in out.groups[1])
    assert out.metrics["outgoing/groups_masked"] == 1


def test_a_batch_that_is_masked_whole_is_refused_with_the_reason() -> None:
    group = [rollout(0, 1.0), rollout(1, None, why=FAILED), rollout(2, None, why=FAILED)]
    with pytest.raises(BridgeError, match=r"train step 3 .* 2 of 3 ended by infrastructure \(the engine is gone\)"):
        make_outgoing([group], end_id=END)


def test_a_rollout_that_forked_goes_out_as_several_rows_with_one_score() -> None:
    forked = (turn(0, [10, 11], [12, 13]), turn(1, [30, 31], [32], kept=1, fork=ForkReason.CONTEXT_EDIT))
    group = [rollout(0, 1.0, turns=forked), rollout(1, 0.0)]
    (members,) = make_outgoing([group], end_id=END, estimator=leave_one_out).groups
    assert [(row.prompt_ids, row.response_ids) for row in members[0].rows] == [
        ([10, 11], [12, 13]),
        ([10, 30, 31], [32]),
    ]
    assert (members[0].score, members[1].score) == (1.0, -1.0)


def test_what_does_not_fit_leaves_one_masked_token_and_counts_in_the_baseline() -> None:
    long = (turn(0, [10] * 50, [12]),)
    group = [rollout(0, 1.0, turns=long), rollout(1, 0.0), rollout(2, 0.5)]
    (members,) = make_outgoing([group], end_id=END, max_tokens=8).groups
    assert (members[0].score, members[0].use) == (1.0, RowUse.EMPTY)
    assert members[0].rows[0].response_ids == [END]


def test_evaluation_counts_what_has_no_verdict_and_lets_it_move_no_average() -> None:
    groups = [
        [rollout(0, 1.0), rollout(1, None, why=FAILED)],
        [rollout(0, None, why=FAILED, task="u")],
        [rollout(0, 0.0, task="v")],
    ]
    out = make_evaluated(groups, end_id=END)
    assert [[member.score for member in group] for group in out.groups] == [[1.0, 1.0], [0.5], [0.0]]
    assert out.metrics["outgoing/untrusted"] == 2
    assert out.metrics["reward/mean"] == 0.5
    with pytest.raises(BridgeError, match="no rollout has a verdict"):
        make_evaluated([groups[1]], end_id=END)


ENDINGS = st.sampled_from([EndReason.FINISHED, EndReason.TURN_LIMIT, FAILED, EndReason.CANCELLED])


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(ENDINGS, st.floats(-2, 2)), min_size=2, max_size=6), min_size=1, max_size=4))
def test_every_row_asked_for_goes_out_and_what_is_learnt_is_what_batch_made(
    plan: list[list[tuple[EndReason, float]]],
) -> None:
    groups = [
        [
            rollout(sample, reward if why.trust.graded else None, why=why, task=f"t{number}")
            for sample, (why, reward) in enumerate(group)
        ]
        for number, group in enumerate(plan)
    ]
    named = [Group(phase="train", step=3, task_id=g[0].job.key.task_id, rollouts=tuple(g)) for g in groups]
    batch = make_batch(named, leave_one_out)
    made = {row.sample.key: row for row in batch.rows}
    if not any(row.in_loss for row in batch.rows):
        with pytest.raises(BridgeError):
            make_outgoing(groups, end_id=END, estimator=leave_one_out)
        return
    out = make_outgoing(groups, end_id=END, estimator=leave_one_out)
    assert [len(group) for group in out.groups] == [len(group) for group in plan]
    for member in (member for group in out.groups for member in group):
        row = made.get(member.rollout.job.key)
        assert any(member.rows[0].mask) == (row is not None and row.in_loss)
        assert member.score == (0.0 if row is None else row.advantage)
        if row is not None:
            out_row = member.rows[0]
            assert out_row.prompt_ids + out_row.response_ids == row.sample.ids.tolist()
            assert out_row.logprobs == row.sample.logprobs.tolist()[len(out_row.prompt_ids) :]
