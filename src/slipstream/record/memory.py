"""The Journal in memory: for tests, and for runs on the virtual clock.

It accepts and refuses the same events as the run store and is read in the same way, without a file, thread or clock:
spans stay in the event loop's time. Only what was flushed can be read, as after a kill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

from slipstream.errors import JournalError
from slipstream.record.ledger import Ledger
from slipstream.record.reader import RunCounts
from slipstream.record.steps import StepRecord, fold_steps
from slipstream.seams import Event, JobAdmitted, JobEvent, LearnerWorked, Measured, RolloutDone, RunEnded, TurnTaken
from slipstream.types import JobKey, Json, Rollout, Turn


class MemoryJournal:
    """`MemoryJournal(fail_after_flushes=3)` keeps what three flushes wrote; every later one raises JournalError."""

    def __init__(self, *, config: Json = None, fail_after_flushes: int | None = None) -> None:
        self.num_flushes = 0
        self._config = config
        self._fail_after_flushes = fail_after_flushes
        self._ledger = Ledger()
        self._pending: list[Event] = []
        self._kept: list[Event] = []
        self._closed = False

    def append(self, event: Event) -> None:
        """Keep `event` for the next flush; JournalError if it contradicts earlier events."""
        if self._closed:
            raise JournalError("the journal in memory is closed: create another")
        if self._ledger.accept(event):
            self._pending.append(event)

    async def flush(self) -> None:
        self._write()
        await asyncio.sleep(0)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            if self._pending:
                self._write()

    def reopened(self) -> MemoryJournal:
        """The journal as a kill would leave it: what was flushed and nothing else."""
        journal = MemoryJournal(config=self._config)
        for event in self._kept:
            journal.append(event)
        journal._write()
        return journal

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def config(self) -> Json:
        return self._config

    def done_keys(self) -> set[JobKey]:
        return {event.rollout.job.key for event in self._kept if isinstance(event, RolloutDone)}

    def rollouts(
        self, with_turns: bool = True, *, phase: str | None = None, step: int | None = None
    ) -> Iterator[Rollout]:
        """Every finished rollout, or those of a phase or step, by job key."""
        done = [event.rollout for event in self._kept if isinstance(event, RolloutDone)]
        for rollout in sorted(done, key=lambda rollout: rollout.job.key):
            key = rollout.job.key
            if phase in (None, key.phase) and step in (None, key.step):
                yield rollout if with_turns else replace(rollout, turns=())

    def steps(self) -> tuple[StepRecord, ...]:
        """Every training step that was planned, in order."""
        return fold_steps(self._kept)

    def measured(self) -> dict[tuple[int, str], dict[str, float]]:
        """Further measurements, by step and kind."""
        found = [event for event in self._kept if isinstance(event, Measured)]
        return {(event.step, event.kind): dict(event.metrics) for event in found}

    def learner_work(self) -> tuple[LearnerWorked, ...]:
        """When the learner was working, in order of start."""
        found = [event for event in self._kept if isinstance(event, LearnerWorked)]
        return tuple(sorted(found, key=lambda event: event.start_s))

    def turns(self, key: JobKey, attempt: int) -> tuple[Turn, ...]:
        """The turns of one attempt that are on record, by index."""
        found: dict[int, Turn] = {}
        for event in self._kept:
            match event:
                case TurnTaken(turn=turn) if (event.key, event.attempt) == (key, attempt):
                    found[turn.index] = turn
                case RolloutDone(rollout=rollout) if (rollout.job.key, rollout.attempt) == (key, attempt):
                    found.update({turn.index: turn for turn in rollout.turns})
        return tuple(found[index] for index in sorted(found))

    def events(self, *, unfinished_only: bool = False) -> Iterator[JobEvent]:
        """Every event of a job in the order it was appended, or only those whose job has no rollout yet."""
        done = self.done_keys() if unfinished_only else set()
        return iter([event for event in self._job_events() if _key(event) not in done])

    def counts(self) -> RunCounts:
        turns: set[tuple[JobKey, int, int]] = set()
        for event in self._kept:
            match event:
                case TurnTaken(key=key, attempt=attempt, turn=turn):
                    turns.add((key, attempt, turn.index))
                case RolloutDone(rollout=rollout):
                    turns.update((rollout.job.key, rollout.attempt, turn.index) for turn in rollout.turns)
        return RunCounts(
            jobs=len({_key(event) for event in self._job_events()}),
            turns=len(turns),
            runs_ended=sum(isinstance(event, RunEnded) for event in self._kept),
            rollouts=sum(isinstance(event, RolloutDone) for event in self._kept),
        )

    def _job_events(self) -> list[JobEvent]:
        return [event for event in self._kept if isinstance(event, JobEvent)]

    def _write(self) -> None:
        if self._fail_after_flushes is not None and self.num_flushes >= self._fail_after_flushes:
            self._pending.clear()
            raise JournalError(f"the journal in memory was told to fail after {self._fail_after_flushes} flushes")
        self.num_flushes += 1
        self._kept += self._pending
        self._pending = []


def _key(event: JobEvent) -> JobKey:
    match event:
        case JobAdmitted(job=job):
            return job.key
        case RolloutDone(rollout=rollout):
            return rollout.job.key
        case TurnTaken(key=key) | RunEnded(key=key):
            return key
