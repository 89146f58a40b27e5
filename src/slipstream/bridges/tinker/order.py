"""Which datums each optimiser step gets, and its learning rate. Pure; the same seed gives the same order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice

from slipstream.bridges.tinker.data import Datum
from slipstream.engine.training.config import LearnerConfig, WarmStartConfig


def minibatches(datums: Sequence[Datum], config: LearnerConfig, chance: random.Random) -> Iterator[list[Datum]]:
    """The optimiser steps of an update: every epoch deals the rollouts out anew. A rollout stays whole."""
    for _ in range(config.num_epochs):
        by_rollout: dict[object, list[Datum]] = {}
        for datum in datums:
            by_rollout.setdefault(datum.rollout, []).append(datum)
        dealt = list(by_rollout.values())
        num_steps = min(config.num_minibatches, len(dealt))
        if num_steps > 1:
            chance.shuffle(dealt)
        for number in range(num_steps):
            yield [datum for rollout in dealt[number::num_steps] for datum in rollout]


def warm_steps(datums: Sequence[Datum], config: WarmStartConfig) -> list[list[Datum]]:
    """The optimiser steps of a warm start, of `tokens_per_step` tokens at most, padding included.

    All but an epoch's last are of as many datums, since a server may compile anew for every other number.
    """
    longest = max(len(datum.inputs) for datum in datums)
    return list(islice(_warm_epochs(datums, max(1, config.tokens_per_step // longest), config), config.max_steps))


def _warm_epochs(datums: Sequence[Datum], size: int, config: WarmStartConfig) -> Iterator[list[Datum]]:
    chance = random.Random(config.seed)
    for _ in range(config.num_epochs):
        order = list(datums)
        chance.shuffle(order)
        for first in range(0, len(order), size):
            yield order[first : first + size]


def learning_rate(step: int, config: LearnerConfig) -> float:
    """Of an optimiser step, counted from the beginning of the run. What is trained is always an adapter."""
    rate = config.rate_of("lora")
    if config.decay_steps:
        last = config.decay_steps - 1
        return rate * _height(min(step, last), config.decay_steps, config.warmup_steps)
    return rate * min(1.0, (step + 1) / max(1, config.warmup_steps))


def warm_learning_rate(step: int, num_steps: int, config: WarmStartConfig) -> float:
    return config.learning_rate * _height(step, num_steps, config.warmup_steps)


def _height(step: int, num_steps: int, num_warmup: int) -> float:
    """Up to 1 at the end of the warm-up, then down to 0.1 at the last step."""
    if step < num_warmup:
        return (step + 1) / num_warmup
    return 1 - 0.9 * (step - num_warmup) / max(1, num_steps - 1 - num_warmup)
