"""The interfaces that several packages need, and what is written through them. Standard library and `types` only.

`Journal` is how any package makes something durable; `TurnGate` is how dispatch holds an agent between two turns.
Every other Protocol lives in the package that calls it: Placement, Attempt and SchedulingPolicy in `dispatch`,
Completer and ChatModel in `model`, Dialogue in `dialogue`, Tool in `tools`, Runner in `agent`, Sandbox in `sandbox`,
Grader in `graders`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

from slipstream.types import Artifact, Ending, Job, JobKey, Rollout, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAdmitted:
    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTaken:
    key: JobKey
    attempt: int
    turn: Turn
    columns: tuple[int | str | bytes | None, ...] | None = field(default=None, compare=False, repr=False)
    """The turn as the run store keeps it, if it was encoded where it was taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The agent's part of an attempt is over and its artifact is out of the sandbox."""

    key: JobKey
    attempt: int
    ending: Ending
    artifact: Artifact


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDone:
    """The result of a job. Its turns were written as they were taken, and are not written again."""

    rollout: Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """What a stopped run left of a job without a rollout: its last attempt, which is resumed under the same number."""

    attempt: int
    """0 if no attempt left a trace: the job was admitted, and no turn of it was finished."""
    turns: tuple[Turn, ...] = ()
    """Its complete turns, by index."""
    run_ended: RunEnded | None = None
    """Set if the agent's part is over: only grading is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlanned:
    """Which jobs a training step waits for. Written before the first of them is submitted, and again when a group
    without signal is replaced."""

    step: int
    jobs: tuple[JobKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTaken:
    """Which rollouts a step's batch is made of. Written before the learner sees it, so nothing is trained on twice."""

    step: int
    jobs: tuple[JobKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """The learner has made an update of the batch: `version` is that of the policy after it."""

    step: int
    version: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Other figures, such as of an evaluation, at a step. The last one of a kind and step counts."""

    step: int
    kind: str
    metrics: Mapping[str, float]


class LearnerWork(StrEnum):
    UPDATE = "update"
    """From a batch's groups to the new weights in the engine."""
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerWorked:
    """A stretch in which the learner was at work, on the clock of spans. An update made again leaves another."""

    step: int
    work: LearnerWork
    start_s: float
    end_s: float


JobEvent: TypeAlias = JobAdmitted | TurnTaken | RunEnded | RolloutDone
StepEvent: TypeAlias = StepPlanned | BatchTaken | StepDone | Measured | LearnerWorked
Event: TypeAlias = JobEvent | StepEvent


class Journal(Protocol):
    """The run's memory.

    `append` never blocks and keeps the order; `flush` returns once everything appended before it is durable, and
    raises JournalError if that is impossible.
    """

    def append(self, event: Event) -> None: ...

    async def flush(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class TurnPass:
    """What the gate says of a turn when it admits it; a gate in another process, once the model call has ended."""

    num_under_way: int
    """Turns under way then, itself included."""
    waited_s: float = 0.0
    """How long the gate held it, which a busy machine does not lengthen; infinite if it was never admitted."""
    num_sampled: int = 0
    """Set by whoever made the model call: the tokens of its reply."""


class TurnGate(Protocol):
    """Every model call of a rollout happens inside `turn()`, so that a rollout can be paused between two of them. A
    `nested` call is never held: a tool waits for it, on its own clock."""

    def turn(
        self, key: JobKey, num_context_tokens: int, *, nested: bool = False
    ) -> AbstractAsyncContextManager[TurnPass]: ...
