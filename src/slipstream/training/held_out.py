"""What an evaluation on the held-out tasks measured, as it is recorded and read back."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from slipstream.batch.intervals import bootstrap_interval
from slipstream.types import Rollout

HELD_OUT = "held_out"
"""The phase of its jobs, and the kind of its figures."""
Interval: TypeAlias = tuple[float, float]


class Figures(Protocol):
    def measured(self) -> dict[tuple[int, str], dict[str, float]]: ...


def held_out_metrics(rollouts: Sequence[Rollout], *, solved_at: float) -> dict[str, float]:
    """The figures of one evaluation. At least one of the rollouts has a verdict; the others do not count."""
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.verdict is not None:
            rewards[rollout.job.key.task_id].append(rollout.verdict.reward)
    earned = [reward for each in rewards.values() for reward in each]
    low, high = bootstrap_interval(
        [statistics.fmean(reward >= solved_at for reward in each) for each in rewards.values()]
    )
    return {
        "success": statistics.fmean(reward >= solved_at for reward in earned),
        "success/low": low,
        "success/high": high,
        "reward": statistics.fmean(earned),
        "rollouts": float(len(earned)),
    }


def recorded_success(store: Figures) -> tuple[dict[int, float], dict[int, Interval]]:
    """The success by version, and its 95 % intervals over the tasks."""
    found = {version: metrics for (version, kind), metrics in store.measured().items() if kind == HELD_OUT}
    intervals = {
        version: (metrics["success/low"], metrics["success/high"])
        for version, metrics in found.items()
        if "success/low" in metrics
    }
    return {version: metrics["success"] for version, metrics in found.items()}, intervals
