"""A new run that begins with what another has: how an evaluation is repeated where infrastructure failed, and how a
training run moves to another machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Set
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

from slipstream.record.lock import RunLock
from slipstream.record.reader import RunReader
from slipstream.record.schema import create_database
from slipstream.record.steps import StepRecord
from slipstream.record.writer import EventWriter
from slipstream.seams import BatchTaken, Event, JobAdmitted, JobEvent, Measured, RolloutDone, StepDone, StepPlanned
from slipstream.types import JobKey, Json, Verdict

_EVENTS_AT_ONCE = 1_000
"""In memory, and in one transaction."""


def copy_jobs(source: RunReader, folder: Path, *, config: Json, keys: Set[JobKey]) -> None:
    """A run in the empty folder `folder`, with all that `source` has of these jobs: turns, artifacts, rollouts."""
    lock = RunLock(folder)
    try:
        with closing(create_database(folder, config=config, created_s=time.time())) as connection:
            writer = EventWriter(connection, clock_offset_s=0.0)  # what a reader gives is in epoch seconds already
            events = (event for event in source.events() if _key_of(event) in keys)
            while batch := list(islice(events, _EVENTS_AT_ONCE)):
                writer.write(batch)
    finally:
        lock.release()


def copy_steps(source: RunReader, folder: Path, *, version: int) -> None:
    """A run in the empty folder `folder`, with what a training run needs to continue from its checkpoint of `version`:
    the plans of its steps, and of those before the checkpoint their batches, metrics and rewards. Turns and spans are
    left out. Jobs of a later step are done again, under the same plan."""
    lock = RunLock(folder)
    try:
        with closing(create_database(folder, config=source.config(), created_s=source.created_s())) as connection:
            writer = EventWriter(connection, clock_offset_s=0.0)
            for (step, kind), metrics in source.measured().items():
                writer.write([Measured(step=step, kind=kind, metrics=metrics)])
            for record in source.steps():
                writer.write(list(_events_of_step(source, record, is_done=record.step < version)))
    finally:
        lock.release()


def _events_of_step(source: RunReader, record: StepRecord, *, is_done: bool) -> Iterator[Event]:
    yield StepPlanned(step=record.step, jobs=record.planned)
    if not is_done or record.taken is None or record.version is None:
        return
    planned = {*record.planned}
    for rollout in source.rollouts(with_turns=False, step=record.step):
        if rollout.job.key in planned:
            verdict = rollout.verdict
            bare = None if verdict is None else Verdict(reward=verdict.reward)
            yield RolloutDone(rollout=replace(rollout, turns=(), spans=(), failures=(), verdict=bare))
    yield BatchTaken(step=record.step, jobs=record.taken)
    yield StepDone(step=record.step, version=record.version, metrics=record.metrics or {})


def _key_of(event: JobEvent) -> JobKey:
    match event:
        case JobAdmitted(job=job):
            return job.key
        case RolloutDone(rollout=rollout):
            return rollout.job.key
        case _:
            return event.key
