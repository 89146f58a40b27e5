"""Our merge and advantages against tinker-cookbook's own conversion, given the same model calls.

Where a rollout never goes back to an earlier branch the two agree datum by datum, float by float. Where branches
interleave ours continues the right sample and theirs begins a new datum each time; what is trained on, in which
context, is the same. Truncation and trust are ours alone; sequences and groups that teach nothing are left out by ours
and kept by theirs.
"""

from collections import Counter
from dataclasses import dataclass

import pytest
import tinker
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.exceptions import DataValidationError
from tinker_cookbook.rl.data_processing import assemble_training_data, compute_advantages, trajectory_to_data
from tinker_cookbook.rl.types import PARSE_ERROR_MASKED_METRIC_KEY, Trajectory, TrajectoryGroup, Transition

from slipstream.batch.advantages import dr_grpo
from slipstream.batch.merge import merge
from slipstream.batch.rows import make_batch
from slipstream.types import (
    Ending,
    EndReason,
    Group,
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

ADVANTAGE = 0.75
"""Exact in single precision, so that advantages are compared without a tolerance."""


# ---------------------------------------------------------------- one description of a model call, two ways to tell it


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One model call: `parent` and `num_kept` as in a turn, its whole prompt and reply beside them."""

    parent: int | None
    num_kept: int
    added: tuple[int, ...]
    reply: tuple[int, ...]
    logprobs: tuple[float, ...]
    trainable: bool
    prompt: tuple[int, ...]

    @property
    def whole(self) -> tuple[int, ...]:
        return self.prompt + self.reply


class Calls:
    """Calls in the order in which they were made. Replies draw logprobs that no other token has."""

    def __init__(self) -> None:
        self.made: list[Call] = []
        self._num_sampled = 0

    def __repr__(self) -> str:
        return "\n".join(str(call) for call in self.made)

    def call(
        self,
        added: list[int],
        reply: list[int],
        *,
        parent: int | None = None,
        kept: int | None = None,
        trainable: bool = True,
    ) -> int:
        """Append a call that keeps `kept` tokens of its parent, all of them if not said; return its index."""
        before = () if parent is None else self.made[parent].whole
        num_kept = len(before) if kept is None else kept
        logprobs = tuple(-(self._num_sampled + place + 1) / 100 for place in range(len(reply)))
        self._num_sampled += len(reply)
        self.made.append(
            Call(
                parent=parent,
                num_kept=num_kept,
                added=tuple(added),
                reply=tuple(reply),
                logprobs=logprobs,
                trainable=trainable,
                prompt=before[:num_kept] + tuple(added),
            )
        )
        return len(self.made) - 1

    def chain(self, *pairs: tuple[list[int], list[int]], parent: int | None = None, kept: int | None = None) -> int:
        """Calls that each continue the one before; the first as `call` would."""
        last = self.call(*pairs[0], parent=parent, kept=kept)
        for added, reply in pairs[1:]:
            last = self.call(added, reply, parent=last)
        return last


def as_rollout(
    calls: Calls, *, reward: float = 1.0, reason: EndReason = EndReason.FINISHED, task_id: str = "t", sample: int = 0
) -> Rollout:
    turns = tuple(
        Turn(
            index=index,
            parent=call.parent,
            num_kept=call.num_kept,
            added=token_ids(call.added),
            sampled=Sampled.at_version(call.reply, call.logprobs, version=0, stop=StopReason.STOP),
            trainable=call.trainable,
        )
        for index, call in enumerate(calls.made)
    )
    return Rollout(
        job=Job(key=JobKey(phase="train", step=0, task_id=task_id, sample=sample), seed=0),
        attempt=1,
        ending=Ending(reason=reason),
        turns=turns,
        verdict=Verdict(reward=reward) if reason.trust.graded else None,
    )


def as_trajectory(calls: Calls, *, stop_reason: str = "completed") -> Trajectory:
    transitions = [
        Transition(
            ob=tinker.ModelInput.from_ints(list(call.prompt)),
            ac=TokensWithLogprobs(tokens=list(call.reply), maybe_logprobs=list(call.logprobs)),
            reward=0.0,
            episode_done=call is calls.made[-1],
            metrics={} if call.trainable else {PARSE_ERROR_MASKED_METRIC_KEY: 1.0},
        )
        for call in calls.made
    ]
    return Trajectory(transitions=transitions, final_ob=tinker.ModelInput.empty(), stop_reason=stop_reason)


# ---------------------------------------------------------------- one form for what both sides give a learner


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A sequence to train on. All are as long as `ids`; floats are those of single precision."""

    ids: list[int]
    mask: list[float]
    logprobs: list[float]
    advantages: list[float]

    def trained(self) -> Counter[tuple[tuple[int, ...], int, float]]:
        """Every token in the loss, with all that stands before it and its logprob."""
        return Counter(
            (tuple(self.ids[:place]), self.ids[place], self.logprobs[place])
            for place, mask in enumerate(self.mask)
            if mask
        )


def from_sample(sample: Sample, advantage: float) -> Data:
    return Data(
        ids=sample.ids.tolist(),
        mask=[float(mask) for mask in sample.mask],
        logprobs=sample.logprobs.tolist(),
        advantages=[advantage * mask for mask in sample.mask],
    )


def from_datum(datum: tinker.Datum) -> Data:
    """Undo the shift by one: the first token is no target, so it has no mask, logprob or advantage of its own."""
    inputs = datum.model_input.to_ints()
    targets = [int(token) for token in datum.loss_fn_inputs["target_tokens"].data]
    assert targets[:-1] == inputs[1:]
    mask, logprobs, advantages = (
        [0.0, *(float(value) for value in datum.loss_fn_inputs[name].to_torch().tolist())]
        for name in ("mask", "logprobs", "advantages")
    )
    return Data(ids=[*inputs, targets[-1]], mask=mask, logprobs=logprobs, advantages=advantages)


def ours(calls: Calls) -> list[Data]:
    merged = merge(as_rollout(calls))
    assert merged.num_truncated == 0
    return [from_sample(sample, ADVANTAGE) for sample in merged.samples]


def theirs(calls: Calls) -> list[Data]:
    return [from_datum(datum) for datum in trajectory_to_data(as_trajectory(calls), ADVANTAGE)]


def in_loss(data: list[Data]) -> list[Data]:
    """Data of the cookbook without what ours leaves out: sequences with nothing to train on, logprobs at mask 0."""
    return [
        Data(
            ids=each.ids,
            mask=each.mask,
            logprobs=[logprob if mask else 0.0 for logprob, mask in zip(each.logprobs, each.mask, strict=True)],
            advantages=each.advantages,
        )
        for each in data
        if any(each.mask)
    ]


def trained(data: list[Data]) -> Counter[tuple[tuple[int, ...], int, float]]:
    return sum((each.trained() for each in data), Counter())


# ---------------------------------------------------------------- where the two agree exactly


def test_one_call_is_the_same_datum() -> None:
    calls = Calls()
    calls.call([1, 2, 3], [10, 11])
    assert ours(calls) == theirs(calls)
    (data,) = theirs(calls)
    assert (data.ids, data.mask) == ([1, 2, 3, 10, 11], [0, 0, 0, 1, 1])
    assert data.logprobs == [0, 0, 0, pytest.approx(-0.01), pytest.approx(-0.02)]
    assert data.advantages == [0, 0, 0, ADVANTAGE, ADVANTAGE]


def test_several_turns_are_one_datum() -> None:
    calls = Calls()
    calls.chain(([1, 2], [10, 11]), ([3], [12]), ([4, 5], [13, 14]))
    assert ours(calls) == theirs(calls)
    assert [data.mask for data in theirs(calls)] == [[0, 0, 1, 1, 0, 1, 0, 0, 1, 1]]


def test_a_context_edit_begins_a_datum_in_which_what_was_sampled_before_is_context() -> None:
    calls = Calls()
    last = calls.chain(([1, 2], [10, 11]), ([3], [12]))
    calls.chain(([8], [13]), ([4], [14]), parent=last, kept=3)
    assert ours(calls) == theirs(calls)
    assert [(data.ids, data.mask) for data in theirs(calls)] == [
        ([1, 2, 10, 11, 3, 12], [0, 0, 1, 1, 0, 1]),
        ([1, 2, 10, 8, 13, 4, 14], [0, 0, 0, 0, 1, 0, 1]),
    ]


def test_context_edits_one_after_another_are_a_datum_each() -> None:
    calls = Calls()
    last = calls.chain(([1, 2], [10]), ([3], [11]))
    last = calls.chain(([4], [12]), ([5], [13]), parent=last, kept=3)
    calls.chain(([6], [14]), ([7], [15]), parent=last, kept=4)
    assert ours(calls) == theirs(calls)
    assert [data.ids for data in ours(calls)] == [
        [1, 2, 10, 3, 11],
        [1, 2, 10, 4, 12, 5, 13],
        [1, 2, 10, 4, 6, 14, 7, 15],
    ]


def test_a_malformed_call_and_the_recovery_from_it_are_ordinary_turns() -> None:
    calls = Calls()
    calls.chain(([1, 2], [40, 41]), ([90, 91, 92], [42, 43]), ([3], [44]))
    assert ours(calls) == theirs(calls)
    assert [sum(data.mask) for data in ours(calls)] == [5]


def test_a_sub_agent_that_runs_to_the_end_is_a_datum_of_its_own() -> None:
    calls = Calls()
    calls.chain(([1, 2], [10]), ([3], [11]))
    calls.chain(([50, 51], [20]), ([52], [21]))
    assert ours(calls) == theirs(calls)
    assert [data.ids for data in ours(calls)] == [[1, 2, 10, 3, 11], [50, 51, 20, 52, 21]]


def test_two_continuations_of_one_call_share_it_as_context_and_train_it_once() -> None:
    calls = Calls()
    stem = calls.call([1, 2], [10])
    calls.call([3], [11], parent=stem)
    calls.call([4], [12], parent=stem)
    assert ours(calls) == theirs(calls)
    assert [data.mask for data in ours(calls)] == [[0, 0, 1, 0, 1], [0, 0, 0, 0, 1]]


def test_an_empty_reply_adds_nothing_to_the_loss() -> None:
    calls = Calls()
    calls.chain(([1, 2], [10]), ([3], []), ([4], [11]), ([5], []))
    assert ours(calls) == theirs(calls)
    assert [(data.ids, data.mask) for data in ours(calls)] == [([1, 2, 10, 3, 4, 11, 5], [0, 0, 1, 0, 0, 1, 0])]


def test_a_turn_outside_the_loss_is_context_and_only_the_cookbook_keeps_its_logprobs() -> None:
    calls = Calls()
    first = calls.call([1, 2], [10])
    second = calls.call([3], [11, 12], parent=first, trainable=False)
    calls.call([4], [13], parent=second)
    (mine,), (other,) = ours(calls), theirs(calls)
    assert [mine] == in_loss([other])
    assert mine.mask == [0, 0, 1, 0, 0, 0, 0, 1]
    assert mine.logprobs[4:6] == [0.0, 0.0]
    assert other.logprobs[4:6] == [pytest.approx(-0.02), pytest.approx(-0.03)]


# ---------------------------------------------------------------- where ours differs on purpose


def interleaved() -> Calls:
    """A main agent and a sub-agent that take turns, twice."""
    calls = Calls()
    main = calls.call([1, 2], [10])
    sub = calls.call([50, 51], [20])
    calls.call([3], [11], parent=main)
    calls.call([52], [21], parent=sub)
    return calls


def test_interleaved_branches_are_one_sample_each_for_us_and_one_datum_a_return_for_them() -> None:
    calls = interleaved()
    assert [(data.ids, data.mask) for data in ours(calls)] == [
        ([1, 2, 10, 3, 11], [0, 0, 1, 0, 1]),
        ([50, 51, 20, 52, 21], [0, 0, 1, 0, 1]),
    ]
    assert [(data.ids, data.mask) for data in theirs(calls)] == [
        ([1, 2, 10], [0, 0, 1]),
        ([50, 51, 20], [0, 0, 1]),
        ([1, 2, 10, 3, 11], [0, 0, 0, 0, 1]),
        ([50, 51, 20, 52, 21], [0, 0, 0, 0, 1]),
    ]
    assert trained(ours(calls)) == trained(theirs(calls))


def test_a_fork_that_restores_what_it_cut_is_a_fork_for_us_and_none_for_them() -> None:
    calls = Calls()
    first = calls.call([1, 2], [10, 11])
    calls.call([11, 3], [12], parent=first, kept=3)
    assert [data.mask for data in ours(calls)] == [[0, 0, 1, 1], [0, 0, 0, 0, 0, 1]]
    assert [data.mask for data in theirs(calls)] == [[0, 0, 1, 1, 0, 1]]
    assert trained(ours(calls)) == trained(theirs(calls))


def test_a_nested_conversation_outside_the_loss_is_no_sample_for_us_and_a_datum_without_loss_for_them() -> None:
    calls = Calls()
    calls.chain(([1, 2], [10]), ([3], [11]))
    nested = calls.call([50, 51], [20], trainable=False)
    calls.call([52], [21], parent=nested, trainable=False)
    assert ours(calls) == in_loss(theirs(calls))
    assert [data.ids for data in ours(calls)] == [[1, 2, 10, 3, 11]]
    assert [data.mask for data in theirs(calls)] == [[0, 0, 1, 0, 1], [0, 0, 0, 0, 0]]


def test_an_empty_reply_alone_is_no_sample_for_us_and_refused_by_them_after_a_prompt_of_one_token() -> None:
    calls = Calls()
    calls.call([1, 2], [])
    assert ours(calls) == []
    assert [data.mask for data in theirs(calls)] == [[0, 0]]
    shorter = Calls()
    shorter.call([1], [])
    assert ours(shorter) == []
    with pytest.raises(DataValidationError):
        theirs(shorter)


# ---------------------------------------------------------------- random trees of calls


@st.composite
def trees(draw: st.DrawFn, *, in_order: bool, fresh: bool = True) -> Calls:
    """Random calls. With `in_order` none goes back to the end of a branch that another one followed.

    With `fresh` every token is new and every fork adds one, so that two contexts are equal only if one was built from
    the other; without it there are three tokens in all, and contexts coincide often.
    """
    calls = Calls()
    continued: set[int] = set()  # calls that a later one continued by at least a token
    num_drawn = 0

    def tokens(fewest: int) -> list[int]:
        nonlocal num_drawn
        number = draw(st.integers(fewest, 4))
        num_drawn += number
        if fresh:
            return list(range(num_drawn - number, num_drawn))
        return draw(st.lists(st.integers(0, 2), min_size=number, max_size=number))

    for index in range(draw(st.integers(1, 8))):
        trainable = draw(st.booleans())
        parent = None
        if index:
            parent = draw(st.one_of(st.just(index - 1), st.none(), st.integers(0, index - 1)))
        if parent is None:
            calls.call(tokens(2), tokens(0), trainable=trainable)
            continue
        end = len(calls.made[parent].whole)
        kept = end if draw(st.booleans()) else draw(st.integers(1, end))
        if in_order and kept == end and parent != index - 1 and parent not in continued:
            kept = end - 1
        added = tokens(0 if kept == end and parent not in continued else 1)
        calls.call(added, tokens(0), parent=parent, kept=kept, trainable=trainable)
        if kept == end and calls.made[-1].whole != calls.made[parent].whole:
            continued.add(parent)
    return calls


@settings(max_examples=400, deadline=None, derandomize=True)
@given(trees(in_order=True))
def test_calls_that_never_go_back_give_the_same_data(calls: Calls) -> None:
    assert ours(calls) == in_loss(theirs(calls))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(trees(in_order=False))
def test_any_tree_trains_the_same_tokens_in_the_same_contexts_in_no_more_samples(calls: Calls) -> None:
    assert trained(ours(calls)) == trained(theirs(calls))
    assert len(ours(calls)) <= len(in_loss(theirs(calls)))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(trees(in_order=False, fresh=False))
def test_contexts_that_coincide_change_nothing_that_is_trained_on(calls: Calls) -> None:
    assert trained(ours(calls)) == trained(theirs(calls))


# ---------------------------------------------------------------- advantages and whole batches


def as_groups(members: list[list[tuple[Calls, float]]]) -> tuple[list[Group], list[TrajectoryGroup]]:
    """The same groups of (calls, reward) for both sides."""
    mine = [
        Group(
            phase="train",
            step=0,
            task_id=f"t{place}",
            rollouts=tuple(
                as_rollout(calls, reward=reward, task_id=f"t{place}", sample=sample)
                for sample, (calls, reward) in enumerate(group)
            ),
        )
        for place, group in enumerate(members)
    ]
    other = [
        TrajectoryGroup(
            trajectories_G=[as_trajectory(calls) for calls, _ in group],
            final_rewards_G=[reward for _, reward in group],
            metrics_G=[{} for _ in group],
        )
        for group in members
    ]
    return mine, other


REWARDS = st.floats(-10, 10, width=32)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.lists(REWARDS, min_size=2, max_size=8), min_size=1, max_size=4))
def test_dr_grpo_is_the_advantage_of_the_cookbook(rewards: list[list[float]]) -> None:
    calls = Calls()
    calls.call([1, 2], [10])
    _, groups = as_groups([[(calls, reward) for reward in group] for group in rewards])
    advantages = [advantages.tolist() for advantages in compute_advantages(groups)]
    assert dr_grpo(rewards) == [[pytest.approx(value, rel=1e-5, abs=1e-5) for value in group] for group in advantages]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(
        st.lists(st.tuples(trees(in_order=True), REWARDS), min_size=2, max_size=4),
        min_size=1,
        max_size=3,
    )
)
def test_a_batch_is_the_cookbooks_training_data_row_by_row(members: list[list[tuple[Calls, float]]]) -> None:
    mine, other = as_groups(members)
    rows = make_batch(mine, dr_grpo).rows
    data, places = assemble_training_data(other, compute_advantages(other))
    expected = [
        (f"t{place['group_idx']}", place["traj_idx"], each)
        for datum, place in zip(data, places, strict=True)
        for each in in_loss([from_datum(datum)])
    ]
    assert all(row.in_loss for row in rows)
    for row, (task_id, sample, each) in zip(rows, expected, strict=True):
        assert (row.sample.key.task_id, row.sample.key.sample) == (task_id, sample)
        got = from_sample(row.sample, row.advantage)
        assert (got.ids, got.mask, got.logprobs) == (each.ids, each.mask, each.logprobs)
        assert got.advantages == pytest.approx(each.advantages, rel=1e-5, abs=1e-5)


def test_a_group_of_one_teaches_nothing_either_way_but_only_ours_leaves_it_out() -> None:
    calls = Calls()
    calls.call([1, 2], [10])
    mine, other = as_groups([[(calls, 1.0)]])
    assert make_batch(mine, dr_grpo).rows == ()
    assert [advantages.tolist() for advantages in compute_advantages(other)] == [[0.0]]


# ---------------------------------------------------------------- what the cookbook's conversion does not have


def test_only_ours_cuts_a_sample_that_is_too_long() -> None:
    calls = Calls()
    calls.chain(([1, 2], [10, 11]), ([3], [12]), ([4, 5], [13, 14]))
    merged = merge(as_rollout(calls), max_tokens=8)
    assert [sample.ids.tolist() for sample in merged.samples] == [[1, 2, 10, 11, 3, 12]]
    assert merged.num_truncated == 2
    assert [len(data.ids) for data in theirs(calls)] == [10]
    with pytest.raises(TypeError, match="max_tokens"):
        trajectory_to_data(as_trajectory(calls), ADVANTAGE, max_tokens=8)


@pytest.mark.parametrize(
    ("reason", "stop_reason", "num_rows", "num_in_loss"),
    [
        (EndReason.TURN_LIMIT, "max_turns", 3, 2),
        (EndReason.TOKEN_LIMIT, "max_tokens", 3, 2),
        (EndReason.DEADLINE, "rollout_timeout", 2, 2),
    ],
)
def test_only_ours_asks_why_a_rollout_ended(
    reason: EndReason, stop_reason: str, num_rows: int, num_in_loss: int
) -> None:
    calls = Calls()
    calls.call([1, 2], [10])
    group = Group(
        phase="train",
        step=0,
        task_id="t",
        rollouts=(
            as_rollout(calls, reward=1.0),
            as_rollout(calls, reward=0.0, sample=1),
            as_rollout(calls, reward=0.0, sample=2, reason=reason),
        ),
    )
    rows = make_batch([group], dr_grpo).rows
    assert (len(rows), sum(row.in_loss for row in rows)) == (num_rows, num_in_loss)

    stopped = [as_trajectory(calls, stop_reason=stop) for stop in ("completed", "completed", stop_reason)]
    groups = [TrajectoryGroup(trajectories_G=stopped, final_rewards_G=[1.0, 0.0, 0.0], metrics_G=[{}, {}, {}])]
    data, _ = assemble_training_data(groups, compute_advantages(groups))
    assert [from_datum(datum).mask for datum in data] == [[0, 0, 1]] * 3
    assert torch.stack(compute_advantages(groups)).tolist() == [
        [pytest.approx(value) for value in (2 / 3, -1 / 3, -1 / 3)]
    ]
