"""Intervals for means of rewards."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence


def bootstrap_interval(
    means: Sequence[float], *, num_resamples: int = 2_000, coverage: float = 0.95
) -> tuple[float, float]:
    """A percentile interval for the mean over tasks: rollouts of one task are not independent, tasks are."""
    chance = random.Random(0)
    resampled = sorted(statistics.fmean(chance.choices(means, k=len(means))) for _ in range(num_resamples))
    tail = (1.0 - coverage) / 2
    return resampled[int(tail * num_resamples)], resampled[min(num_resamples - 1, int((1 - tail) * num_resamples))]
