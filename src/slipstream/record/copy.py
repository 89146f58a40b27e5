"""A new run that begins with rollouts of another: how an evaluation is repeated where infrastructure failed."""

from __future__ import annotations

import time
from collections.abc import Set
from contextlib import closing
from itertools import islice
from pathlib import Path

from slipstream.record.lock import RunLock
from slipstream.record.reader import RunReader
from slipstream.record.schema import create_database
from slipstream.record.writer import EventWriter
from slipstream.seams import JobAdmitted, JobEvent, RolloutDone
from slipstream.types import JobKey, Json

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


def _key_of(event: JobEvent) -> JobKey:
    match event:
        case JobAdmitted(job=job):
            return job.key
        case RolloutDone(rollout=rollout):
            return rollout.job.key
        case _:
            return event.key
