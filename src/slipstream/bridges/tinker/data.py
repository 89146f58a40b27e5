"""Rows as what the Tinker API learns from. Pure.

Input: the rows of a batch, or demonstrations. Output: one Datum for each row that has something to learn from.
Invariants: place i of every field is about the token that follows `inputs[i]`; so a row of n tokens is a datum of n - 1
places, and its first token, which follows nothing, is never a target. Advantages, logprobs and weights are those of the
row where it is trained on, and 0 elsewhere.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from slipstream.engine.training.step_plan import Masked
from slipstream.errors import ConfigError
from slipstream.types import Row, TokenIds, token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Datum:
    rollout: Hashable
    """Which rollout it is of: the datums of one stay together."""
    inputs: TokenIds
    targets: TokenIds
    logprobs: array[float]
    """Of the targets when they were sampled."""
    advantages: array[float]
    weights: array[float]
    """1 for the targets that are trained on."""
    versions: array[int] | None = None
    """Of the policy that sampled the targets; None if no policy of this run did."""

    def __post_init__(self) -> None:
        fields = (self.inputs, self.targets, self.logprobs, self.advantages, self.weights)
        lengths = {len(each) for each in fields} | ({len(self.versions)} if self.versions is not None else set())
        if len(lengths) != 1:
            raise ValueError(f"per-token lengths differ: {sorted(lengths)}")

    @property
    def num_trained(self) -> int:
        return int(sum(self.weights))


def to_datums(rows: Iterable[Row]) -> list[Datum]:
    """Of the rows that are in the loss and have a token to train on, in their order."""
    made = []
    for place, row in enumerate(rows):
        sample = row.sample
        if not row.in_loss or not any(sample.mask[1:]):
            continue
        if not math.isfinite(row.advantage):
            raise ConfigError(f"row {place} ({sample.key}) has an advantage of {row.advantage}: give a number")
        weights = array("f", sample.mask[1:])
        logprobs = array(
            "f", [kept if weight else 0.0 for kept, weight in zip(sample.logprobs[1:], weights, strict=True)]
        )
        if not all(map(math.isfinite, logprobs)):
            raise ConfigError(
                f"row {place} ({sample.key}) has a sampled logprob that is not a number: check the server"
            )
        made.append(
            Datum(
                rollout=sample.key,
                inputs=sample.ids[:-1],
                targets=sample.ids[1:],
                logprobs=logprobs,
                advantages=array("f", [row.advantage * weight for weight in weights]),
                weights=weights,
                versions=sample.versions[1:],
            )
        )
    return made


def demonstration_datums(samples: Iterable[Masked]) -> list[Datum]:
    """The same for demonstrations: every sample is a rollout of its own."""
    made = []
    for place, sample in enumerate(samples):
        if not any(sample.mask[1:]):
            continue
        ids, weights = token_ids(sample.ids), array("f", sample.mask[1:])
        nothing = array("f", bytes(weights.itemsize * len(weights)))
        made.append(
            Datum(
                rollout=place,
                inputs=ids[:-1],
                targets=ids[1:],
                logprobs=nothing,
                advantages=nothing,
                weights=weights,
            )
        )
    return made
