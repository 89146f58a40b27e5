"""Names and folders of runs."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.record import RunStore, find_run, latest_run, new_run_folder

NOW = datetime(2026, 11, 15, 17, 45, 30)


def make_run(folder: Path) -> Path:
    asyncio.run(RunStore.create(folder, config={}).aclose())
    return folder


def test_a_folder_is_named_by_recipe_and_time(tmp_path: Path) -> None:
    folder = new_run_folder(tmp_path / "runs", "demo", now=NOW)
    assert folder == tmp_path / "runs" / "demo-20261115-174530"
    assert folder.is_dir()


def test_many_at_once_get_a_folder_each(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        folders = list(threads.map(lambda _: new_run_folder(tmp_path / "runs", "demo", now=NOW), range(40)))
    assert len(set(folders)) == 40
    assert tmp_path / "runs" / "demo-20261115-174530-40" in folders


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "a b", "a\n"])
def test_a_name_that_would_make_a_bad_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a run"):
        new_run_folder(tmp_path, name)


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigError, match="runs is a file"):
        new_run_folder(tmp_path / "runs", "demo")


def test_the_latest_run_began_last_whatever_its_name(tmp_path: Path) -> None:
    make_run(tmp_path / "z")
    last = make_run(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "run.db").write_text("not a database, but long enough to look at" * 20)
    assert latest_run(tmp_path) == last


def test_no_run_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run in"):
        latest_run(tmp_path / "missing")
    with pytest.raises(ConfigError, match="no run 'x', and none in"):
        find_run(tmp_path / "missing", "x")


def test_a_run_is_found_by_name_and_by_path(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "runs" / "demo-1")
    root = tmp_path / "runs"
    assert find_run(root, "demo-1") == folder
    assert find_run(tmp_path / "elsewhere", str(folder)) == folder
    assert find_run(tmp_path / "elsewhere", str(folder / "run.db")) == folder
    with pytest.raises(ConfigError, match=r"no run .demo-2. in .*: did you mean demo-1\?"):
        find_run(root, "demo-2")
