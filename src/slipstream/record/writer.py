"""Writes events and samples of the machine to a run's database, one transaction per list.

A list is committed completely or not at all, its events numbered in order after all earlier ones. Used by one thread at
a time. The UNIQUE constraints of the tables back up the ledger's checks.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import astuple
from itertools import chain

from slipstream.record.codec import (
    JOB_COLUMNS,
    KEY_COLUMNS,
    TURN_COLUMNS,
    Column,
    encode_job,
    encode_key,
    encode_keys,
    encode_rollout,
    encode_run,
    encode_turn,
)
from slipstream.record.hardware import HardwareSample
from slipstream.seams import (
    BatchTaken,
    Event,
    JobAdmitted,
    LearnerWorked,
    Measured,
    RolloutDone,
    RunEnded,
    StepDone,
    StepPlanned,
    TurnTaken,
)
from slipstream.types import Job, JobKey, Json, Rollout

_NUM_TURN_COLUMNS = TURN_COLUMNS.count(",") + 1
_TURN_VALUES = f"(?, ?, ?, ?, {', '.join('?' * _NUM_TURN_COLUMNS)})"
_TURNS_AT_ONCE = 32
"""Each statement gives the event loop's thread a chance to take the interpreter lock, which is slow to come back."""
_INSERT_TURN = f"INSERT INTO turns (seq, is_event, job, attempt, {TURN_COLUMNS}) VALUES {_TURN_VALUES}"
_INSERT_TURNS = f"{_INSERT_TURN}{f', {_TURN_VALUES}' * (_TURNS_AT_ONCE - 1)}"
_INSERT_KEY = f"""
    INSERT INTO jobs ({KEY_COLUMNS}) VALUES (?, ?, ?, ?)
    ON CONFLICT ({KEY_COLUMNS}) DO UPDATE SET id = id
    RETURNING id
"""
_INSERT_JOB = f"""
    INSERT INTO jobs ({JOB_COLUMNS}, seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT ({KEY_COLUMNS}) DO UPDATE SET
        seed = excluded.seed,
        weight = excluded.weight,
        group_size = excluded.group_size,
        seq = coalesce(seq, excluded.seq)
    RETURNING id
"""


class EventWriter:
    """The writing end of a run's database."""

    def __init__(self, connection: sqlite3.Connection, *, clock_offset_s: float) -> None:
        self._connection = connection
        self._clock_offset_s = clock_offset_s
        self._job_ids: dict[JobKey, int] = {}
        self._turns: list[tuple[Column, ...]] = []
        """Rows of the transaction under way that are not in the table yet."""
        self._last_seq: int = connection.execute(
            "SELECT max((SELECT coalesce(max(seq), 0) FROM jobs), (SELECT coalesce(max(seq), 0) FROM turns), "
            "(SELECT coalesce(max(seq), 0) FROM artifacts), (SELECT coalesce(max(seq), 0) FROM rollouts))"
        ).fetchone()[0]

    def write_config(self, config: Json) -> None:
        """Replace the run's config; durable on return."""
        self._connection.execute("UPDATE meta SET value = ? WHERE key = 'config'", (json.dumps(config),))

    def write(self, events: Sequence[Event], samples: Sequence[HardwareSample] = ()) -> None:
        """Durable on return; after any error none of them is kept."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._turns.clear()
        try:
            for event in events:
                try:
                    self._insert(event)
                except (TypeError, ValueError, OverflowError, RecursionError, AttributeError) as raised:
                    raised.add_note(f"in a {type(event).__name__} of {_subject(event)}")
                    raise
            self._insert_turns()
            for sample in samples:
                self._insert_sample(sample)
            self._connection.execute("COMMIT")
        except BaseException:
            # SQLite ends the transaction by itself on some errors, a full disk among them.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _insert(self, event: Event) -> None:
        match event:
            case TurnTaken(key=key, attempt=attempt, turn=turn, columns=columns):
                self._add_turn(self._job_id(key), attempt, columns or encode_turn(turn), is_event=True)
            case JobAdmitted(job=job):
                self._insert_job(job, self._next_seq())
            case RunEnded(key=key, attempt=attempt, ending=ending, artifact=artifact):
                self._connection.execute(
                    "INSERT INTO artifacts (seq, job, attempt, body) VALUES (?, ?, ?, ?)",
                    (self._next_seq(), self._job_id(key), attempt, encode_run(ending, artifact)),
                )
            case RolloutDone(rollout=rollout):
                self._insert_rollout(rollout)
            case StepPlanned(step=step, jobs=jobs):
                self._connection.execute(
                    "INSERT INTO steps (step, planned) VALUES (?, ?) "
                    "ON CONFLICT (step) DO UPDATE SET planned = excluded.planned",
                    (step, encode_keys(jobs)),
                )
            case BatchTaken(step=step, jobs=jobs):
                self._connection.execute("UPDATE steps SET taken = ? WHERE step = ?", (encode_keys(jobs), step))
            case StepDone(step=step, version=version, metrics=metrics):
                self._connection.execute(
                    "UPDATE steps SET version = ?, metrics = ? WHERE step = ?", (version, json.dumps(metrics), step)
                )
            case Measured(step=step, kind=kind, metrics=metrics):
                self._connection.execute(
                    "INSERT OR REPLACE INTO measured (step, kind, metrics) VALUES (?, ?, ?)",
                    (step, kind, json.dumps(metrics)),
                )
            case LearnerWorked(step=step, work=work, start_s=start_s, end_s=end_s):
                self._connection.execute(
                    "INSERT INTO learner_work (step, work, start_s, end_s) VALUES (?, ?, ?, ?)",
                    (step, work.value, start_s + self._clock_offset_s, end_s + self._clock_offset_s),
                )

    def _insert_sample(self, sample: HardwareSample) -> None:
        at_s, cpu = sample.at_s + self._clock_offset_s, sample.cpu
        if cpu is not None:
            self._connection.execute(
                "INSERT INTO cpu_samples (at_s, seconds, percent, cores, own_cores, helper_cores) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (at_s, sample.seconds, cpu.percent, cpu.cores, cpu.own_cores, cpu.helper_cores),
            )
        self._connection.executemany(
            "INSERT INTO gpu_samples (at_s, seconds, gpu, percent, memory_mb) VALUES (?, ?, ?, ?, ?)",
            [(at_s, sample.seconds, each.gpu, each.percent, each.memory_mb) for each in sample.gpus],
        )
        self._connection.executemany(
            "INSERT INTO engine_work (at_s, seconds, num_steps, num_rows, num_held, num_prompt, took_s, cpu_s) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [(at_s, sample.seconds, *astuple(each)) for each in sample.work],
        )

    def _insert_rollout(self, rollout: Rollout) -> None:
        job_id = self._insert_job(rollout.job, None)
        self._insert_turns()
        rows = self._connection.execute(
            "SELECT turn FROM turns WHERE job = ? AND attempt = ?", (job_id, rollout.attempt)
        )
        taken = {index for (index,) in rows}
        for turn in rollout.turns:
            if turn.index not in taken:
                self._add_turn(job_id, rollout.attempt, encode_turn(turn), is_event=False)
        self._connection.execute(
            "INSERT INTO rollouts (seq, job, attempt, body) VALUES (?, ?, ?, ?)",
            (
                self._next_seq(),
                job_id,
                rollout.attempt,
                encode_rollout(rollout, clock_offset_s=self._clock_offset_s),
            ),
        )
        self._job_ids.pop(rollout.job.key, None)

    def _add_turn(self, job_id: int, attempt: int, columns: tuple[Column, ...], *, is_event: bool) -> None:
        self._turns.append((self._next_seq(), int(is_event), job_id, attempt, *columns))
        if len(self._turns) == _TURNS_AT_ONCE:
            self._connection.execute(_INSERT_TURNS, [*chain.from_iterable(self._turns)])
            self._turns.clear()

    def _insert_turns(self) -> None:
        """What is left of them."""
        self._connection.executemany(_INSERT_TURN, self._turns)
        self._turns.clear()

    def _job_id(self, key: JobKey) -> int:
        """The row of a job, which is made if nothing was known of it."""
        job_id = self._job_ids.get(key)
        if job_id is None:
            job_id = self._job_ids[key] = self._returned_id(_INSERT_KEY, encode_key(key))
        return job_id

    def _insert_job(self, job: Job, seq: int | None) -> int:
        job_id = self._job_ids[job.key] = self._returned_id(_INSERT_JOB, (*encode_job(job), seq))
        return job_id

    def _returned_id(self, statement: str, values: tuple[Column, ...]) -> int:
        returned: int = self._connection.execute(statement, values).fetchone()[0]
        return returned

    def _next_seq(self) -> int:
        self._last_seq += 1
        return self._last_seq


def _subject(event: Event) -> str:
    match event:
        case JobAdmitted(job=job):
            return f"job {job.key}"
        case TurnTaken(key=key) | RunEnded(key=key):
            return f"job {key}"
        case RolloutDone(rollout=rollout):
            return f"job {rollout.job.key}"
        case _:
            return f"step {event.step}"
