"""Checks that an event may be appended: one that contradicts earlier events is refused.

Every journal checks with its ledger first, so a wrong event fails where it is appended and does no further harm.
Invariants: one RolloutDone per job, one TurnTaken per (job, attempt, index), one RunEnded per (job, attempt), and a
rollout's turns are those that were taken. A step is planned, perhaps again with more jobs, then its batch is taken,
then it is done. Only unfinished jobs use memory here; of a finished one the key is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from slipstream.errors import JournalError
from slipstream.record.codec import encode_turn
from slipstream.record.steps import StepRecord
from slipstream.seams import (
    BatchTaken,
    Event,
    JobAdmitted,
    LearnerWorked,
    Measured,
    RolloutDone,
    RunEnded,
    StepDone,
    StepEvent,
    StepPlanned,
    TurnTaken,
)
from slipstream.types import Job, JobKey, Rollout, Turn


@dataclass(slots=True)
class _OpenJob:
    job: Job | None = None
    turns: defaultdict[int, dict[int, Turn]] = field(default_factory=lambda: defaultdict(dict))
    """By attempt and index."""
    ended: set[int] = field(default_factory=set)


class _Steps:
    """The state of every training step: planned, batch taken, done, in that order, the last two once."""

    _ORDER = (StepPlanned, BatchTaken, StepDone)

    def __init__(self, known: Iterable[StepRecord]) -> None:
        self._reached = {record.step: 0 + (record.taken is not None) + (record.version is not None) for record in known}

    def accept(self, step: int, kind: type[StepEvent]) -> None:
        reached, place = self._reached.get(step, -1), self._ORDER.index(kind)
        is_longer_plan = place == reached == 0
        if place != reached + 1 and not is_longer_plan:
            was = "nothing" if reached < 0 else self._ORDER[reached].__name__
            raise JournalError(f"step {step}: {kind.__name__} comes after {was}")
        self._reached[step] = place


class Ledger:
    """The state of every job, as far as it decides which events may follow."""

    def __init__(
        self, *, done: Iterable[JobKey] = (), events: Iterable[Event] = (), steps: Iterable[StepRecord] = ()
    ) -> None:
        self._done = set(done)
        self._open: dict[JobKey, _OpenJob] = {}
        self._steps = _Steps(steps)
        for event in events:
            self.accept(event)

    def accept(self, event: Event) -> bool:
        """Whether to keep `event`; JournalError if it contradicts earlier events.

        Not kept: the second admission of a job, which a resumed run makes, and what an abandoned attempt still sends
        after its job is done.
        """
        match event:
            case TurnTaken(key=key, attempt=attempt, turn=turn):
                if (known := self._unfinished(key)) is None:
                    return False
                turns = known.turns[attempt]
                if turn.index in turns:
                    raise JournalError(f"turn {turn.index} of attempt {attempt} of job {key} was taken before")
                turns[turn.index] = turn
            case JobAdmitted(job=job):
                return self._admit(job)
            case RunEnded(key=key, attempt=attempt):
                if (known := self._unfinished(key)) is None:
                    return False
                ended = known.ended
                if attempt in ended:
                    raise JournalError(f"the run of attempt {attempt} of job {key} ended before")
                ended.add(attempt)
            case RolloutDone(rollout=rollout):
                self._finish(rollout)
            case StepPlanned(step=step) | BatchTaken(step=step) | StepDone(step=step):
                self._steps.accept(step, type(event))
            case Measured() | LearnerWorked():
                pass
        return True

    def _unfinished(self, key: JobKey) -> _OpenJob | None:
        """None if the job has a rollout."""
        known = self._open.get(key)
        if known is None and key not in self._done:
            known = self._open[key] = _OpenJob()
        return known

    def _admit(self, job: Job) -> bool:
        if (known := self._unfinished(job.key)) is None:
            raise JournalError(f"job {job.key} is admitted, but its rollout is done: skip the keys that are done")
        if known.job is None:
            known.job = job
            return True
        if known.job != job:
            raise JournalError(f"job {job.key} is admitted as {job}, but was admitted as {known.job}")
        return False

    def _finish(self, rollout: Rollout) -> None:
        key = rollout.job.key
        if key in self._done:
            raise JournalError(f"job {key} has a rollout already, and a job has exactly one")
        known = self._open.get(key, _OpenJob())
        if known.job is not None and known.job != rollout.job:
            raise JournalError(f"the rollout of job {key} says {rollout.job}, but {known.job} was admitted")
        turns = known.turns[rollout.attempt]
        for turn in rollout.turns:
            taken = turns.get(turn.index, turn)
            if not _same(taken, turn):
                raise JournalError(
                    f"turn {turn.index} of attempt {rollout.attempt} of job {key} differs from the one that was taken: "
                    "a new try needs a new attempt number"
                )
        if len({turn.index for turn in rollout.turns}) != len(rollout.turns):
            raise JournalError(f"the rollout of job {key} has two turns of one index")
        self._done.add(key)
        self._open.pop(key, None)


def _same(left: Turn, right: Turn) -> bool:
    # Compare the encoded form as well: a NaN among the logprobs never equals itself.
    return left is right or left == right or encode_turn(left) == encode_turn(right)
