"""What crosses the link between the run's own process and a helper, besides the values of `types` and `seams`."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.seams import PastAttempt
from slipstream.types import Job, JobKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a helper opens an attempt from, before the first stage that it does of it."""

    job: Job
    number: int
    past: PastAttempt | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTurn:
    """A turn at the gate, which is asked for together with its model call: one message less."""

    number: int
    """Of this turn, among those of the helper."""
    key: JobKey
    num_context_tokens: int
    nested: bool
