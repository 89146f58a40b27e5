"""What every Journal of record/ keeps and refuses: run against the store and against the journal in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest
from record_samples import ending, job, job_events, key, rollout, turn

from slipstream.errors import JournalError
from slipstream.record import MemoryJournal, RunCounts, RunStore, StepRecord
from slipstream.seams import (
    BatchTaken,
    Event,
    JobAdmitted,
    Journal,
    LearnerWork,
    LearnerWorked,
    Measured,
    RolloutDone,
    RunEnded,
    StepDone,
    StepPlanned,
    TurnTaken,
)
from slipstream.types import Artifact, Job

AnyJournal: TypeAlias = RunStore | MemoryJournal
Check: TypeAlias = Callable[[AnyJournal], Coroutine[None, None, None]]


@pytest.fixture(params=["store", "memory"])
def on(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Check], None]:
    """Runs a check on a new journal."""

    def run(check: Check) -> None:
        async def opened() -> None:
            if request.param == "store":
                async with RunStore.create(tmp_path / "run", config={"a": 1}, clock_offset_s=0.0) as store:
                    await check(store)
            else:
                async with MemoryJournal(config={"a": 1}) as memory:
                    await check(memory)

        asyncio.run(opened())

    return run


On: TypeAlias = Callable[[Check], None]


def append_all(journal: Journal, events: list[Event]) -> None:
    for event in events:
        journal.append(event)


def test_events_are_read_in_the_order_they_were_appended(on: On) -> None:
    async def check(journal: AnyJournal) -> None:
        first, second = job_events(1), job_events(0)
        woven = [event for pair in zip(first, second, strict=True) for event in pair]
        append_all(journal, woven[:5])
        await journal.flush()
        append_all(journal, woven[5:])
        await journal.flush()
        assert list(journal.events()) == woven

    on(check)


def test_only_what_was_flushed_is_read(on: On) -> None:
    async def check(journal: AnyJournal) -> None:
        append_all(journal, job_events())
        assert list(journal.events()) == []
        await journal.flush()
        assert list(journal.events()) == job_events()

    on(check)


def test_reading_counts_sorts_and_filters(on: On) -> None:
    async def check(journal: AnyJournal) -> None:
        for sample in (10, 9, 2):
            append_all(journal, job_events(sample, num_turns=3))
        unfinished: list[Event] = [JobAdmitted(job=job(5)), TurnTaken(key=key(5), attempt=1, turn=turn())]
        append_all(journal, unfinished)
        await journal.flush()
        assert journal.config() == {"a": 1}
        assert journal.done_keys() == {key(10), key(9), key(2)}
        assert [read.job.key.sample for read in journal.rollouts()] == [2, 9, 10]
        assert [len(read.turns) for read in journal.rollouts()] == [3, 3, 3]
        assert [read.turns for read in journal.rollouts(with_turns=False)] == [(), (), ()]
        assert journal.turns(key(9), 1) == (turn(0), turn(1), turn(2))
        assert journal.turns(key(9), 2) == ()
        assert list(journal.events(unfinished_only=True)) == unfinished
        assert journal.counts() == RunCounts(jobs=4, turns=10, runs_ended=3, rollouts=3)

    on(check)


def test_flushing_nothing_is_fine(on: On) -> None:
    async def check(journal: AnyJournal) -> None:
        await journal.flush()
        await journal.flush()
        assert journal.counts() == RunCounts(jobs=0, turns=0, runs_ended=0, rollouts=0)

    on(check)


def test_a_second_rollout_is_refused_and_spoils_nothing(on: On) -> None:
    async def check(journal: AnyJournal) -> None:
        append_all(journal, job_events())
        with pytest.raises(JournalError, match="job train/0/task/0 has a rollout already"):
            journal.append(RolloutDone(rollout=rollout()))
        await journal.flush()
        with pytest.raises(JournalError, match="exactly one"):
            journal.append(RolloutDone(rollout=rollout()))
        append_all(journal, job_events(1))
        await journal.flush()
        assert journal.done_keys() == {key(0), key(1)}

    on(check)


def test_contradictions_are_refused(on: On) -> None:
    ended = RunEnded(key=key(), attempt=1, ending=ending(), artifact=Artifact())

    async def check(journal: AnyJournal) -> None:
        append_all(journal, [JobAdmitted(job=job()), TurnTaken(key=key(), attempt=1, turn=turn()), ended])
        with pytest.raises(JournalError, match="turn 0 of attempt 1 of job train/0/task/0 was taken before"):
            journal.append(TurnTaken(key=key(), attempt=1, turn=turn()))
        with pytest.raises(JournalError, match="attempt 1 of job train/0/task/0 ended before"):
            journal.append(ended)
        with pytest.raises(JournalError, match="was admitted as"):
            journal.append(JobAdmitted(job=replace(job(), seed=1)))
        with pytest.raises(JournalError, match="was admitted"):
            journal.append(RolloutDone(rollout=replace(rollout(), job=replace(job(), weight=2))))
        with pytest.raises(JournalError, match="a new try needs a new attempt number"):
            journal.append(RolloutDone(rollout=rollout(turns=(turn(token=1),))))
        with pytest.raises(JournalError, match="two turns of one index"):
            journal.append(RolloutDone(rollout=rollout(turns=(turn(), turn()))))
        journal.append(RolloutDone(rollout=rollout(turns=(turn(),))))
        with pytest.raises(JournalError, match="is done"):
            journal.append(JobAdmitted(job=job()))
        await journal.flush()
        assert journal.counts() == RunCounts(jobs=1, turns=1, runs_ended=1, rollouts=1)

    on(check)


def test_the_same_admission_again_is_one_admission(on: On) -> None:
    async def check(journal: AnyJournal) -> None:
        append_all(journal, [JobAdmitted(job=job()), JobAdmitted(job=job())])
        await journal.flush()
        assert list(journal.events()) == [JobAdmitted(job=job())]

    on(check)


def test_what_an_abandoned_attempt_says_after_the_last_word_is_dropped(on: On) -> None:
    async def check(journal: AnyJournal) -> None:
        append_all(journal, job_events())
        journal.append(TurnTaken(key=key(), attempt=1, turn=turn(0, token=99)))
        journal.append(RunEnded(key=key(), attempt=1, ending=ending(), artifact=Artifact()))
        await journal.flush()
        assert list(journal.events()) == job_events()

    on(check)


def test_a_job_need_not_be_admitted(on: On) -> None:
    events: list[Event] = [
        TurnTaken(key=key(), attempt=1, turn=turn()),
        RolloutDone(rollout=replace(rollout(turns=(turn(),)), job=Job(key=key(), seed=5, weight=3))),
    ]

    async def check(journal: AnyJournal) -> None:
        append_all(journal, events)
        await journal.flush()
        assert list(journal.events()) == events

    on(check)


def test_closing_keeps_what_was_appended_and_is_idempotent(on: On) -> None:
    async def check(journal: AnyJournal) -> None:
        append_all(journal, job_events())
        await journal.aclose()
        await journal.aclose()
        assert list(journal.events()) == job_events()
        with pytest.raises(JournalError, match="closed"):
            journal.append(JobAdmitted(job=job(1)))
        await journal.flush()

    on(check)


def test_the_memory_journal_fails_when_told() -> None:
    async def check() -> None:
        journal = MemoryJournal(fail_after_flushes=1)
        journal.append(JobAdmitted(job=job(0)))
        await journal.flush()
        for sample in (1, 2):
            journal.append(JobAdmitted(job=job(sample)))
            with pytest.raises(JournalError, match="told to fail after 1 flushes"):
                await journal.flush()
        await journal.aclose()
        assert list(journal.events()) == [JobAdmitted(job=job(0))]

    asyncio.run(check())


def test_a_step_is_planned_taken_and_done_once_each_and_in_that_order(on: On) -> None:
    async def check(journal: AnyJournal) -> None:
        planned = StepPlanned(step=3, jobs=(key(0), key(1)))
        taken = BatchTaken(step=3, jobs=(key(1),))
        done = StepDone(step=3, version=4, metrics={"loss": 0.5})
        for early in (taken, done):
            with pytest.raises(JournalError, match=r"step 3: .* comes after nothing"):
                journal.append(early)
        append_all(journal, [planned, StepPlanned(step=2, jobs=()), taken])
        await journal.flush()
        assert journal.steps() == (
            StepRecord(step=2, planned=()),
            StepRecord(step=3, planned=(key(0), key(1)), taken=(key(1),)),
        )
        for again in (planned, taken):
            with pytest.raises(JournalError, match=r"step 3: .* comes after BatchTaken"):
                journal.append(again)
        journal.append(done)
        await journal.flush()
        assert journal.steps()[1] == StepRecord(
            step=3, planned=(key(0), key(1)), taken=(key(1),), version=4, metrics={"loss": 0.5}
        )
        assert list(journal.events()) == []

    on(check)


def test_the_last_measurement_of_a_kind_holds(on: On) -> None:
    async def check(journal: AnyJournal) -> None:
        for success in (0.25, 0.5):
            journal.append(Measured(step=0, kind="held_out", metrics={"success": success}))
        journal.append(Measured(step=5, kind="held_out", metrics={"success": 1.0}))
        await journal.flush()
        assert journal.measured() == {(0, "held_out"): {"success": 0.5}, (5, "held_out"): {"success": 1.0}}

    on(check)


def test_rollouts_are_found_by_phase_and_step(on: On) -> None:
    async def check(journal: AnyJournal) -> None:
        append_all(journal, job_events(1))
        await journal.flush()
        wanted = key(1)
        assert [one.job.key for one in journal.rollouts(phase=wanted.phase, step=wanted.step)] == [wanted]
        assert list(journal.rollouts(phase="another")) == []
        assert list(journal.rollouts(step=wanted.step + 1)) == []

    on(check)


def test_a_reopened_run_knows_how_far_its_steps_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with RunStore.create(tmp_path / "run", config={}) as store:
            append_all(store, [StepPlanned(step=0, jobs=()), BatchTaken(step=0, jobs=())])
        async with RunStore.open(tmp_path / "run") as store:
            with pytest.raises(JournalError, match="step 0: BatchTaken comes after BatchTaken"):
                store.append(BatchTaken(step=0, jobs=()))
            store.append(StepDone(step=0, version=1, metrics={}))

    asyncio.run(main())
    assert RunStore.read(tmp_path / "run").steps() == (StepRecord(step=0, planned=(), taken=(), version=1, metrics={}),)


def test_the_learners_work_is_read_in_order_of_start_and_may_be_done_again(on: On) -> None:
    work = [
        LearnerWorked(step=1, work=LearnerWork.CHECKPOINT, start_s=6.0, end_s=7.0),
        LearnerWorked(step=0, work=LearnerWork.UPDATE, start_s=1.0, end_s=2.5),
        LearnerWorked(step=0, work=LearnerWork.UPDATE, start_s=4.0, end_s=5.0),
    ]

    async def check(journal: AnyJournal) -> None:
        append_all(journal, list(work))
        assert journal.learner_work() == ()
        await journal.flush()
        assert journal.learner_work() == (work[1], work[2], work[0])
        assert list(journal.events()) == []

    on(check)
