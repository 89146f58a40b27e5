"""The progress of getting a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchProgress:
    """`FetchProgress(doing="downloading", num_done=1_000_000, num_total=93_000_000)`, in bytes."""

    doing: str
    num_done: int
    num_total: int


OnProgress = Callable[[FetchProgress], None]


def quiet(progress: FetchProgress) -> None:
    """For callers that want no display."""
