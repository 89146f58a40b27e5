"""Success on held-out tasks, of all of them and of each set of a mixture. Pure: rollouts and recorded figures in."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from slipstream.batch.intervals import bootstrap_interval
from slipstream.types import Rollout, set_of

HELD_OUT = "held_out"
Interval: TypeAlias = tuple[float, float]
Recorded: TypeAlias = Mapping[tuple[int, str], Mapping[str, float]]
"""Figures of a run, by version and kind."""


def held_out_figures(rollouts: Sequence[Rollout], *, solved_at: float, sets: Sequence[str] = ()) -> dict[str, float]:
    """Of the rollouts with a verdict. `set/NAME/` begins the figures of a set; a set without a verdict has none."""
    found = _figures(rollouts, solved_at)
    for name in sets:
        own = [rollout for rollout in rollouts if set_of(rollout.job.key.task_id, sets) == name]
        found |= {f"set/{name}/{key}": value for key, value in _figures(own, solved_at).items()}
    return found


def _figures(rollouts: Iterable[Rollout], solved_at: float) -> dict[str, float]:
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.verdict is not None:
            rewards[rollout.job.key.task_id].append(rollout.verdict.reward)
    if not rewards:
        return {}
    earned = [reward for each in rewards.values() for reward in each]
    low, high = bootstrap_interval(
        [statistics.fmean(float(reward >= solved_at) for reward in each) for each in rewards.values()]
    )
    return {
        "success": statistics.fmean(float(reward >= solved_at) for reward in earned),
        "success/low": low,
        "success/high": high,
        "reward": statistics.fmean(earned),
        "rollouts": float(len(earned)),
    }


def recorded_success(measured: Recorded) -> tuple[dict[int, float], dict[int, Interval]]:
    """The success by version, and its 95 % intervals over the tasks."""
    found = {version: metrics for (version, kind), metrics in measured.items() if kind == HELD_OUT}
    intervals = {
        version: (metrics["success/low"], metrics["success/high"])
        for version, metrics in found.items()
        if "success/low" in metrics
    }
    return {version: metrics["success"] for version, metrics in found.items()}, intervals


def success_by_set(measured: Recorded) -> dict[str, dict[int, float]]:
    """Success on the held-out tasks of each set of a mixture, by version."""
    found: dict[str, dict[int, float]] = {}
    for (version, kind), metrics in sorted(measured.items()):
        for key, value in metrics.items() if kind == HELD_OUT else ():
            if key.startswith("set/") and key.endswith("/success"):
                found.setdefault(key.removeprefix("set/").removesuffix("/success"), {})[version] = value
    return found
