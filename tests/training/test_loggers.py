"""TensorBoard's event files, read back with its own reader."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from train_stage import SETTINGS, SlowLearner, make_run

from slipstream.record import MemoryJournal
from slipstream.record.metrics_file import read_metrics
from slipstream.seams import Measured, StepDone
from slipstream.simulate.clock import run_virtual
from slipstream.training.checkpoints import Checkpoints
from slipstream.training.loggers import figures_log, scalars

Point = tuple[int, str]


def points(folder: Path) -> list[tuple[Point, float]]:
    """All scalars below a run's folder, as often as they are there."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [
        ((event.step, value.tag), value.tensor.float_val[0])
        for path in sorted((folder / "tensorboard").iterdir())
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


def in_store(journal: MemoryJournal) -> dict[Point, float]:
    of_steps = {
        (step.version, name): value
        for step in journal.steps()
        if step.version is not None and step.metrics is not None
        for name, value in step.metrics.items()
    }
    evaluated = {
        (version, f"held_out/{name}"): value
        for (version, kind), metrics in journal.measured().items()
        if kind == "held_out"
        for name, value in metrics.items()
    }
    return of_steps | evaluated


def session(folder: Path, journal: MemoryJournal, *, fail_at: int | None = None, tensorboard: bool = True) -> None:
    """One session of a run of four steps. A checkpoint comes every third, so a resumed one makes updates again."""
    if tensorboard:
        pytest.importorskip("tensorboard")

    async def main() -> None:
        with figures_log(folder, journal, tensorboard=tensorboard) as on_figures:
            learner, settings = SlowLearner(fail_at=fail_at), replace(SETTINGS, checkpoint_every=3)
            run = make_run(folder, settings=settings, learner=learner, journal=journal, on_figures=on_figures)
            await Checkpoints.of_run(folder).load_newest(run.learner)
            await run.trainer.run()

    if fail_at is None:
        run_virtual(main())
        return
    with pytest.raises(RuntimeError, match="told to fail"):
        run_virtual(main())


def test_every_step_and_every_evaluation_is_there_under_its_own_name(tmp_path: Path) -> None:
    journal = MemoryJournal()
    session(tmp_path, journal)
    found = points(tmp_path)
    assert dict(found) == pytest.approx(in_store(journal))
    assert [step for (step, tag), _ in found if tag == "reward/mean"] == [1, 2, 3, 4]
    assert [step for (step, tag), _ in found if tag == "held_out/success"] == [0, 2, 4]


def test_a_resumed_run_goes_on_in_the_same_folder_and_writes_nothing_twice(tmp_path: Path) -> None:
    journal = MemoryJournal()
    session(tmp_path, journal, fail_at=2)
    before = points(tmp_path)
    assert {step for (step, _), _ in before} == {0, 1, 2}
    journal = journal.reopened()
    session(tmp_path, journal)
    found = points(tmp_path)
    assert found[: len(before)] == before
    assert len(found) == len(dict(found))
    assert dict(found) == pytest.approx(in_store(journal))
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2


def test_what_a_killed_session_left_out_or_tore_off_is_written_by_the_next(tmp_path: Path) -> None:
    journal = MemoryJournal()
    session(tmp_path, journal, fail_at=1)
    (whole,) = (tmp_path / "tensorboard").iterdir()
    whole.write_bytes(whole.read_bytes()[:-9])
    assert len(points(tmp_path)) < len(in_store(journal))
    journal = journal.reopened()
    session(tmp_path, journal, fail_at=2, tensorboard=False)
    journal = journal.reopened()
    session(tmp_path, journal)
    found = points(tmp_path)
    assert len(found) == len(dict(found))
    assert dict(found) == pytest.approx(in_store(journal))


def test_a_session_with_nothing_to_add_leaves_no_file(tmp_path: Path) -> None:
    journal = MemoryJournal()
    session(tmp_path, journal)
    before = list((tmp_path / "tensorboard").iterdir())
    session(tmp_path, journal.reopened())
    assert list((tmp_path / "tensorboard").iterdir()) == before


def test_a_folder_that_cannot_be_written_is_told_once_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    journal = MemoryJournal()
    session(tmp_path, journal)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be written" in caplog.text
    assert journal.steps()[-1].version == SETTINGS.steps


def test_metrics_jsonl_is_the_same_whether_or_not_the_run_was_resumed(tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    whole.mkdir()
    resumed.mkdir()
    session(whole, MemoryJournal(), tensorboard=False)
    journal = MemoryJournal()
    session(resumed, journal, fail_at=2, tensorboard=False)
    assert len(list(read_metrics(resumed))) == 4, "as far as it came"
    session(resumed, journal.reopened(), tensorboard=False)
    found = list(read_metrics(resumed))
    places = [(line["kind"], line["version"]) for line in found]
    assert places == [
        *(("held_out", 0), ("train", 1), ("train", 2), ("held_out", 2)),
        *(("train", 3), ("train", 4), ("held_out", 4)),
    ]
    assert [line.keys() for line in found] == [line.keys() for line in read_metrics(whole)]


def test_without_the_option_there_is_no_folder(tmp_path: Path) -> None:
    session(tmp_path, MemoryJournal(), tensorboard=False)
    assert not (tmp_path / "tensorboard").exists()


def test_a_measurement_is_named_by_its_kind_and_a_step_by_its_metrics_alone() -> None:
    assert scalars(StepDone(step=3, version=4, metrics={"reward/mean": 0.5})) == (4, {"reward/mean": 0.5})
    assert scalars(Measured(step=4, kind="held_out", metrics={"success": 1.0})) == (4, {"held_out/success": 1.0})


def test_a_missing_library_is_refused_before_there_is_a_run(tmp_path: Path) -> None:
    without = "import sys; sys.modules['tensorboard'] = None; from slipstream.cli.main import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", without, "train", "quickstart", "tensorboard=true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 2
    assert "pip install 'slipstream[loggers]'" in ended.stderr
    assert list(tmp_path.iterdir()) == []
