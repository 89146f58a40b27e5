"""Makes a batch of groups: trust, advantages, samples.

Invariants: the trust of a rollout's ending (`types.TRUST_OF`) alone decides what is learned from it. Untrusted rollouts
are in no baseline and no row; those that hit their own limit are in the baseline and are rows outside the loss. A group
with fewer than two members in the baseline is dropped and counted. Members that a group leaves out are only in the
metrics; members that an earlier batch learned from are only in the baseline.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slipstream.batch.advantages import Estimator
from slipstream.batch.merge import merge
from slipstream.batch.metrics import Scored, batch_metrics
from slipstream.types import Batch, Group, Rollout, Row

MIN_IN_BASELINE = 2


def make_batch(
    groups: Sequence[Group],
    estimator: Estimator,
    *,
    max_tokens: int | None = None,
    solved_at: float = 1.0,
    version: int | None = None,
    sets: Collection[str] = (),
) -> Batch:
    """The rows that a learner gets for these groups. `solved_at` is the reward that counts as solved in the metrics,
    and `sets` are those of a mixture.

    `version` is that of the policy before the update, if known: the metrics say how far tokens lag behind it.
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
    metrics = batch_metrics(groups, scored, solved_at=solved_at, version=version, sets=sets)
    return Batch(rows=rows, metrics=metrics, version=version)


def _baseline(group: Group) -> list[Rollout]:
    """The members to compare with each other, those to learn from first; none if there are too few."""
    members = [rollout for rollout in (*group.rollouts, *group.earlier) if rollout.trust.in_baseline]
    return members if len(members) >= MIN_IN_BASELINE and group.rollouts else []


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
