"""Which checkpoint a run resumes from, and what happens to a damaged one."""

import asyncio
import logging
from pathlib import Path

import pytest
from train_stage import Run, SlowLearner, make_run

from slipstream.errors import LearnerError
from slipstream.record import MemoryJournal
from slipstream.simulate.clock import run_virtual
from slipstream.training.checkpoints import Checkpoints


class CarefulLearner(SlowLearner):
    async def load(self, folder: Path) -> None:
        if not (folder / "version").read_text():
            raise LearnerError(f"{folder.name} is damaged")
        await super().load(folder)


def session(folder: Path, journal: MemoryJournal) -> Run:
    async def main() -> Run:
        run = make_run(folder, journal=journal, learner=CarefulLearner())
        await Checkpoints.of_run(folder).load_newest(run.learner)
        await run.trainer.run()
        return run

    return run_virtual(main())


def test_a_run_goes_on_from_an_older_checkpoint_if_the_newest_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal, checkpoints = MemoryJournal(), Checkpoints.of_run(tmp_path)
    first = session(tmp_path, journal)
    assert checkpoints.versions() == [3, 4]
    (checkpoints.path(4) / "version").write_text("")
    with caplog.at_level(logging.WARNING):
        again = session(tmp_path, journal.reopened())
    assert "version-000003, as a newer one is damaged: version-000004 is damaged" in caplog.text
    assert again.trained_keys() == first.trained_keys()[3:]
    assert (checkpoints.path(4) / "version").read_text() == "4"
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.damaged")] == ["version-000004.damaged"]
    assert session(tmp_path, journal.reopened()).learner.batches == []


def saved(folder: Path, *texts: str) -> Checkpoints:
    for version, text in enumerate(texts):
        (folder / f"checkpoints/version-{version:06d}").mkdir(parents=True)
        (folder / f"checkpoints/version-{version:06d}/version").write_text(text)
    return Checkpoints.of_run(folder)


def test_if_all_checkpoints_are_damaged_the_newest_says_so_and_all_stay(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, "", "")
    with pytest.raises(LearnerError, match="version-000001 is damaged"):
        asyncio.run(checkpoints.load_newest(CarefulLearner()))
    assert checkpoints.versions() == [0, 1]


def test_in_place_of_damaged_checkpoints_a_control_begins_where_its_run_began(tmp_path: Path) -> None:
    checkpoints, learner = saved(tmp_path / "control", ""), CarefulLearner()
    begin = saved(tmp_path, "7").path(0)
    assert asyncio.run(checkpoints.load_newest(learner, otherwise=begin)) is None
    assert learner.version == 7
    assert checkpoints.versions() == []
