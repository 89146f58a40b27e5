"""Rollouts to rows, pinned by hand; and what is in the loss is what a learner would get."""

from array import array
from itertools import groupby

import pytest
from export_stage import (
    ANSWER,
    ASK,
    CALL,
    CHAT,
    DONE,
    EDITED,
    ONLY_NESTED,
    PARALLEL,
    SUMMARY,
    SYSTEM,
    TEMPLATE,
    TREES,
    WITH_CHAT_JUDGE,
    WITH_SUB_AGENT,
    key,
    one_of_each,
    plain,
    rollout,
    turn,
)  # fmt: skip

from slipstream.batch.advantages import ESTIMATORS
from slipstream.batch.rows import make_batch
from slipstream.errors import ConfigError
from slipstream.export.samples import ExportedSample, advantages_of, flatten
from slipstream.record import StepRecord
from slipstream.types import EndReason, ForkReason, Group, Rollout, Trust, Turn, token_ids


def rows(*turns: Turn, max_tokens: int | None = None) -> tuple[ExportedSample, ...]:
    return flatten(rollout(*turns), run="r", advantage=0.5, max_tokens=max_tokens).samples


def test_a_conversation_without_forks_is_one_row_with_all_that_became_of_it() -> None:
    (row,) = rows(*plain())
    assert row == ExportedSample(
        run="r",
        phase="train",
        step=0,
        task_id="count",
        sample=0,
        attempt=2,
        part=0,
        branch=0,
        fork=None,
        end_reason=EndReason.FINISHED,
        end_detail="so it was",
        trust=Trust.TRUSTED,
        answer="7",
        in_loss=True,
        reward=1.0,
        reward_components={"tests": 1.0},
        reward_detail="half",
        advantage=0.5,
        input_ids=token_ids([1, 2, 10, 11, 3, 12]),
        loss_mask=array("b", [0, 0, 1, 1, 0, 1]),
        logprobs=array("f", [0, 0, -0.10, -0.11, 0, -0.12]),
        versions=array("i", [-1, -1, 0, 0, -1, 1]),
        num_truncated=0,
        turns=(0, 1),
        messages=(SYSTEM, ASK, CALL, ANSWER, DONE),
    )
    assert row.key == key()


def test_a_context_edit_is_a_second_row_whose_messages_do_not_repeat_what_it_replaced() -> None:
    first, second = rows(*EDITED)
    assert (first.part, first.fork, first.messages) == (0, None, (SYSTEM, ASK, CALL, ANSWER, DONE))
    assert (second.part, second.branch, second.fork) == (1, 1, ForkReason.CONTEXT_EDIT)
    assert second.messages == (SYSTEM, ASK, SUMMARY, DONE, ASK, DONE)
    assert second.input_ids == token_ids([1, 9, 13, 5, 14])


def test_a_sub_agent_is_a_row_of_its_own_and_a_nested_call_is_none() -> None:
    main, sub = rows(*WITH_SUB_AGENT)
    assert (main.turns, main.messages) == ((0, 4), (SYSTEM, ASK, CALL, ANSWER, DONE))
    assert (sub.turns, sub.fork) == ((1, 2), ForkReason.SUB_AGENT)
    assert [message.content for message in sub.messages] == ["List.", "Seven.", "How many files?", "Seven."]


@pytest.mark.parametrize("turns", [PARALLEL, TEMPLATE])
def test_a_fork_that_keeps_the_conversation_shows_it_from_its_beginning(turns: tuple[Turn, ...]) -> None:
    assert [row.messages for row in rows(*turns)][-1] == (SYSTEM, ASK, CALL, ANSWER, DONE)


def test_without_logprobs_the_tokens_are_there_and_none_is_in_the_loss() -> None:
    (row,) = rows(*plain(has_logprobs=False))
    assert row.input_ids == token_ids([1, 2, 10, 11, 3, 12])
    assert row.loss_mask == array("b", [0, 0, 1, 1, 0, 1])
    assert (row.logprobs, row.in_loss, row.advantage) == (None, False, 0.5)


def test_only_the_rows_that_hold_a_turn_without_logprobs_lack_them() -> None:
    bare = turn(2, [9], [13], parent=1, kept=1, branch=1, fork=ForkReason.CONTEXT_EDIT, has_logprobs=False)
    first, second = rows(*plain(), bare, EDITED[3])
    assert (first.in_loss, second.in_loss, second.logprobs) == (True, False, None)


def test_a_nested_turn_without_tokens_costs_the_rollout_nothing() -> None:
    assert rows(*WITH_CHAT_JUDGE) == rows(*plain())


def test_a_rollout_that_cannot_be_trained_on_is_one_row_with_the_conversation_it_ended_with() -> None:
    (chat,) = rows(*CHAT)
    assert (chat.turns, chat.branch, chat.messages) == ((2,), 1, (SUMMARY, DONE))
    (nested,) = rows(*ONLY_NESTED)
    assert (nested.turns, nested.messages) == ((0,), (SUMMARY, DONE))
    (bare,) = flatten(rollout(reason=EndReason.INFRASTRUCTURE), run="r", advantage=None).samples
    assert (bare.turns, bare.messages, bare.branch, bare.reward) == ((), (), None, None)
    for row in (chat, nested, bare):
        assert (row.input_ids, row.loss_mask, row.logprobs, row.versions, row.in_loss) == (None,) * 4 + (False,)


def test_what_does_not_fit_is_cut_between_turns_and_counted() -> None:
    flattened = flatten(rollout(*EDITED), run="r", advantage=0.5, max_tokens=4)
    assert [(row.turns, row.num_truncated) for row in flattened.samples] == [((0,), 1), ((2,), 1)]
    assert flattened.samples[0].messages == (SYSTEM, ASK, CALL)
    nothing = flatten(rollout(*EDITED), run="r", advantage=0.5, max_tokens=2)
    assert ([row.input_ids for row in nothing.samples], nothing.num_truncated) == ([None], 5)
    assert flatten(rollout(*EDITED), run="r", advantage=0.5, max_tokens=3).num_truncated == 4


def test_damaged_turns_are_named() -> None:
    with pytest.raises(ConfigError, match="turn 1 of train/0/count/0 keeps 9 tokens of turn 0"):
        rows(turn(0, [1], [10]), turn(1, [2], [11], parent=0, kept=9))
    with pytest.raises(ConfigError, match="turn 1 of train/0/count/0 keeps 0 tokens of turn 5"):
        rows(turn(0, [1], [10]), turn(1, [2], [11], parent=5))


def test_a_group_of_one_and_what_is_not_trusted_have_no_advantage() -> None:
    found = advantages_of(
        [
            rollout(task_id="a", sample=0, reward=1.0),
            rollout(task_id="a", sample=1, reward=0.0, reason=EndReason.TURN_LIMIT),
            rollout(task_id="a", sample=2, reason=EndReason.WAITED),
            rollout(task_id="b", sample=0, reward=1.0),
            rollout(task_id="b", sample=1, reason=EndReason.DEADLINE),
        ],
        ESTIMATORS["leave_one_out"],
    )
    assert list(found.values()) == [1.0, -1.0, None, None, None]


def test_a_mean_over_the_batch_is_one_over_a_step() -> None:
    rewards = {0: (1.0, 0.0), 1: (5.0, 5.0)}
    rollouts = [
        rollout(step=step, sample=sample, reward=reward)
        for step, both in rewards.items()
        for sample, reward in enumerate(both)
    ]
    assert list(advantages_of(rollouts, ESTIMATORS["reinforce"]).values()) == [0.5, -0.5, 0.0, 0.0]


def test_what_is_evaluated_beside_training_has_no_advantage_and_an_evaluation_has() -> None:
    train, held_out, other = (
        [rollout(sample=sample, reward=float(sample), phase=phase) for sample in range(2)]
        for phase in ("train", "held_out", "eval")
    )
    loo = ESTIMATORS["leave_one_out"]
    assert list(advantages_of([*held_out, *train], loo).values()) == [None, None, -1.0, 1.0]
    assert list(advantages_of([*other, *train], loo).values()) == [None, None, -1.0, 1.0]
    assert list(advantages_of(held_out, loo).values()) == [None, None]  # a run stopped before its first step
    assert list(advantages_of(other, loo).values()) == [-1.0, 1.0]


def test_with_batches_on_record_what_they_left_out_counts_for_nothing() -> None:
    rollouts = [rollout(sample=sample, reward=float(sample)) for sample in range(4)]
    keys = tuple(each.job.key for each in rollouts)
    loo = ESTIMATORS["leave_one_out"]
    steps = [StepRecord(step=0, planned=keys, taken=keys[:2])]
    assert list(advantages_of(rollouts, loo, steps=steps).values()) == [-1.0, 1.0, None, None]
    # Two were carried over, and are compared with those that the batch before learnt from.
    steps.append(StepRecord(step=1, planned=(), taken=keys[2:]))
    assert list(advantages_of(rollouts, loo, steps=steps).values()) == [-1.0, 1.0, pytest.approx(2 / 3), 2.0]
    assert list(advantages_of(rollouts, loo, steps=[StepRecord(step=0, planned=keys)]).values()) == [None] * 4


def groups_of(rollouts: list[Rollout]) -> list[Group]:
    return [
        Group(phase="train", step=0, task_id=task_id, rollouts=tuple(members))
        for task_id, members in groupby(rollouts, key=lambda each: each.job.key.task_id)
    ]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("max_tokens", [None, 4])
def test_the_rows_in_the_loss_are_those_that_a_learner_gets(estimator: str, max_tokens: int | None) -> None:
    trainable = {"plain", "context edit", "sub-agent", "parallel", "template"}
    reasons = (EndReason.FINISHED, EndReason.STUCK, EndReason.TURN_LIMIT, EndReason.NO_VERDICT)
    rollouts = [
        rollout(*TREES[name], reward=float(sample), reason=reasons[sample], task_id=name, sample=sample)
        for name in sorted(trainable)
        for sample in range(4)
    ]
    expected = make_batch(groups_of(rollouts), ESTIMATORS[estimator], max_tokens=max_tokens).rows
    found = advantages_of(rollouts, ESTIMATORS[estimator])
    exported = [
        row
        for each in rollouts
        for row in flatten(each, run="r", advantage=found[each.job.key], max_tokens=max_tokens).samples
    ]
    assert [
        (row.key, row.advantage, row.input_ids, row.loss_mask, row.logprobs, row.versions, row.fork)
        for row in exported
        if row.in_loss
    ] == [
        (row.sample.key, row.advantage, row.sample.ids, row.sample.mask, row.sample.logprobs, row.sample.versions,
         row.sample.fork)
        for row in expected
        if row.in_loss
    ]  # fmt: skip
    assert any(row.in_loss for row in exported)
    assert {row.key for row in exported} == {each.job.key for each in rollouts}


def test_no_rollout_of_a_run_is_lost() -> None:
    rollouts = one_of_each()
    found = advantages_of(rollouts, ESTIMATORS["leave_one_out"])
    flat = [flatten(each, run="r", advantage=found[each.job.key]).samples for each in rollouts]
    assert all(flat)
    assert [[row.part for row in each] for each in flat] == [list(range(len(each))) for each in flat]
