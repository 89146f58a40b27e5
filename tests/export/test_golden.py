"""A run and its exports as they were written before: old runs open, and exports stay the same to the byte."""

import gzip
from pathlib import Path

import pytest
from export_stage import one_of_each

from slipstream.export import ExportFormat, export_run
from slipstream.record import RunReader

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def old_run(tmp_path: Path) -> RunReader:
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "run.db").write_bytes(gzip.decompress((GOLDEN / "run.db.gz").read_bytes()))
    return RunReader(folder)


def test_an_old_run_is_read(old_run: RunReader) -> None:
    assert list(old_run.rollouts()) == one_of_each()


def test_an_old_runs_samples_are_exported_as_before(old_run: RunReader, tmp_path: Path) -> None:
    lines = export_run(old_run, ExportFormat.JSONL, out=tmp_path / "lines").path
    assert lines.read_bytes() == (GOLDEN / "export.jsonl").read_bytes()


def test_an_old_runs_rollouts_are_exported_as_before(old_run: RunReader, tmp_path: Path) -> None:
    folder = export_run(old_run, ExportFormat.ATIF, out=tmp_path / "atif").path
    documents = b"".join(path.read_bytes() + b"\n" for path in sorted(folder.glob("*.json")))
    assert documents == (GOLDEN / "atif.jsonl").read_bytes()
