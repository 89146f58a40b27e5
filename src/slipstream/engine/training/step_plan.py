"""What every learner trains on, and which rows each optimiser step gets. Pure: importing it loads no torch."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from typing import Protocol


class Masked(Protocol):
    """What supervised training takes: a `Sample`, or anything else with ids and a mask of the same length."""

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def mask(self) -> Sequence[int]: ...


def deal_out(rollouts: Sequence[Hashable], num_minibatches: int, chance: random.Random) -> list[list[int]]:
    """Which rows each optimiser step of an epoch gets, by place; `rollouts` says which rollout each row is of.

    All rows of a rollout are in the same step, and steps have as many rollouts as each other, or one more. There are
    fewer steps if there are fewer rollouts. One step has the rows in their order, and nothing is drawn for it.
    """
    places: dict[Hashable, list[int]] = {}
    for place, rollout in enumerate(rollouts):
        places.setdefault(rollout, []).append(place)
    dealt = list(places.values())
    num_steps = min(num_minibatches, len(dealt))
    if num_steps > 1:
        chance.shuffle(dealt)
    return [[place for rollout in dealt[number::num_steps] for place in rollout] for number in range(num_steps)]
