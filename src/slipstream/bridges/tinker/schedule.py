"""Which datums each optimiser step gets. Pure; the same seed gives the same order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice

from slipstream.bridges.tinker.data import Datum
from slipstream.engine.training.config import LearnerConfig, WarmStartConfig
from slipstream.engine.training.step_plan import deal_out


def minibatches(datums: Sequence[Datum], config: LearnerConfig, chance: random.Random) -> Iterator[list[Datum]]:
    """The optimiser steps of an update: every epoch distributes the rollouts again. A rollout is never split."""
    rollouts = [datum.rollout for datum in datums]
    for _ in range(config.num_epochs):
        for places in deal_out(rollouts, config.num_minibatches, chance):
            yield [datums[place] for place in places]


def warm_steps(datums: Sequence[Datum], config: WarmStartConfig) -> list[list[Datum]]:
    """The optimiser steps of a warm start, of `tokens_per_step` tokens at most, padding included.

    All but an epoch's last have the same number of datums, since a server may compile for every new number.
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
