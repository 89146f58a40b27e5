"""Turns rewards into advantages, one per rollout, shared by all its samples.

Input: the rewards of each group's trusted members. Output: an advantage for each, in the same order.
Invariants: groups have at least two members (see `rows`), so that every baseline includes other rollouts; if all the
rewards that are compared are equal, every advantage is exactly 0; every advantage is finite, in float32 too.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from slipstream.errors import ConfigError

T = TypeVar("T")
Rewards: TypeAlias = Sequence[Sequence[float]]
Estimator: TypeAlias = Callable[[Rewards], list[list[float]]]

MAX_REWARD = 1e30
"""Largest absolute reward. What is computed from it still fits float32, which learners use."""
_TINY = 1e-6


def leave_one_out(groups: Rewards) -> list[list[float]]:
    """Each reward minus the mean of the others in its group: unbiased, not divided by the standard deviation."""
    return [
        [reward - _mean([*rewards[:place], *rewards[place + 1 :]]) for place, reward in enumerate(rewards)]
        for rewards in groups
    ]


def grpo(groups: Rewards) -> list[list[float]]:
    """Each reward minus its group's mean, divided by the group's (population) standard deviation."""
    return [_centred(rewards, scale=statistics.pstdev(rewards) + _TINY) for rewards in groups]


def grpo_sample(groups: Rewards) -> list[list[float]]:
    """Each reward less its group's mean, over the group's sample deviation, which divides by one less than its size."""
    return [_centred(rewards, scale=statistics.stdev(rewards) + _TINY) for rewards in groups]


def dr_grpo(groups: Rewards) -> list[list[float]]:
    """Each reward minus its group's mean, not divided: no bias towards groups whose rewards hardly differ."""
    return [_centred(rewards, scale=1.0) for rewards in groups]


def reinforce(groups: Rewards) -> list[list[float]]:
    """Each reward minus the mean over the whole batch."""
    rewards = [reward for group in groups for reward in group]
    mean = _mean(rewards) if rewards else 0.0
    return [[reward - mean for reward in group] for group in groups]


ESTIMATORS: Mapping[str, Estimator] = {
    "leave_one_out": leave_one_out,
    "grpo": grpo,
    "grpo_sample": grpo_sample,
    "dr_grpo": dr_grpo,
    "reinforce": reinforce,
}


def deal_anew(values: Sequence[T], *, seed: int, step: int) -> list[T]:
    """The values in random order, for the shuffled-rewards control: reproducible for a seed and a step."""
    dealt = list(values)
    random.Random(f"shuffled rewards {seed} {step}").shuffle(dealt)
    return dealt


def _centred(rewards: Sequence[float], *, scale: float) -> list[float]:
    mean = _mean(rewards)
    return [(reward - mean) / scale for reward in rewards]


def _mean(rewards: Sequence[float]) -> float:
    """The mean; for equal rewards exactly their value, which a rounded sum would miss."""
    lowest, highest = min(rewards), max(rewards)
    for reward in (lowest, highest):
        if abs(reward) > MAX_REWARD:
            raise ConfigError(f"a reward of {reward:g} is too large to learn from: keep it within +-{MAX_REWARD:g}")
    return lowest if lowest == highest else statistics.fmean(rewards)
