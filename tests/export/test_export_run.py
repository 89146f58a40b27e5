"""A recorded run, exported and read back."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from export_stage import TREES, one_of_each, plain, recorded, rollout

from slipstream.errors import ConfigError
from slipstream.export import ExportFormat, export_run, read_atif, read_jsonl, read_parquet
from slipstream.record import RunReader
from slipstream.seams import BatchTaken, Event, StepPlanned
from slipstream.types import Rollout


def test_a_run_is_exported_into_its_folder_and_comes_back(tmp_path: Path) -> None:
    rollouts = one_of_each()
    reader = recorded(tmp_path / "demo-1", rollouts)
    lines = export_run(reader, ExportFormat.JSONL)
    table = export_run(reader, ExportFormat.PARQUET)
    folder = export_run(reader, ExportFormat.ATIF)
    assert [each.path.name for each in (lines, table, folder)] == ["export.jsonl", "export.parquet", "atif"]
    rows = list(read_jsonl(lines.path))
    assert list(read_parquet(table.path)) == rows
    assert list(read_atif(folder.path)) == list(reader.rollouts()) == rollouts
    assert {row.key for row in rows} == {each.job.key for each in rollouts}
    assert {row.run for row in rows} == {"demo-1"}


def test_what_was_written_is_counted(tmp_path: Path) -> None:
    rollouts = [
        rollout(*TREES["context edit"], task_id="a", sample=0, reward=1.0),
        rollout(*plain(), task_id="a", sample=1, reward=0.0),
        rollout(*TREES["chat"], task_id="b"),
    ]
    reader = recorded(tmp_path / "demo", rollouts)
    assert export_run(reader, ExportFormat.JSONL, out=tmp_path / "a").counts == {
        "rollouts": 3,
        "rows": 4,
        "samples": 3,
        "samples_in_loss": 3,
        "tokens": 17,
        "tokens_in_loss": 8,
        "tokens_truncated": 0,
    }
    cut = export_run(reader, ExportFormat.PARQUET, out=tmp_path / "b", max_tokens=3).counts
    assert (cut["samples"], cut["tokens_in_loss"], cut["tokens_truncated"]) == (1, 1, 7)
    assert export_run(reader, ExportFormat.ATIF, out=tmp_path / "c").counts == {
        "rollouts": 3,
        "turns": 10,
        "tokens_sampled": 8,
    }


def test_advantages_are_those_asked_for(tmp_path: Path) -> None:
    rollouts = [rollout(*plain(), sample=sample, reward=float(sample == 0)) for sample in range(3)]
    reader = recorded(tmp_path / "demo", rollouts)
    found = {
        name: [
            row.advantage for row in read_jsonl(export_run(reader, ExportFormat.JSONL, out=out, advantages=name).path)
        ]
        for name, out in ((None, tmp_path / "a"), ("dr_grpo", tmp_path / "b"))
    }
    assert found == {None: [1.0, -0.5, -0.5], "dr_grpo": pytest.approx([2 / 3, -1 / 3, -1 / 3])}


def test_of_a_training_run_the_rows_in_the_loss_are_those_of_its_batches(tmp_path: Path) -> None:
    trained = [rollout(*plain(), sample=sample, reward=float(sample)) for sample in range(3)]
    held_out = [rollout(*plain(), sample=sample, reward=float(sample), phase="held_out") for sample in range(2)]
    keys = tuple(each.job.key for each in trained)
    events: list[Event] = [StepPlanned(step=0, jobs=keys), BatchTaken(step=0, jobs=keys[:2])]
    reader = recorded(tmp_path / "demo", [*held_out, *trained], events=events)
    rows = list(read_jsonl(export_run(reader, ExportFormat.JSONL).path))
    assert [(row.phase, row.sample, row.in_loss, row.advantage) for row in rows] == [
        ("held_out", 0, False, None),
        ("held_out", 1, False, None),
        ("train", 0, True, -1.0),
        ("train", 1, True, 1.0),
        ("train", 2, False, None),
    ]


def test_the_agent_of_atif_is_what_the_settings_say(tmp_path: Path) -> None:
    reader = recorded(tmp_path / "demo", [rollout(*plain())])
    (file,) = export_run(reader, ExportFormat.ATIF).path.glob("*.json")
    assert file.name == "000000-train-0-count-0.json"
    assert '"model_name":"tiny"' in file.read_text()


class GrowingRun(RunReader):
    """A run in which a rollout ends between two readings."""

    def rollouts(
        self, with_turns: bool = True, *, phase: str | None = None, step: int | None = None
    ) -> Iterator[Rollout]:
        found = list(super().rollouts(with_turns, phase=phase, step=step))
        return iter(found if with_turns else found[:-1])


def test_a_rollout_that_ends_while_the_run_is_read_is_left_to_the_next_export(tmp_path: Path) -> None:
    recorded(tmp_path / "demo", [rollout(*plain(), sample=sample) for sample in range(3)])
    exported = export_run(GrowingRun(tmp_path / "demo"), ExportFormat.JSONL)
    assert [(row.sample, row.advantage) for row in read_jsonl(exported.path)] == [(0, 0.0), (1, 0.0)]


def test_bad_wishes_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    reader = recorded(tmp_path / "demo", [])
    before = sorted((tmp_path / "demo").iterdir())
    with pytest.raises(ConfigError, match=r'no estimator of advantages "grp" \(did you mean "grpo"\?\)'):
        export_run(reader, ExportFormat.JSONL, advantages="grp")
    with pytest.raises(ConfigError, match="max_tokens=0: give a number above 0"):
        export_run(reader, ExportFormat.JSONL, max_tokens=0)
    for wish in ({"advantages": "grpo"}, {"max_tokens": 9}):
        with pytest.raises(ConfigError, match="ATIF holds whole rollouts"):
            export_run(reader, ExportFormat.ATIF, **wish)
    export_run(reader, ExportFormat.JSONL)
    with pytest.raises(ConfigError, match="already exists"):
        export_run(reader, ExportFormat.JSONL)
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {path.name for path in before} | {"export.jsonl"}


@pytest.mark.parametrize(("kind", "library"), [("PARQUET", "pyarrow"), ("ATIF", "atif")])
def test_a_missing_library_is_named_with_its_extra_and_jsonl_needs_none(
    kind: str, library: str, tmp_path: Path
) -> None:
    recorded(tmp_path / "demo", [rollout(*plain())])
    program = f"""
import sys
sys.modules["pyarrow"] = sys.modules["atif"] = None
from pathlib import Path
from slipstream.export import ExportFormat, export_run
from slipstream.record import RunReader
reader = RunReader(Path({str(tmp_path / "demo")!r}))
export_run(reader, ExportFormat.JSONL)
export_run(reader, ExportFormat.{kind})
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert f"ConfigError: {'Parquet' if library == 'pyarrow' else 'ATIF'} needs" in ended.stderr
    assert "pip install 'slipstream[data]'" in ended.stderr
    assert sorted(path.name for path in (tmp_path / "demo").glob("*export*")) == ["export.jsonl"]
