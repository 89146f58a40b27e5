"""Rollouts as the rows that a driving trainer requested.

Such a trainer makes its baseline itself and needs a row for every rollout, trusted or not.
Input: the rollouts of each group. Output: for each of them, in the same places, its rows and one number that the
trainer's own estimator sees: an advantage, to be passed through as it is, or a reward.
Invariants: rows, masks and logprobs are those of `batch`, and so are advantages. A rollout that is not learnt from has
mask 0. Among rewards, one that is in no baseline has the mean of its group's trusted members, so it does not move the
mean; a group with fewer than two of those is masked completely. A rollout that left nothing to train on is one end
token. A training batch that is masked completely is refused.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slipstream.batch.advantages import Estimator
from slipstream.batch.merge import merge
from slipstream.batch.rows import MIN_IN_BASELINE, make_batch
from slipstream.errors import BridgeError
from slipstream.types import Group, JobKey, Rollout, Row, Sample


class RowUse(StrEnum):
    """How the trainer's update uses a rollout."""

    LEARNT = "learnt"
    LIMIT = "limit"
    """It hit its own limit: in the baseline, outside the loss."""
    UNTRUSTED = "untrusted"
    """It failed through no fault of the agent: in neither."""
    TOO_FEW = "too_few"
    """Fewer than two of its group are in the baseline, so there is nothing to compare it with."""
    EMPTY = "empty"
    """It left no tokens to train on, or none that fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutRow:
    """One sequence, split at the first sampled token. The per-token lists are the response's."""

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    versions: list[int]

    def __post_init__(self) -> None:
        lengths = {len(self.response_ids), len(self.mask), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"per-token lengths differ, or there is no response: {sorted(lengths)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rollout, as the trainer gets it."""

    rollout: Rollout
    rows: tuple[OutRow, ...]
    """One for each of its samples; never empty."""
    score: float
    """What the trainer's estimator sees: a reward, a neutral reward, or an advantage."""
    use: RowUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A batch, as the trainer gets it."""

    groups: tuple[tuple[Member, ...], ...]
    metrics: Mapping[str, float]
    """Of the original rollouts; the trainer's own figures are of the rows."""


def make_outgoing(
    groups: Sequence[Sequence[Rollout]],
    *,
    end_id: int,
    estimator: Estimator | None = None,
    max_tokens: int | None = None,
    solved_at: float = 1.0,
) -> Outgoing:
    """A training batch. With an `estimator` scores are advantages, to be passed through; without, rewards.

    Raises BridgeError if there is nothing to learn from.
    """
    named = [
        Group(phase=key.phase, step=key.step, task_id=key.task_id, rollouts=tuple(group))
        for group, key in ((group, group[0].job.key) for group in groups)
    ]
    batch = make_batch(named, estimator or _no_advantages, max_tokens=max_tokens, solved_at=solved_at)
    by_key: dict[JobKey, list[Row]] = defaultdict(list)
    for row in batch.rows:
        by_key[row.sample.key].append(row)
    out = tuple(_group(group, by_key, end_id, max_tokens, is_scored=estimator is not None) for group in groups)
    # If the trainer makes the advantages, ours mean nothing.
    own = {name: value for name, value in batch.metrics.items() if estimator or not name.startswith("advantage/")}
    if not any(member.use is RowUse.LEARNT for group in out for member in group):
        counts = ", ".join(f"{name} {number:g}" for name, number in sorted(_use_counts(out).items()) if number)
        key = groups[0][0].job.key
        raise BridgeError(
            f"no rollout of {key.phase} step {key.step} can be learnt from ({counts}): {_why(groups)}; "
            "see `slipstream show` of the run's folder"
        )
    return Outgoing(groups=out, metrics={**own, **_use_counts(out)})


def make_evaluated(groups: Sequence[Sequence[Rollout]], *, end_id: int) -> Outgoing:
    """An evaluation batch: scores are rewards; one without a verdict has its group's mean, or else that of the whole
    batch, so that it moves no average. Raises BridgeError if no rollout has a verdict."""
    rewards = [rollout.verdict.reward for group in groups for rollout in group if rollout.verdict is not None]
    if not rewards:
        raise BridgeError(f"no rollout has a verdict: {_why(groups)}; see `slipstream show` of the run's folder")
    out = tuple(
        tuple(
            Member(
                rollout=rollout,
                rows=rows_of(merge(rollout).samples, end_id, in_loss=reward is not None),
                score=_neutral(group, otherwise=statistics.fmean(rewards)) if reward is None else reward,
                use=RowUse.UNTRUSTED if reward is None else RowUse.LEARNT,
            )
            for rollout in group
            for reward in (None if rollout.verdict is None else rollout.verdict.reward,)
        )
        for group in groups
    )
    return Outgoing(groups=out, metrics={"reward/mean": statistics.fmean(rewards), **_use_counts(out)})


def _group(
    group: Sequence[Rollout],
    by_key: Mapping[JobKey, Sequence[Row]],
    end_id: int,
    max_tokens: int | None,
    *,
    is_scored: bool,
) -> tuple[Member, ...]:
    compared = sum(rollout.trust.in_baseline for rollout in group) >= MIN_IN_BASELINE
    neutral = _neutral(group, otherwise=0.0)
    members = []
    for rollout in group:
        rows = by_key.get(rollout.job.key, ())
        if is_scored:
            score = rows[0].advantage if rows else 0.0
        else:
            score = neutral if rollout.verdict is None else rollout.verdict.reward
        members.append(
            Member(
                rollout=rollout,
                # What `batch` left out has mask 0.
                rows=rows_of(
                    [row.sample for row in rows] or merge(rollout, max_tokens=max_tokens).samples,
                    end_id,
                    in_loss=any(row.in_loss for row in rows),
                ),
                score=score,
                use=_use(rollout, rows, compared=compared),
            )
        )
    return tuple(members)


def _use(rollout: Rollout, rows: Sequence[Row], *, compared: bool) -> RowUse:
    if not rollout.trust.in_baseline:
        return RowUse.UNTRUSTED
    if not compared:
        return RowUse.TOO_FEW
    if not rollout.trust.in_loss:
        return RowUse.LIMIT
    return RowUse.LEARNT if rows else RowUse.EMPTY


def rows_of(samples: Sequence[Sample], end_id: int, *, in_loss: bool) -> tuple[OutRow, ...]:
    """The rows of a rollout's samples; one end token if there are none."""
    if samples:
        return tuple(_split(sample, in_loss=in_loss) for sample in samples)
    return (OutRow(prompt_ids=[end_id], response_ids=[end_id], mask=[0], logprobs=[0.0], versions=[-1]),)


def _split(sample: Sample, *, in_loss: bool) -> OutRow:
    """Split a sample into prompt and response, which begins with the first token to train on."""
    start = sample.mask.index(1)
    mask = sample.mask[start:].tolist()
    return OutRow(
        prompt_ids=sample.ids[:start].tolist(),
        response_ids=sample.ids[start:].tolist(),
        mask=mask if in_loss else [0] * len(mask),
        logprobs=sample.logprobs[start:].tolist(),
        versions=sample.versions[start:].tolist(),
    )


def _neutral(group: Sequence[Rollout], *, otherwise: float) -> float:
    rewards = [rollout.verdict.reward for rollout in group if rollout.verdict is not None]
    return statistics.fmean(rewards) if rewards else otherwise


def _no_advantages(groups: Sequence[Sequence[float]]) -> list[list[float]]:
    """The trainer makes them."""
    return [[0.0] * len(rewards) for rewards in groups]


def _use_counts(groups: Sequence[Sequence[Member]]) -> dict[str, float]:
    counts = Counter(member.use for group in groups for member in group)
    masked = sum(all(member.use is not RowUse.LEARNT for member in group) for group in groups)
    return {f"outgoing/{use}": float(counts[use]) for use in RowUse} | {"outgoing/groups_masked": float(masked)}


def _why(groups: Sequence[Sequence[Rollout]]) -> str:
    """The most common ending, with the detail of one of them."""
    endings = [rollout.ending for group in groups for rollout in group]
    reason, number = Counter(ending.reason for ending in endings).most_common(1)[0]
    detail = next((ending.detail for ending in endings if ending.reason is reason and ending.detail), "")
    return f"{number} of {len(endings)} ended by {reason}{f' ({detail})' if detail else ''}"
