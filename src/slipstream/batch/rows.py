"""Groups to a batch: trust, advantages, samples, and the metrics that explain them.

Always holds: what a rollout may teach is its ending's trust (`types.TRUST_OF`) and nothing else. Untrusted rollouts are
in no baseline and in no row; those that hit a limit of their own count in the baseline and are rows outside the loss.
A group with fewer than two members in the baseline is dropped and counted.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from slipstream.batch.advantages import Estimator
from slipstream.batch.merge import merge
from slipstream.types import Batch, Group, Rollout, Row, Trust

FEWEST_IN_BASELINE = 2


def make_batch(groups: Sequence[Group], estimator: Estimator, *, max_tokens: int | None = None) -> Batch:
    """The rows that a learner gets for these groups."""
    members = [[rollout for rollout in group.rollouts if rollout.trust.in_baseline] for group in groups]
    kept = [group for group in members if len(group) >= FEWEST_IN_BASELINE]
    advantages = estimator([[_reward(rollout) for rollout in group] for group in kept])
    rows: list[Row] = []
    num_truncated = 0
    for group, values in zip(kept, advantages, strict=True):
        for rollout, advantage in zip(group, values, strict=True):
            merged = merge(rollout, max_tokens=max_tokens)
            num_truncated += merged.num_truncated
            rows += [
                Row(sample=sample, advantage=advantage, in_loss=rollout.trust.in_loss) for sample in merged.samples
            ]
    return Batch(rows=tuple(rows), metrics=_metrics(groups, kept, rows, num_truncated))


def _reward(rollout: Rollout) -> float:
    assert rollout.verdict is not None, "a rollout in the baseline has a verdict: the type refuses anything else"
    return rollout.verdict.reward


def _metrics(
    groups: Sequence[Group], kept: Sequence[Sequence[Rollout]], rows: Sequence[Row], num_truncated: int
) -> dict[str, float]:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    rewards = [rollout.verdict.reward for rollout in rollouts if rollout.verdict is not None]
    trusts = Counter(rollout.trust for rollout in rollouts)
    endings = Counter(rollout.ending.reason for rollout in rollouts)
    flat = sum(len({_reward(rollout) for rollout in group}) == 1 for group in kept)
    return {
        "groups": len(groups),
        "groups_dropped": len(groups) - len(kept),
        "groups_without_signal": flat,
        "rollouts": len(rollouts),
        **{f"rollouts_{trust}": trusts[trust] for trust in Trust},
        **{f"ended_{reason}": number for reason, number in sorted(endings.items())},
        **({"reward_mean": statistics.fmean(rewards)} if rewards else {}),
        "samples": len(rows),
        "samples_in_loss": sum(row.in_loss for row in rows),
        "forks": sum(max(0, len({turn.branch for turn in rollout.turns}) - 1) for rollout in rollouts),
        "tokens": sum(len(row.sample.ids) for row in rows),
        "tokens_in_loss": sum(sum(row.sample.mask) for row in rows if row.in_loss),
        "tokens_truncated": num_truncated,
    }
