"""How far getting a model is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`Progress(doing="downloading", num_done=1_000_000, num_total=93_000_000)`, in bytes."""

    doing: str
    num_done: int
    num_total: int


OnProgress = Callable[[Progress], None]


def quiet(progress: Progress) -> None:
    """For callers that want no display."""
