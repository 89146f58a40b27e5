"""Why a rollout ended, and how it may be used in training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Trust(StrEnum):
    """How a rollout may be used in training. TRUST_OF is the only place that maps endings to it."""

    TRUSTED = "trusted"
    MASKED = "masked"
    UNTRUSTED = "untrusted"
    ABSENT = "absent"

    @property
    def graded(self) -> bool:
        """Whether a verdict is required."""
        return self in (Trust.TRUSTED, Trust.MASKED)

    @property
    def in_baseline(self) -> bool:
        """Whether its reward counts in the group's baseline."""
        return self in (Trust.TRUSTED, Trust.MASKED)

    @property
    def in_loss(self) -> bool:
        """Whether its sampled tokens are trained on."""
        return self is Trust.TRUSTED


class EndReason(StrEnum):
    """Why a rollout ended."""

    FINISHED = "finished"
    STUCK = "stuck"
    BROKE_SANDBOX = "broke_sandbox"
    TURN_LIMIT = "turn_limit"
    TOO_LATE = "too_late"
    """Out of turns, if their number is part of the task (`agent.out_of_turns=failed`)."""
    TOKEN_LIMIT = "token_limit"
    TOOL_TIME_LIMIT = "tool_time_limit"
    WAITED = "waited"
    """It ran out of time waiting for the engine or a slot."""
    DEADLINE = "deadline"
    """A deadline of the dispatcher passed."""
    INFRASTRUCTURE = "infrastructure"
    NO_VERDICT = "no_verdict"
    """It ended well, but the grader failed."""
    CANCELLED = "cancelled"

    @property
    def trust(self) -> Trust:
        return TRUST_OF[self]


TRUST_OF: Mapping[EndReason, Trust] = {
    EndReason.FINISHED: Trust.TRUSTED,
    EndReason.STUCK: Trust.TRUSTED,
    EndReason.BROKE_SANDBOX: Trust.TRUSTED,
    EndReason.TOO_LATE: Trust.TRUSTED,
    EndReason.TURN_LIMIT: Trust.MASKED,
    EndReason.TOKEN_LIMIT: Trust.MASKED,
    EndReason.TOOL_TIME_LIMIT: Trust.MASKED,
    EndReason.WAITED: Trust.UNTRUSTED,
    EndReason.DEADLINE: Trust.UNTRUSTED,
    EndReason.INFRASTRUCTURE: Trust.UNTRUSTED,
    EndReason.NO_VERDICT: Trust.UNTRUSTED,
    EndReason.CANCELLED: Trust.ABSENT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the agent's part ended: `Ending(reason=EndReason.FINISHED, answer="42")`."""

    reason: EndReason
    answer: str | None = None
    detail: str = ""
