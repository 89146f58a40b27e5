"""What a learner gets, and what it answers."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from slipstream.types.ids import TokenIds
from slipstream.types.rollouts import ForkReason, JobKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One merged token sequence of a rollout.

    Everything that was not sampled by the policy carries mask 0, logprob 0.0 and version -1. So does, in a sample that
    forks off, what was sampled before the fork: it is trained on in the sample it stems from.
    """

    key: JobKey
    branch: int
    """The branch of its last turn."""
    ids: TokenIds
    mask: array[int]
    logprobs: array[float]
    versions: array[int]
    turns: tuple[int, ...]
    """The turns whose samples it holds, by index."""
    num_truncated: int = 0
    """Sampled tokens that were cut off its end, whole turns at a time."""
    fork: ForkReason | None = None
    """Why it is a sample of its own; None for the one that the rollout began with."""

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.mask), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise ValueError(f"per-token lengths differ: {sorted(lengths)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A sample as a learner gets it."""

    sample: Sample
    advantage: float
    in_loss: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    rows: tuple[Row, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    version: int | None = None
    """The policy's version that the update starts from; None if the trainer does not say. Older tokens are off
    policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """The result of an update: the policy's version after it, and its metrics."""

    version: int
    metrics: Mapping[str, float] = field(default_factory=dict)
