"""Reads a run from its folder: config, jobs, turns, rollouts, events and samples of the machine.

Each call opens its own connection and sees one consistent, committed state, so any number of readers, in any process or
thread, may read while the run is written; nothing stays open between calls. A damaged file is a ConfigError. Spans and
samples are in epoch seconds.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from slipstream.errors import ConfigError
from slipstream.record.codec import (
    JOB_COLUMNS,
    KEY_COLUMNS,
    TURN_COLUMNS,
    decode_job,
    decode_key,
    decode_keys,
    decode_rollout,
    decode_run,
    decode_turn,
    encode_key,
    turn_indexes,
)
from slipstream.record.hardware import CpuSample, GpuSample, HardwareSample
from slipstream.record.schema import check_database, has_column, has_table, reading
from slipstream.record.steps import StepRecord
from slipstream.seams import JobAdmitted, JobEvent, LearnerWork, LearnerWorked, RolloutDone, RunEnded, TurnTaken
from slipstream.types import EngineWork, JobKey, Json, Rollout, Turn

_ROLLOUTS = (
    f"SELECT rollouts.seq, rollouts.job, attempt, body, {JOB_COLUMNS} FROM rollouts JOIN jobs ON jobs.id = rollouts.job"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounts:
    """How many of each there are in a run store."""

    jobs: int
    turns: int
    runs_ended: int
    rollouts: int


class RunReader:
    """A run on disk: `RunReader(Path("runs/demo-20261115-174530")).done_keys()`."""

    def __init__(self, folder: Path) -> None:
        check_database(folder)
        self.folder = folder

    def config(self) -> Json:
        return self._meta("config")

    def created_s(self) -> float:
        """When the run began, in epoch seconds."""
        created_s = self._meta("created_s")
        if not isinstance(created_s, float):
            raise ConfigError(f"{self.folder} has {created_s!r} as the time it was created: restore it from a copy")
        return created_s

    def done_keys(self) -> set[JobKey]:
        with reading(self.folder) as connection:
            return {
                decode_key(row)
                for row in connection.execute(f"SELECT {KEY_COLUMNS} FROM rollouts JOIN jobs ON jobs.id = rollouts.job")
            }

    def rollouts(
        self, with_turns: bool = True, *, phase: str | None = None, step: int | None = None
    ) -> Iterator[Rollout]:
        """Every finished rollout, or those of a phase or step, by job key."""
        with reading(self.folder) as connection:
            for row in connection.execute(
                f"{_ROLLOUTS} WHERE phase = coalesce(?, phase) AND step = coalesce(?, step) ORDER BY {KEY_COLUMNS}",
                (phase, step),
            ):
                yield _rollout(connection, row, with_turns=with_turns)[1]

    def steps(self) -> tuple[StepRecord, ...]:
        """Every training step that was planned, in order."""
        with reading(self.folder) as connection:
            return tuple(
                StepRecord(
                    step=step,
                    planned=decode_keys(planned),
                    taken=None if taken is None else decode_keys(taken),
                    version=version,
                    metrics=None if metrics is None else json.loads(metrics),
                )
                for step, planned, taken, version, metrics in connection.execute(
                    "SELECT step, planned, taken, version, metrics FROM steps ORDER BY step"
                )
            )

    def measured(self) -> dict[tuple[int, str], dict[str, float]]:
        """Further measurements, by step and kind."""
        with reading(self.folder) as connection:
            return {
                (step, kind): json.loads(metrics)
                for step, kind, metrics in connection.execute("SELECT step, kind, metrics FROM measured")
            }

    def learner_work(self) -> tuple[LearnerWorked, ...]:
        """When the learner was working, in order of start; empty for a run that did not record it."""
        with reading(self.folder) as connection:
            if not has_table(connection, "learner_work"):
                return ()
            return tuple(
                LearnerWorked(step=step, work=LearnerWork(work), start_s=start_s, end_s=end_s)
                for step, work, start_s, end_s in connection.execute(
                    "SELECT step, work, start_s, end_s FROM learner_work ORDER BY start_s"
                )
            )

    def hardware(self) -> Iterator[HardwareSample]:
        """Every sample of the machine, in order of time; empty for a run that did not record them."""
        with reading(self.folder) as connection:
            if has_table(connection, "cpu_samples") and has_table(connection, "gpu_samples"):
                yield from _samples(connection)

    def turns(self, key: JobKey, attempt: int) -> tuple[Turn, ...]:
        """The turns of one attempt that are on record, by index."""
        with reading(self.folder) as connection:
            rows = connection.execute(
                f"SELECT {TURN_COLUMNS} FROM turns JOIN jobs ON jobs.id = turns.job "
                "WHERE phase = ? AND step = ? AND task_id = ? AND sample = ? AND attempt = ? ORDER BY turn",
                (*encode_key(key), attempt),
            )
            return tuple(decode_turn(row) for row in rows)

    def events(self, *, unfinished_only: bool = False) -> Iterator[JobEvent]:
        """Every event of a job in the order it was appended, or only those whose job has no rollout yet."""
        with reading(self.folder) as connection:
            streams = [
                _admissions(connection, unfinished_only),
                _turns_taken(connection, unfinished_only),
                _runs_ended(connection, unfinished_only),
            ]
            if not unfinished_only:
                streams.append(_rollouts_done(connection))
            for _, event in merge(*streams, key=itemgetter(0)):
                yield event

    def counts(self) -> RunCounts:
        with reading(self.folder) as connection:
            jobs, turns, runs_ended, rollouts = (
                connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("jobs", "turns", "artifacts", "rollouts")
            )
        return RunCounts(jobs=jobs, turns=turns, runs_ended=runs_ended, rollouts=rollouts)

    def _meta(self, key: str) -> Json:
        with reading(self.folder) as connection:
            row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            if row is None:
                raise ValueError(f"meta has no {key}")
            value: Json = json.loads(row[0])
            return value


_CPU_FIELDS = ("percent", "cores", "own_cores", "helper_cores")
_WORK_FIELDS = ("num_steps", "num_rows", "num_held", "num_prompt", "seconds", "cpu_s")
_WORK, _CPU = -2, -1
"""Stands for a GPU's number in rows that are not about a GPU."""


def _samples(connection: sqlite3.Connection) -> Iterator[HardwareSample]:
    helpers = "helper_cores" if has_column(connection, "cpu_samples", "helper_cores") else "0.0"
    tables = [
        f"SELECT at_s, seconds, {_CPU}, percent, cores, own_cores, {helpers} FROM cpu_samples ORDER BY at_s",
        "SELECT at_s, seconds, gpu, percent, memory_mb FROM gpu_samples ORDER BY at_s, gpu",
    ]
    if has_table(connection, "engine_work"):
        tables.append(
            f"SELECT at_s, seconds, {_WORK}, num_steps, num_rows, num_held, num_prompt, took_s, cpu_s FROM engine_work "
            "ORDER BY at_s"
        )
    merged = merge(*(connection.execute(table) for table in tables), key=itemgetter(0, 2))
    for (at_s, seconds), rows in groupby(merged, key=itemgetter(0, 1)):
        cpu: CpuSample | None = None
        gpus: list[GpuSample] = []
        work: list[EngineWork] = []
        for _, _, what, *values in rows:
            if what == _WORK:
                work.append(EngineWork(**dict(zip(_WORK_FIELDS, values, strict=True))))
            elif what == _CPU:
                cpu = CpuSample(**dict(zip(_CPU_FIELDS, values, strict=True)))
            else:
                gpus.append(GpuSample(gpu=what, percent=values[0], memory_mb=values[1]))
        yield HardwareSample(at_s=at_s, seconds=seconds, cpu=cpu, gpus=tuple(gpus), work=tuple(work))


def _unless_done(unfinished_only: bool, job: str) -> str:
    return f"AND {job} NOT IN (SELECT job FROM rollouts)" if unfinished_only else ""


def _admissions(connection: sqlite3.Connection, unfinished_only: bool) -> Iterator[tuple[int, JobEvent]]:
    for seq, *job in connection.execute(
        f"SELECT seq, {JOB_COLUMNS} FROM jobs "
        f"WHERE seq IS NOT NULL {_unless_done(unfinished_only, 'jobs.id')} ORDER BY seq"
    ):
        yield seq, JobAdmitted(job=decode_job(job))


def _turns_taken(connection: sqlite3.Connection, unfinished_only: bool) -> Iterator[tuple[int, JobEvent]]:
    for seq, attempt, *columns in connection.execute(
        f"SELECT turns.seq, attempt, {KEY_COLUMNS}, {TURN_COLUMNS} FROM turns JOIN jobs ON jobs.id = turns.job "
        f"WHERE is_event {_unless_done(unfinished_only, 'turns.job')} ORDER BY turns.seq"
    ):
        yield seq, TurnTaken(key=decode_key(columns[:4]), attempt=attempt, turn=decode_turn(columns[4:]))


def _runs_ended(connection: sqlite3.Connection, unfinished_only: bool) -> Iterator[tuple[int, JobEvent]]:
    for seq, *key, attempt, body in connection.execute(
        f"SELECT artifacts.seq, {KEY_COLUMNS}, attempt, body FROM artifacts JOIN jobs ON jobs.id = artifacts.job "
        f"WHERE true {_unless_done(unfinished_only, 'artifacts.job')} ORDER BY artifacts.seq"
    ):
        ending, artifact = decode_run(body)
        yield seq, RunEnded(key=decode_key(key), attempt=attempt, ending=ending, artifact=artifact)


def _rollouts_done(connection: sqlite3.Connection) -> Iterator[tuple[int, JobEvent]]:
    for row in connection.execute(f"{_ROLLOUTS} ORDER BY rollouts.seq"):
        seq, rollout = _rollout(connection, row, with_turns=True)
        yield seq, RolloutDone(rollout=rollout)


def _rollout(
    connection: sqlite3.Connection,
    row: tuple[Any, ...],
    *,
    with_turns: bool,
) -> tuple[int, Rollout]:
    """The rollout of a row of _ROLLOUTS, and its place among the events; Any, since SQLite's rows are untyped."""
    seq, job_id, attempt, body, *job = row
    turns: tuple[Turn, ...] = ()
    if with_turns:
        rows = connection.execute(f"SELECT {TURN_COLUMNS} FROM turns WHERE job = ? AND attempt = ?", (job_id, attempt))
        by_index = {columns[0]: columns for columns in rows}
        turns = tuple(decode_turn(by_index[index]) for index in turn_indexes(body))
    return seq, decode_rollout(body, job=decode_job(job), attempt=attempt, turns=turns)
