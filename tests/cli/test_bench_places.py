"""Where `slipstream bench dispatch` writes: a place that cannot be written is one sentence, before anything is run."""

import os
import resource
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipstream.cli.bench import bench_app
from slipstream.errors import ConfigError


def refusal(option: str, place: Path) -> str:
    ended = CliRunner().invoke(bench_app, ["dispatch", "--workload", "none.json", option, str(place)])
    assert isinstance(ended.exception, ConfigError)
    return str(ended.exception)


@pytest.mark.parametrize("option", ["--save", "--plot"])
def test_a_place_that_cannot_be_written_is_refused_before_the_workload_is_read(tmp_path: Path, option: str) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "none" / "x", tmp_path / "file" / "x"):
        assert refusal(option, place).startswith(f"there is no folder {place.parent} for x: make it")
    assert refusal(option, tmp_path) == f"{tmp_path} is a folder: name a file in it"
    assert "none.json" in refusal(option, tmp_path / "x")


@pytest.mark.parametrize("others", [["--tune"], ["--save", "x.json"]])
def test_a_picture_of_what_is_not_run_is_refused(tmp_path: Path, others: list[str]) -> None:
    place = tmp_path / "x.svg"
    ended = CliRunner().invoke(bench_app, ["dispatch", *others, "--plot", str(place)])
    assert isinstance(ended.exception, ConfigError) and str(ended.exception).startswith("--plot draws")
    assert not place.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to a read-only folder")
@pytest.mark.parametrize("option", ["--save", "--plot"])
def test_a_read_only_folder_is_refused(tmp_path: Path, option: str) -> None:
    tmp_path.chmod(0o555)
    place = tmp_path / "x"
    assert refusal(option, place) == f"{place} cannot be written (Permission denied): choose another place"


def test_what_the_disk_refuses_is_one_sentence(tmp_path: Path) -> None:
    place = tmp_path / "x.json"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        ended = CliRunner().invoke(bench_app, ["dispatch", "--regime", "kv", "--save", str(place)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert isinstance(ended.exception, ConfigError)
    assert str(ended.exception) == f"{place} cannot be written (File too large): choose another place"
