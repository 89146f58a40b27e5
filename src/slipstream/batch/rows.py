"""Groups to a batch: trust, advantages, samples.

Invariants: what a rollout may teach is its ending's trust (`types.TRUST_OF`) and nothing else. Untrusted rollouts are
in no baseline and in no row; those that hit a limit of their own count in the baseline and are rows outside the loss.
A group with fewer than two members in the baseline is dropped and counted. What a group leaves out is in the metrics
alone; what an earlier batch learnt from is in the baseline alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.batch.advantages import Estimator
from slipstream.batch.merge import merge
from slipstream.batch.metrics import Scored, batch_metrics
from slipstream.types import Batch, Group, Rollout, Row

FEWEST_IN_BASELINE = 2


def make_batch(
    groups: Sequence[Group],
    estimator: Estimator,
    *,
    max_tokens: int | None = None,
    solved_at: float = 1.0,
    version: int | None = None,
) -> Batch:
    """The rows that a learner gets for these groups. `solved_at` is for the metrics alone: the reward that solves.

    `version` is the policy's that the update starts from, where it is known: what lags behind it is measured.
    """
    compared = [_baseline(group) for group in groups]
    kept = [members for members in compared if members]
    advantages = iter(estimator([[_reward(rollout) for rollout in members] for members in kept]))
    scored = [
        _scored(group, members, next(advantages), max_tokens) if members else ()
        for group, members in zip(groups, compared, strict=True)
    ]
    rows = tuple(
        Row(sample=sample, advantage=member.advantage, in_loss=member.rollout.trust.in_loss)
        for group in scored
        for member in group
        for sample in member.merged.samples
    )
    metrics = batch_metrics(groups, scored, solved_at=solved_at, version=version)
    return Batch(rows=rows, metrics=metrics, version=version)


def _baseline(group: Group) -> list[Rollout]:
    """The members to be compared with each other, those to be learnt from first; none if they are too few."""
    members = [rollout for rollout in (*group.rollouts, *group.earlier) if rollout.trust.in_baseline]
    return members if len(members) >= FEWEST_IN_BASELINE and group.rollouts else []


def _scored(
    group: Group, members: Sequence[Rollout], advantages: Sequence[float], max_tokens: int | None
) -> tuple[Scored, ...]:
    num_new = sum(rollout.trust.in_baseline for rollout in group.rollouts)
    return tuple(
        Scored(rollout=rollout, advantage=advantage, merged=merge(rollout, max_tokens=max_tokens))
        for rollout, advantage in list(zip(members, advantages, strict=True))[:num_new]
    )


def _reward(rollout: Rollout) -> float:
    assert rollout.verdict is not None, "a rollout in the baseline has a verdict: the type refuses anything else"
    return rollout.verdict.reward
