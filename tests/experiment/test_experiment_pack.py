"""Pieces of an experiment, and what is made of them again."""

import json
from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.experiment.evaluations import Evaluation, EvaluationName
from slipstream.experiment.pack import PackLimits, pack_experiment, unpack_experiment
from slipstream.experiment.plan import read_record
from slipstream.experiment.rows import Row, RowFile

NAME = EvaluationName(part="held_out", arm="full", version=0)
ROW = Row(task="t", sample=0, reward=1.0, ending="finished", turns=1, prompt_tokens=1, sampled_tokens=1, seconds=0.5)
SMALL = PackLimits(file_bytes=4_000)


def experiment(out: Path) -> Evaluation:
    """A folder as a session leaves it that was ended in its first evaluation."""
    out.mkdir()
    (out / "experiment.json").write_text(json.dumps({"format": 1, "design": "tiny"}))
    (out / "sessions.jsonl").write_text('{"stage": "opening"}\n')
    evaluation = Evaluation(out, NAME)
    RowFile(evaluation.folder / "rows.jsonl").add([ROW])
    (evaluation.folder / "evaluation.json").write_text(
        json.dumps({"part": "held_out", "arm": "full", "version": 0, "num_jobs": 4, "seconds": 2.0})
    )
    (evaluation.folder / "run").mkdir()
    (evaluation.folder / "run" / "run.db").write_text("the tokens stay behind")
    return evaluation


def test_rows_and_records_come_back_and_run_stores_stay_behind(tmp_path: Path) -> None:
    before = experiment(tmp_path / "out")
    packed = pack_experiment(tmp_path / "out", tmp_path / "pieces", SMALL)
    assert len(packed.files) > 1 and packed.version is None and not packed.has_start
    assert max(path.stat().st_size for path in packed.files) <= SMALL.file_bytes
    assert unpack_experiment(tmp_path / "pieces", tmp_path / "new") is None
    after = Evaluation(tmp_path / "new", NAME)
    assert after.rows() == before.rows() == {ROW.key: ROW}
    assert after.state() == before.state() and not after.state().is_whole
    assert read_record(tmp_path / "new") == read_record(tmp_path / "out")
    assert not (after.folder / "run").exists()
    assert not list(tmp_path.glob(".*"))


def test_fewer_pieces_replace_those_of_an_earlier_packing(tmp_path: Path) -> None:
    experiment(tmp_path / "out")
    pack_experiment(tmp_path / "out", tmp_path / "pieces", SMALL)
    packed = pack_experiment(tmp_path / "out", tmp_path / "pieces")
    assert list((tmp_path / "pieces").iterdir()) == list(packed.files) and len(packed.files) == 1


def test_a_missing_or_damaged_piece_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    experiment(tmp_path / "out")
    packed = pack_experiment(tmp_path / "out", tmp_path / "pieces", SMALL)
    data = bytearray(packed.files[0].read_bytes())
    place = data.index(b"index.json") + 512
    data[place + 60] ^= 1
    packed.files[0].write_bytes(data)
    with pytest.raises(ConfigError, match="is damaged"):
        unpack_experiment(tmp_path / "pieces", tmp_path / "new")
    packed.files[1].unlink()
    with pytest.raises(ConfigError, match=r"lacks the pieces \[2\] of"):
        unpack_experiment(tmp_path / "pieces", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_damaged_member_is_named(tmp_path: Path) -> None:
    experiment(tmp_path / "out")
    (path,) = pack_experiment(tmp_path / "out", tmp_path / "pieces").files
    data = bytearray(path.read_bytes())
    data[data.rindex(b"rows.jsonl.z") + 512] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"rows\.jsonl\.z is not what was packed"):
        unpack_experiment(tmp_path / "pieces", tmp_path / "new")


def test_nothing_is_overwritten_and_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    experiment(tmp_path / "out")
    pack_experiment(tmp_path / "out", tmp_path / "pieces")
    with pytest.raises(ConfigError, match="holds an experiment already"):
        unpack_experiment(tmp_path / "pieces", tmp_path / "out")
    with pytest.raises(ConfigError, match="3,000 are allowed"):
        pack_experiment(tmp_path / "out", tmp_path / "pieces", PackLimits(total_bytes=3_000))
    with pytest.raises(ConfigError, match="holds no experiment"):
        pack_experiment(tmp_path, tmp_path / "pieces")
