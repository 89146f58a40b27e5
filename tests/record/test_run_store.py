"""The run store as a file that processes share, are killed over, and fill up."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from record_samples import ending, job, job_events, key, rollout, turn

from slipstream.errors import ConfigError, JournalError
from slipstream.record import RunCounts, RunStore, plan_resume
from slipstream.seams import Event, JobAdmitted, JobEvent, RolloutDone, RunEnded, TurnTaken
from slipstream.types import Artifact, Ending, EndReason, Job

CHILD = Path(__file__).with_name("journal_child.py")


def make_run(folder: Path, num_jobs: int = 0) -> Path:
    async def write() -> None:
        async with RunStore.create(folder, config={"model": "scripted"}) as store:
            for sample in range(num_jobs):
                for event in job_events(sample):
                    store.append(event)

    asyncio.run(write())
    return folder


def child(mode: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHILD), mode, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def sample_of(event: JobEvent) -> int:
    match event:
        case JobAdmitted(job=job):
            return job.key.sample
        case RolloutDone(rollout=rollout):
            return rollout.job.key.sample
        case TurnTaken(key=key) | RunEnded(key=key):
            return key.sample


class Stall(Mapping[str, str]):
    """A mapping that holds whoever encodes it, so that a commit can be caught under way."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def __getitem__(self, name: str) -> str:
        raise KeyError(name)

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[str]:
        self.reached.set()
        assert self.go_on.wait(60)
        return iter(())

    def event(self, sample: int) -> RunEnded:
        return RunEnded(key=key(sample), attempt=1, ending=ending(), artifact=Artifact(problems=self))

    async def wait_until_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 60)


UNWRITABLE = JobAdmitted(job=Job(key=key(77), seed=2**70))
"""SQLite has no integer of that size, so the transaction it is part of fails."""


# ---------------------------------------------------------------- committing


def test_flushes_that_arrive_during_a_commit_share_the_next_one(tmp_path: Path) -> None:
    async def check() -> None:
        async with RunStore.create(tmp_path / "run", config={}) as store:
            stall = Stall()
            store.append(stall.event(500))
            async with asyncio.TaskGroup() as group:
                group.create_task(store.flush())
                await stall.wait_until_reached()
                for sample in range(200):
                    store.append(JobAdmitted(job=job(sample)))
                    group.create_task(store.flush())
                await asyncio.sleep(0)
                stall.go_on.set()
            assert store.num_commits == 2
            assert store.counts().jobs == 201

    asyncio.run(check())


def test_a_cancelled_flush_writes_all_the_same(tmp_path: Path) -> None:
    async def check() -> None:
        async with RunStore.create(tmp_path / "run", config={}) as store:
            first, second = Stall(), Stall()
            second.go_on.set()
            store.append(first.event(0))
            async with asyncio.TaskGroup() as group:
                group.create_task(store.flush())
                await first.wait_until_reached()
                store.append(second.event(1))
                cancelled = group.create_task(store.flush())
                await asyncio.sleep(0)
                cancelled.cancel()
                first.go_on.set()
                await second.wait_until_reached()
            assert cancelled.cancelled()

    asyncio.run(check())


def test_a_failed_write_reaches_every_waiter_and_every_later_flush(tmp_path: Path) -> None:
    async def check() -> None:
        async with RunStore.create(tmp_path / "run", config={}) as store:
            stall = Stall()
            store.append(stall.event(0))
            first = asyncio.ensure_future(store.flush())
            await stall.wait_until_reached()
            store.append(JobAdmitted(job=job(1)))
            waiters = [asyncio.ensure_future(store.flush())]
            store.append(UNWRITABLE)
            waiters.append(asyncio.ensure_future(store.flush()))
            await asyncio.sleep(0)
            stall.go_on.set()
            await first
            for failed in await asyncio.gather(*waiters, return_exceptions=True):
                assert isinstance(failed, JournalError)
                assert str(tmp_path / "run" / "run.db") in str(failed) and "OverflowError" in str(failed)
            store.append(JobAdmitted(job=job(2)))
            with pytest.raises(JournalError, match="OverflowError"):
                await store.flush()
            assert store.counts() == RunCounts(jobs=1, turns=0, runs_ended=1, rollouts=0)

    asyncio.run(check())


def test_closing_tells_of_a_failure_that_no_flush_told(tmp_path: Path) -> None:
    async def check() -> None:
        store = RunStore.create(tmp_path / "run", config={})
        store.append(UNWRITABLE)
        with pytest.raises(JournalError, match="a value that it cannot keep"):
            await store.aclose()
        await store.aclose()
        async with RunStore.open(tmp_path / "run") as again:
            assert again.counts().jobs == 0

    asyncio.run(check())


def test_a_cancelled_close_closes_all_the_same(tmp_path: Path) -> None:
    async def check() -> None:
        store = RunStore.create(tmp_path / "run", config={})
        stall = Stall()
        store.append(stall.event(0))
        flush = asyncio.ensure_future(store.flush())
        await stall.wait_until_reached()
        closing = asyncio.ensure_future(store.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        stall.go_on.set()
        await flush
        await store.aclose()
        async with RunStore.open(tmp_path / "run") as again:
            assert again.counts().runs_ended == 1

    asyncio.run(check())


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_folder_that_goes_away_while_it_is_written_is_noticed_at_the_next_flush(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "run"

    async def check() -> None:
        store = RunStore.create(folder, config={})
        store.append(JobAdmitted(job=job(0)))
        await store.flush()
        if how == "deleted":
            shutil.rmtree(folder)
        else:
            folder.rename(tmp_path / "elsewhere")
        if how == "replaced":
            shutil.copytree(tmp_path / "elsewhere", folder)
        store.append(JobAdmitted(job=job(1)))
        for _ in range(2):
            done = "replaced" if how == "replaced" else "deleted or moved"
            with pytest.raises(JournalError, match=rf"run\.db was {done} while the run was writing it") as raised:
                await store.flush()
            assert "disk" not in str(raised.value)
        await store.aclose()

    asyncio.run(check())


def test_a_value_that_cannot_be_kept_is_named_and_not_blamed_on_the_disk(tmp_path: Path) -> None:
    async def check() -> None:
        store = RunStore.create(tmp_path / "run", config={})
        ending = Ending(reason=EndReason.FINISHED, answer={1, 2})  # type: ignore[arg-type]
        store.append(RunEnded(key=job(7).key, attempt=1, ending=ending, artifact=Artifact()))
        with pytest.raises(JournalError, match="a value that it cannot keep") as raised:
            await store.flush()
        assert f"in a RunEnded of job {job(7).key}" in str(raised.value)
        assert "disk" not in str(raised.value)
        await store.aclose()

    asyncio.run(check())


def test_a_full_disk_ends_the_writing_and_keeps_what_was_committed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    with child("fill", folder) as process:
        printed, _ = process.communicate()
    assert process.returncode == 0
    *flushed, first, later = printed.splitlines()
    assert len(flushed) > 0
    assert first == later
    assert f"run store {folder / 'run.db'} cannot be written" in first
    kept = {key.sample for key in RunStore.read(folder).done_keys()}
    assert kept >= {int(sample) for sample in flushed}
    assert kept <= set(range(len(flushed) + 1))
    asyncio.run(RunStore.open(folder).aclose())


# ---------------------------------------------------------------- resuming


def test_an_opened_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    begun: list[Event] = [JobAdmitted(job=job(1)), TurnTaken(key=key(1), attempt=1, turn=turn(0))]
    rest: list[Event] = [
        TurnTaken(key=key(1), attempt=1, turn=turn(1)),
        RolloutDone(rollout=rollout(1, turns=(turn(0), turn(1)))),
    ]

    async def check() -> None:
        async with RunStore.create(tmp_path / "run", config={}, clock_offset_s=0.0) as store:
            for event in [*job_events(0), *begun]:
                store.append(event)
        async with RunStore.open(tmp_path / "run", clock_offset_s=0.0) as store:
            plan = plan_resume(store.events())
            assert plan.done == {key(0)} == store.done_keys()
            assert plan.unfinished[key(1)].turns == (turn(0),)
            with pytest.raises(JournalError, match="has a rollout already"):
                store.append(RolloutDone(rollout=rollout(0)))
            with pytest.raises(JournalError, match="was taken before"):
                store.append(begun[1])
            with pytest.raises(JournalError, match="differs from the one that was taken"):
                store.append(RolloutDone(rollout=rollout(1, turns=(turn(0, token=1),))))
            store.append(begun[0])
            for event in rest:
                store.append(event)
        assert list(RunStore.read(tmp_path / "run").events()) == [*job_events(0), *begun, *rest]

    asyncio.run(check())


def test_after_kill_nothing_flushed_is_lost_or_repeated(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    chance = random.Random(20261115)
    flushed: list[int] = []
    for _ in range(5):
        with child("write", folder) as process:
            assert process.stdout is not None
            for _ in range(chance.randint(1, 60)):
                flushed.append(int(process.stdout.readline()))
            process.send_signal(signal.SIGKILL)
            # The last line may be cut off by the kill; then its flush had returned, but nobody was told.
            flushed += [int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        assert process.returncode == -signal.SIGKILL
        store = RunStore.read(folder)
        assert {key.sample for key in store.done_keys()} >= set(flushed)
        assert all(read.turns == (turn(0), turn(1)) for read in store.rollouts())
    assert len(flushed) == len(set(flushed))
    asyncio.run(RunStore.open(folder).aclose())
    lives: dict[int, list[Event]] = {}
    for event in RunStore.read(folder).events():
        lives.setdefault(sample_of(event), []).append(event)
    assert all(events == job_events(sample)[: len(events)] for sample, events in lives.items())
    assert all(lives[sample] == job_events(sample) for sample in flushed)


# ---------------------------------------------------------------- sharing


def test_a_run_has_one_writer_until_it_is_killed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", num_jobs=1)
    with child("hold", folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"run run is in use by process {process.pid}"):
            RunStore.open(folder)
        assert RunStore.read(folder).counts().rollouts == 1
        process.kill()
    asyncio.run(RunStore.open(folder).aclose())


def test_one_process_cannot_open_a_run_twice(tmp_path: Path) -> None:
    async def check() -> None:
        async with RunStore.create(tmp_path / "run", config={}):
            with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
                RunStore.open(tmp_path / "run")
        await RunStore.open(tmp_path / "run").aclose()

    asyncio.run(check())


def test_a_reader_sees_one_moment_while_the_run_is_written(tmp_path: Path) -> None:
    async def check() -> None:
        async with RunStore.create(tmp_path / "run", config={}) as store:
            for sample in range(3):
                store.append(JobAdmitted(job=job(sample)))
            await store.flush()
            reader = RunStore.read(tmp_path / "run")
            events = reader.events()
            assert next(events) == JobAdmitted(job=job(0))
            store.append(JobAdmitted(job=job(3)))
            await store.flush()
            assert len(list(events)) == 2
            assert reader.counts().jobs == 4

    asyncio.run(check())


def test_the_file_is_in_wal_mode_and_alone_after_closing(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", num_jobs=1)
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "run.db"]
    with closing(sqlite3.connect(folder / "run.db")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# ---------------------------------------------------------------- refusing


def test_a_run_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    make_run(tmp_path / "one")
    make_run(tmp_path / "two")
    with pytest.raises(ConfigError, match=r"no run in .*/three: the runs in .* are one, two"):
        RunStore.open(tmp_path / "three")
    assert not (tmp_path / "three").exists()
    with pytest.raises(ConfigError, match=r"no run in .*: no run exists in"):
        RunStore.read(tmp_path / "nowhere" / "three")


def test_a_folder_that_holds_a_run_is_not_made_again(tmp_path: Path) -> None:
    make_run(tmp_path / "run", num_jobs=1)
    with pytest.raises(ConfigError, match="already holds a run"):
        RunStore.create(tmp_path / "run", config={})
    assert RunStore.read(tmp_path / "run").counts().rollouts == 1
    asyncio.run(RunStore.open(tmp_path / "run").aclose())


@pytest.mark.parametrize("pragma", ["PRAGMA user_version", "PRAGMA journal_mode = WAL"])
def test_a_run_that_was_left_half_made_is_none_and_can_be_made(tmp_path: Path, pragma: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    assert not RunStore.exists(folder)
    with closing(sqlite3.connect(folder / "run.db")) as connection:
        connection.execute(pragma)
    assert not RunStore.exists(folder)
    make_run(folder, num_jobs=2)
    assert RunStore.exists(folder)
    assert RunStore.read(folder).counts().rollouts == 2


@pytest.mark.parametrize("what", ["a database", "a text"])
def test_something_else_that_lies_where_a_run_would_is_not_overwritten(tmp_path: Path, what: str) -> None:
    path = tmp_path / "run.db"
    if what == "a database":
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE notes (text TEXT)")
    else:
        path.write_text("notes " * 100)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="already holds a run"):
        RunStore.create(tmp_path, config={})
    assert path.read_bytes() == before


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    with closing(sqlite3.connect(folder / "run.db")) as connection:
        connection.execute("UPDATE meta SET value = '7' WHERE key = 'schema_version'")
        connection.commit()
    for refused in (RunStore.open, RunStore.read):
        with pytest.raises(ConfigError, match=r"run/run\.db has schema version 7, and this Slipstream reads version 3"):
            refused(folder)


@pytest.mark.parametrize("statement", ["CREATE TABLE other (x)", "CREATE TABLE meta (key TEXT, value TEXT)"])
def test_another_database_is_no_run_store(tmp_path: Path, statement: str) -> None:
    with closing(sqlite3.connect(tmp_path / "run.db")) as connection:
        connection.execute(statement)
    with pytest.raises(ConfigError, match=r"run\.db is not a run store: .*expected 3"):
        RunStore.open(tmp_path)


@pytest.mark.parametrize("num_bytes", [0, 50, 4096, 8192, 30_000])
def test_a_truncated_file_is_refused(tmp_path: Path, num_bytes: int) -> None:
    folder = make_run(tmp_path / "run", num_jobs=100)
    os.truncate(folder / "run.db", num_bytes)
    with pytest.raises(ConfigError, match=r"run\.db (cannot be read as a run store|is not a run store)"):
        RunStore.open(folder)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_text("step,reward\n0,0.5\n" * 100)
    with pytest.raises(ConfigError, match=r"run\.db cannot be read as a run store"):
        RunStore.open(tmp_path)


@pytest.mark.parametrize("place", [0.3, 0.5, 0.7, 0.9])
def test_garbage_inside_the_file_is_refused_when_it_is_read(tmp_path: Path, place: float) -> None:
    folder = make_run(tmp_path / "run", num_jobs=100)
    path = folder / "run.db"
    content = bytearray(path.read_bytes())
    middle = int(len(content) * place)
    content[middle : middle + 20_000] = b"\xa5" * len(content[middle : middle + 20_000])
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.db cannot be read as a run store"):
        reader = RunStore.read(folder)
        [*reader.events(), *reader.rollouts(), *reader.steps(), *reader.measured(), *reader.learner_work()]
        list(reader.hardware())


def test_a_damaged_blob_is_a_config_error(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", num_jobs=1)
    with closing(sqlite3.connect(folder / "run.db")) as connection:
        connection.execute("UPDATE turns SET messages = x'01ffff'")
        connection.commit()
    with pytest.raises(ConfigError, match=r"run\.db cannot be read as a run store"):
        list(RunStore.read(folder).rollouts())


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be created"):
        RunStore.create(tmp_path / "file" / "run", config={})


def test_a_store_can_be_flushed_from_one_event_loop_after_another(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run", config={})

    async def write(number: int) -> None:
        store.append(JobAdmitted(job=job(number)))
        await asyncio.gather(*(store.flush() for _ in range(3)))
        assert store.counts().jobs == number + 1

    for number in range(3):
        asyncio.run(write(number))
    for _ in range(2):
        asyncio.run(store.aclose())
        asyncio.run(store.flush())


def test_many_turns_of_many_jobs_are_written_together_and_in_order(tmp_path: Path) -> None:
    admitted = [JobAdmitted(job=job(n)) for n in range(7)]
    taken = [TurnTaken(key=key(n % 7), attempt=1, turn=turn(n // 7)) for n in range(150)]
    events: list[Event] = [*admitted, *taken]

    async def main() -> None:
        async with RunStore.create(tmp_path, config={}) as store:
            for event in events:
                store.append(event)
            await store.flush()
            assert store.num_commits == 1

    asyncio.run(main())
    assert list(RunStore.read(tmp_path).events()) == events
