"""A place in a group, the model calls made for it, and what came of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from slipstream.types.conversation import Message
from slipstream.types.endings import Ending, Trust
from slipstream.types.ids import NO_TOKENS, TokenIds
from slipstream.types.sampling import Sampled


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class JobKey:
    """Names one sample of a task in a step. The attempt's number is not part of it."""

    phase: str
    step: int
    task_id: str
    sample: int

    def __str__(self) -> str:
        return f"{self.phase}/{self.step}/{self.task_id}/{self.sample}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    key: JobKey
    seed: int
    weight: int = 1
    """How many of the sandbox limit's units its sandbox takes; 0 if it has none."""
    group_size: int = 1
    """How many places its group has."""
    memory_mb: int = field(default=0, compare=False)
    """Of its sandbox and of its grader's, where they have one. This and the next follow from the task, so they are no
    part of what a job is, and not on record."""
    cpus: float = field(default=0.0, compare=False)


def job_seed(run_seed: int, key: JobKey) -> int:
    """A seed that depends on the run and on the job alone: the same after a resume, in any order."""
    digest = hashlib.blake2b(f"{run_seed}:{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def turn_seed(seed: int, number: int) -> int:
    """The sampling seed of a job's model call, by the job's seed and the call's number."""
    digest = hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


class ForkReason(StrEnum):
    """Why a turn's prompt does not continue its whole parent."""

    CONTEXT_EDIT = "context_edit"
    """A tool rewrote the conversation."""
    SUB_AGENT = "sub_agent"
    """A conversation of its own, trained on with the rollout."""
    NESTED = "nested"
    """A judge's or a summariser's conversation, never trained on."""
    TEMPLATE = "template"
    """The family's template does not continue what was sampled, so the conversation was rendered again."""
    TRIMMED = "trimmed"
    """The engine sampled past the end of the reply, and what came after it was left out."""
    PARALLEL = "parallel"
    """Its parent was already continued by another turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call.

    The prompt is the first `num_kept` tokens of the parent's prompt and sample, followed by `added`; so no prompt is
    stored twice, and keeping less than the whole parent is a fork. Without a parent the prompt is `added`.

    Example: a parent of 10 tokens in and 4 sampled, then a tool answer of 6 tokens:
    `Turn(index=1, parent=0, num_kept=14, added=<6 ids>, sampled=<...>)`.
    """

    index: int
    branch: int = 0
    parent: int | None = None
    num_kept: int = 0
    added: TokenIds = field(default_factory=lambda: NO_TOKENS)
    sampled: Sampled | None = None
    """None under the chat dialogue, which sees no tokens."""
    messages: tuple[Message, ...] = ()
    """The messages that came in with this turn, then the model's reply."""
    trainable: bool = True
    fork: ForkReason | None = None
    """Why it keeps less than its whole parent, or has none; None if it continues it, or is the first."""


class SpanKind(StrEnum):
    """The kind of a span. docs/spans.md says what each one counts."""

    WAIT_INIT = "wait_init"
    INIT = "init"
    WAIT_RUN = "wait_run"
    RUN = "run"
    RELEASE = "release"
    WAIT_GRADE = "wait_grade"
    GRADE = "grade"
    WAIT_TURN = "wait_turn"
    """Held by the turn gate between two turns."""
    MODEL = "model"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time of one attempt, on the clock of the event loop."""

    kind: SpanKind
    start_s: float
    end_s: float
    attempt: int = 1
    name: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    reward: float
    components: Mapping[str, float] = field(default_factory=dict)
    detail: str = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.reward):
            raise ValueError(f"a reward of {self.reward}: it must be a finite number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An infrastructure failure of one attempt: where, which error, what it said."""

    attempt: int
    stage: str
    error: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The turns of one job, why it ended, and what it was worth."""

    job: Job
    attempt: int
    ending: Ending
    turns: tuple[Turn, ...] = ()
    verdict: Verdict | None = None
    spans: tuple[Span, ...] = ()
    failures: tuple[Failure, ...] = ()

    def __post_init__(self) -> None:
        if (self.verdict is not None) != self.trust.graded:
            raise ValueError(f"a rollout that ended by {self.ending.reason} with verdict {self.verdict}")

    @property
    def trust(self) -> Trust:
        return self.ending.reason.trust


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rollouts of one task in one step, for a baseline."""

    phase: str
    step: int
    task_id: str
    rollouts: tuple[Rollout, ...]
    left_out: tuple[Rollout, ...] = ()
    """Started, but not learnt from: cancelled, surplus, or of a replaced group. Only counted."""
    earlier: tuple[Rollout, ...] = ()
    """Learnt from in an earlier batch: for the baseline alone."""
