"""`metrics.jsonl`: written during a run, the same after a resume, and no reason to end a run."""

import json
from pathlib import Path

import pytest

from slipstream.record.metrics_file import MetricsFile, MetricsLine, read_metrics


def line(step: int, reward: float = 0.5) -> MetricsLine:
    return MetricsLine(kind="train", at={"step": step, "version": step + 1}, metrics={"reward/mean": reward})


def test_each_line_can_be_read_as_soon_as_it_is_written(tmp_path: Path) -> None:
    written = MetricsFile(tmp_path)
    assert list(read_metrics(tmp_path)) == []
    written.write(line(0))
    written.write(line(1, 0.75))
    assert [json.loads(text) for text in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        {"kind": "train", "step": 0, "version": 1, "reward/mean": 0.5},
        {"kind": "train", "step": 1, "version": 2, "reward/mean": 0.75},
    ]


def test_a_resumed_run_begins_with_what_the_store_has_and_writes_no_step_twice(tmp_path: Path) -> None:
    MetricsFile(tmp_path).write(line(0))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # torn off
    assert [read["step"] for read in read_metrics(tmp_path)] == [0]
    resumed = MetricsFile(tmp_path, [line(0), line(1)])
    resumed.write(line(1))
    resumed.write(line(2))
    assert [read["step"] for read in read_metrics(tmp_path)] == [0, 1, 2]


def test_what_cannot_be_written_is_said_once_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    written = MetricsFile(tmp_path, [line(0)])
    written.write(line(1))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "metrics.jsonl cannot be written" in caplog.text


def test_a_run_without_the_file_has_no_metrics(tmp_path: Path) -> None:
    assert list(read_metrics(tmp_path)) == []
