"""The seams that more than one room needs, and what is written through them. Standard library and `types` only.

`Journal` is how any room makes something durable; `TurnGate` is how dispatch can hold an agent between two turns.
Every other Protocol lives in the room that calls it: Placement, Attempt and Policy in `dispatch`, Completer and
ChatModel in `model`, Dialogue in `dialogue`, Tool in `tools`, Runner in `agent`, Sandbox in `sandbox`, Grader in
`graders`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The agent's part of an attempt is over and its artifact is out of the sandbox."""

    key: JobKey
    attempt: int
    ending: Ending
    artifact: Artifact


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDone:
    """The last word on a job. Its turns were written as they were taken, and are not written again."""

    rollout: Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """What a stopped run left of a job without a rollout: its last attempt, which goes on under the same number."""

    attempt: int
    """0 where no attempt left a trace: the job was admitted, and no turn of it was finished."""
    turns: tuple[Turn, ...] = ()
    """Its complete turns, by index."""
    run_ended: RunEnded | None = None
    """Set where the agent's part is over: only grading is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlanned:
    """Which jobs a training step waits for. Written before the first of them is submitted; and again, with those that
    take the place of a group without signal."""

    step: int
    jobs: tuple[JobKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTaken:
    """Which rollouts a step's batch is made of. Written before the learner sees it: nothing is trained on twice."""

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
    """Figures of another kind, such as an evaluation, at a step. One of each kind a step: the last one holds."""

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
    raises JournalError if that cannot be had.
    """

    def append(self, event: Event) -> None: ...

    async def flush(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class TurnPass:
    """What a turn is told when the gate lets it in; by one in another process, when its model call has ended."""

    num_under_way: int
    """Turns under way then, itself included."""
    waited_s: float | None = None
    """How long it was held, if that is not the time it took to come in; infinite: it was never let in."""


class TurnGate(Protocol):
    """Every model call of a rollout happens inside `turn()`, so that a rollout can be paused between two of them. Not
    if it is `nested`: a tool of the agent waits for it, and the tool's time runs."""

    def turn(
        self, key: JobKey, num_context_tokens: int, *, nested: bool = False
    ) -> AbstractAsyncContextManager[TurnPass]: ...
