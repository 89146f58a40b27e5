"""A new run that begins with jobs of another has all that was recorded of them, and nothing of the others."""

import asyncio
from pathlib import Path

import pytest
from record_samples import ending, job, key, rollout, turn

from slipstream.errors import ConfigError
from slipstream.record import RunStore
from slipstream.record.copy import copy_jobs
from slipstream.seams import JobAdmitted, RolloutDone, RunEnded, TurnTaken
from slipstream.types import Artifact


def written(folder: Path) -> RunStore:
    async def main() -> RunStore:
        async with RunStore.create(folder, config={}, clock_offset_s=1_000.0) as store:
            for sample in (0, 1):
                store.append(JobAdmitted(job=job(sample)))
                store.append(TurnTaken(key=key(sample), attempt=1, turn=turn()))
                store.append(TurnTaken(key=key(sample), attempt=2, turn=turn()))
                done = Artifact(answer="42", files={"out": b"x"})
                store.append(RunEnded(key=key(sample), attempt=2, ending=ending(), artifact=done))
                store.append(RolloutDone(rollout=rollout(sample, attempt=2, turns=(turn(),))))
            store.append(JobAdmitted(job=job(2)))
        return store

    return asyncio.run(main())


def test_what_is_copied_reads_as_it_was_and_can_be_gone_on_with(tmp_path: Path) -> None:
    source = RunStore.read(written(tmp_path / "source").folder)
    (tmp_path / "copy").mkdir()
    copy_jobs(source, tmp_path / "copy", config={"seed": 1}, keys={key(1)})
    copied = RunStore.read(tmp_path / "copy")
    assert copied.config() == {"seed": 1}
    assert list(copied.rollouts()) == [found for found in source.rollouts() if found.job.key == key(1)]
    assert copied.turns(key(1), 1) == source.turns(key(1), 1), "the turns of an attempt that failed are kept too"
    assert [type(event) for event in copied.events()] == [JobAdmitted, TurnTaken, TurnTaken, RunEnded, RolloutDone]

    async def go_on() -> int:
        async with RunStore.open(tmp_path / "copy") as store:
            store.append(RolloutDone(rollout=rollout(0)))
            await store.flush()
            return store.counts().rollouts

    assert asyncio.run(go_on()) == 2


def test_a_folder_that_holds_a_run_is_left_alone(tmp_path: Path) -> None:
    source = written(tmp_path / "source")
    with pytest.raises(ConfigError, match="already holds a run"):
        copy_jobs(source, tmp_path / "source", config={}, keys={key(1)})
