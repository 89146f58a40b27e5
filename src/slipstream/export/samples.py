"""Rollouts to exported samples: one flat value for each token sequence, with the rollout that it is part of.

Enters: rollouts and the advantages within their groups. Leaves: an `ExportedSample` for each sample that `batch.merge`
makes. Always holds: a rollout leaves at least one, without tokens if nothing of it can be trained on; those in the
loss are exactly the rows in the loss that `batch.rows` makes of the same rollouts, with the same tokens and advantage.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

from slipstream.batch.advantages import Estimator
from slipstream.batch.merge import Merged, merge
from slipstream.batch.rows import FEWEST_IN_BASELINE
from slipstream.export.turns import checked_turns, conversation, conversation_turns, last_turn
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

_FLOAT_BYTES = array("f").itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSample:
    """A row of an export: a token sequence, and what became of the rollout that it is part of.

    Train on the tokens where `loss_mask` is 1, in rows where `in_loss` is true, weighted by `advantage`; on no other.
    """

    run: str
    """The name of the run's folder."""
    phase: str
    step: int
    task_id: str
    sample: int
    """The rollout's place in its group. A group is the rollouts of one phase, step and task."""
    attempt: int
    part: int
    """Which of its rollout's rows it is, from 0; forks and sub-agents make several."""
    branch: int | None
    """Of the last turn it shows; None if there is no turn."""
    fork: ForkReason | None
    """Why it is a sample of its own; None for the one that the rollout began with."""
    end_reason: EndReason
    end_detail: str
    trust: Trust
    answer: str | None
    in_loss: bool
    """Whether it is trained on: its rollout is trusted, its group has a baseline, its tokens have logprobs."""
    reward: float | None
    """None if nothing was graded, which is not a reward of 0."""
    reward_components: Mapping[str, float] = field(default_factory=dict)
    reward_detail: str = ""
    advantage: float | None
    """Of the rollout in its group, the same in all its rows; None if it is in no baseline."""
    input_ids: TokenIds | None
    """Prompts, replies and tool answers, one after the other; None if no sequence could be made."""
    loss_mask: array[int] | None
    """1 where the policy sampled the token, and this row is the one to train it."""
    logprobs: array[float] | None
    """At sampling time, 0.0 where `loss_mask` is 0; None if the server gave none."""
    versions: array[int] | None
    """The policy's version that sampled the token, -1 where `loss_mask` is 0."""
    num_truncated: int
    """Sampled tokens that were cut off its end."""
    turns: tuple[int, ...]
    """The turns of the rollout that it shows, by index."""
    messages: tuple[Message, ...]
    """The conversation up to its last turn."""

    @property
    def key(self) -> JobKey:
        return JobKey(phase=self.phase, step=self.step, task_id=self.task_id, sample=self.sample)


def advantages_of(rollouts: Iterable[Rollout], estimator: Estimator) -> dict[JobKey, float | None]:
    """The advantage of each rollout; None for those in no baseline. Rollouts come by key, turns are not needed.

    A batch, over which an estimator may take its mean, is all that one phase and step made.
    """
    found: dict[JobKey, float | None] = {}
    for _, batch in groupby(rollouts, key=lambda rollout: (rollout.job.key.phase, rollout.job.key.step)):
        groups: dict[str, list[tuple[JobKey, float]]] = defaultdict(list)
        for rollout in batch:
            key = rollout.job.key
            found[key] = None
            if rollout.trust.in_baseline and rollout.verdict is not None:
                groups[key.task_id].append((key, rollout.verdict.reward))
        kept = [group for group in groups.values() if len(group) >= FEWEST_IN_BASELINE]
        values = estimator([[reward for _, reward in group] for group in kept])
        for group, advantages in zip(kept, values, strict=True):
            found.update((key, advantage) for (key, _), advantage in zip(group, advantages, strict=True))
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
    """The samples of all that has tokens. Missing logprobs are filled with zeros, which the caller takes out again."""
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
    """What all rows of a rollout share."""
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
    """The one row of a rollout of which nothing can be trained on, with the conversation that it ended with."""
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
