"""Turns rollouts into exported samples: one flat value for each token sequence, with facts about its rollout.

Input: rollouts and their advantages. Output: an `ExportedSample` for each sample of `batch.merge`. Invariants: a
rollout has at least one, without tokens if it cannot be trained on; those in the loss are exactly the rows in the loss
that `batch.rows` makes of the same groups, with the same tokens and advantages.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from slipstream.batch.advantages import Estimator, deal_anew
from slipstream.batch.merge import Merged, merge
from slipstream.batch.rows import MIN_IN_BASELINE
from slipstream.export.turns import checked_turns, conversation, conversation_turns, last_turn
from slipstream.record import StepRecord
from slipstream.types import (
    EndReason,
    ForkReason,
    JobKey,
    Message,
    Rollout,
    TokenIds,
    Trust,
    Turn,
)

TRAIN, HELD_OUT = "train", "held_out"
"""The phases of a training run."""
_FLOAT_BYTES = array("f").itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSample:
    """A row of an export: a token sequence, and facts about its rollout.

    Train on the tokens where `loss_mask` is 1, in rows where `in_loss` is true, weighted by `advantage`; on nothing
    else.
    """

    run: str
    """The name of the run's folder."""
    phase: str
    step: int
    task_id: str
    sample: int
    """The rollout's index in its group. A group is the rollouts of one phase, step and task."""
    attempt: int
    part: int
    """The index among its rollout's rows, from 0; forks and sub-agents add rows."""
    branch: int | None
    """Of its last turn; None if there is no turn."""
    fork: ForkReason | None
    """Why it is a separate sample; None for the rollout's first."""
    end_reason: EndReason
    end_detail: str
    trust: Trust
    answer: str | None
    in_loss: bool
    """Whether to train on it: its rollout is trusted and was not left out of its batch, its group has a baseline, and
    its tokens have logprobs."""
    reward: float | None
    """None if the rollout was not graded, which is not a reward of 0."""
    reward_components: Mapping[str, float] = field(default_factory=dict)
    reward_detail: str = ""
    advantage: float | None
    """Of the rollout in its group, the same in all its rows; None if it is in no baseline, such as rollouts left out
    of their batch and evaluations during training."""
    input_ids: TokenIds | None
    """Prompts, replies and tool answers in order; None if the rollout has no tokens."""
    loss_mask: array[int] | None
    """1 where the policy sampled the token, and it is trained on in this row."""
    logprobs: array[float] | None
    """At sampling time, 0.0 where `loss_mask` is 0; None if the server returned none."""
    versions: array[int] | None
    """The policy's version that sampled the token, -1 where `loss_mask` is 0."""
    num_truncated: int
    """Sampled tokens that were truncated at its end."""
    turns: tuple[int, ...]
    """The indexes of its turns."""
    messages: tuple[Message, ...]
    """The conversation up to its last turn."""

    @property
    def key(self) -> JobKey:
        return JobKey(phase=self.phase, step=self.step, task_id=self.task_id, sample=self.sample)


def advantages_of(
    rollouts: Iterable[Rollout],
    estimator: Estimator,
    *,
    steps: Sequence[StepRecord] = (),
    shuffle_seed: int | None = None,
) -> dict[JobKey, float | None]:
    """The advantage of each rollout; None for those in no baseline. Rollouts come in order of key; turns are not
    needed.

    With the `steps` of a training run, its recorded batches are used, so that members left out and baselines are those
    that the learner had. Without, all rollouts of a phase and step are one batch, over which an estimator may average.
    Evaluations during training are in no batch. With `shuffle_seed`, the seed of a run with `shuffle_rewards`, the
    rewards of each batch are shuffled as they were in the run.
    """
    rewards = {
        rollout.job.key: rollout.verdict.reward if rollout.verdict is not None and rollout.trust.in_baseline else None
        for rollout in rollouts
    }
    found: dict[JobKey, float | None] = dict.fromkeys(rewards)
    for batch in _batches(rewards, steps):
        counted = _dealt(batch, rewards, shuffle_seed)
        compared = [
            [(key, reward) for key in group if (reward := counted.get(key)) is not None] for group in batch.groups
        ]
        kept = [group for group in compared if len(group) >= MIN_IN_BASELINE]
        values = estimator([[reward for _, reward in group] for group in kept])
        for group, advantages in zip(kept, values, strict=True):
            found.update(
                (key, advantage)
                for (key, _), advantage in zip(group, advantages, strict=True)
                if key not in batch.earlier
            )
    return found


def _dealt(
    batch: _KeyBatch, rewards: Mapping[JobKey, float | None], shuffle_seed: int | None
) -> Mapping[JobKey, float | None]:
    """The rewards that the learner got: those of the batch's own members may have been shuffled."""
    if shuffle_seed is None or batch.step is None:
        return rewards
    own = [key for group in batch.groups for key in group if key not in batch.earlier and rewards.get(key) is not None]
    return {
        **rewards,
        **dict(zip(own, deal_anew([rewards[key] for key in own], seed=shuffle_seed, step=batch.step), strict=True)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyBatch:
    step: int | None = None
    """Of a batch on record."""
    groups: tuple[Sequence[JobKey], ...]
    """The rollouts that are compared with each other."""
    earlier: frozenset[JobKey] = frozenset()
    """Those of them that an earlier batch learned from."""


def _batches(keys: Iterable[JobKey], steps: Sequence[StepRecord]) -> Iterator[_KeyBatch]:
    """The batches of these rollouts, recorded or derived."""
    in_order = sorted(keys)
    trains = any(key.phase == TRAIN for key in in_order)
    for (phase, _), members in groupby(in_order, key=lambda key: (key.phase, key.step)):
        if phase == TRAIN and steps:
            continue
        if phase != HELD_OUT and (phase == TRAIN or not trains):
            yield _KeyBatch(groups=tuple(_by_group(members).values()))
    taken = {record.step: sorted(record.taken) for record in steps if record.taken is not None}
    for step, learnt_from in sorted(taken.items()):
        before = _by_group(taken.get(step - 1, ()))
        groups = _by_group(learnt_from)
        yield _KeyBatch(
            step=step,
            groups=tuple([*members, *before.get(group, ())] for group, members in groups.items()),
            earlier=frozenset(taken.get(step - 1, ())),
        )


def _by_group(keys: Iterable[JobKey]) -> dict[tuple[str, int, str], list[JobKey]]:
    found: dict[tuple[str, int, str], list[JobKey]] = {}
    for key in keys:
        found.setdefault((key.phase, key.step, key.task_id), []).append(key)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Flattened:
    """The rows of a rollout, at least one."""

    samples: tuple[ExportedSample, ...]
    num_truncated: int
    """Sampled tokens that are in no row."""


def flatten(rollout: Rollout, *, run: str, advantage: float | None, max_tokens: int | None = None) -> Flattened:
    """The rows of a rollout, each of at most `max_tokens`."""
    by_index = checked_turns(rollout)
    row = _row(rollout, run=run, advantage=advantage)
    merged = _merged(rollout, max_tokens)
    samples = tuple(_with_tokens(row, rollout, merged, by_index)) or (
        _without_tokens(row, by_index, merged.num_truncated),
    )
    return Flattened(samples=samples, num_truncated=merged.num_truncated)


def _with_tokens(
    row: ExportedSample, rollout: Rollout, merged: Merged, by_index: Mapping[int, Turn]
) -> Iterator[ExportedSample]:
    bare = {turn.index for turn in rollout.turns if turn.trainable and turn.sampled and turn.sampled.logprobs is None}
    for part, sample in enumerate(merged.samples):
        has_logprobs = bare.isdisjoint(sample.turns)
        yield replace(
            row,
            part=part,
            branch=sample.branch,
            fork=sample.fork,
            in_loss=row.in_loss and has_logprobs,
            input_ids=sample.ids,
            loss_mask=sample.mask,
            logprobs=sample.logprobs if has_logprobs else None,
            versions=sample.versions,
            num_truncated=sample.num_truncated,
            turns=sample.turns,
            messages=conversation(by_index[sample.turns[-1]], by_index),
        )


def _merged(rollout: Rollout, max_tokens: int | None) -> Merged:
    """The samples of all turns with tokens. Missing logprobs become zeros, which the caller removes again."""
    with_tokens: dict[int, Turn] = {}
    for turn in rollout.turns:
        if turn.sampled is None:
            continue
        sampled = turn.sampled
        if sampled.logprobs is None:
            sampled = replace(sampled, logprobs=array("f", bytes(_FLOAT_BYTES * len(sampled.ids))))
        parent = turn.parent if turn.parent in with_tokens else None
        with_tokens[turn.index] = replace(turn, parent=parent, sampled=sampled)
    return merge(replace(rollout, turns=tuple(with_tokens.values())), max_tokens=max_tokens)


def _row(rollout: Rollout, *, run: str, advantage: float | None) -> ExportedSample:
    """The columns that all rows of a rollout share."""
    key, verdict = rollout.job.key, rollout.verdict
    return ExportedSample(
        run=run,
        phase=key.phase,
        step=key.step,
        task_id=key.task_id,
        sample=key.sample,
        attempt=rollout.attempt,
        part=0,
        branch=None,
        fork=None,
        end_reason=rollout.ending.reason,
        end_detail=rollout.ending.detail,
        trust=rollout.trust,
        answer=rollout.ending.answer,
        in_loss=rollout.trust.in_loss and advantage is not None,
        reward=None if verdict is None else verdict.reward,
        reward_components={} if verdict is None else dict(verdict.components),
        reward_detail="" if verdict is None else verdict.detail,
        advantage=advantage,
        input_ids=None,
        loss_mask=None,
        logprobs=None,
        versions=None,
        num_truncated=0,
        turns=(),
        messages=(),
    )


def _without_tokens(row: ExportedSample, by_index: Mapping[int, Turn], num_truncated: int) -> ExportedSample:
    """The only row of a rollout that cannot be trained on, with its final conversation."""
    row = replace(row, in_loss=False, num_truncated=num_truncated)
    last = last_turn(by_index)
    if last is None:
        return row
    return replace(
        row,
        branch=last.branch,
        turns=tuple(turn.index for turn in conversation_turns(last, by_index)),
        messages=conversation(last, by_index),
    )
