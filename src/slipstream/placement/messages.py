"""Messages between the run's own process and a helper, in addition to the values of `types` and `seams`."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.seams import PastAttempt
from slipstream.types import Job, JobKey


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpec:
    """What a helper opens an attempt from, before its first stage there."""

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
