"""Files of a commit taken from a git repository as data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from stand_in import (
    BROKEN,
    FIX,
    NEW_TESTS,
    OLD_TESTS,
    SWEBENCH,
    add_later_history,
    git,
    make_repository,
    needs_sandboxes,
    patch,
    play,
    write_rows,
)

from slipstream.tasks.swe.checkouts import Checkouts, MissingRepository
from slipstream.tasks.swe.swebench import read_swebench


def repository(tmp_path: Path) -> tuple[Path, str]:
    """A bare repository where a snapshot would be, and the commit before its last."""
    work = tmp_path / "work"
    make_repository(
        work, {"calc/__init__.py": BROKEN, "tests/test_calc.py": OLD_TESTS, ".gitattributes": "* export-ignore\n"}
    )
    (work / "link").symlink_to("calc")
    (work / "run").write_text("#!/bin/sh\n")
    (work / "run").chmod(0o755)
    git(work, "add", "--all")
    git(work, "commit", "--quiet", "--message", "Second")
    commit = git(work, "rev-parse", "HEAD")
    add_later_history(work)
    bare = tmp_path / "repos/pallets+flask/repo"
    git(tmp_path, "clone", "--quiet", "--bare", str(work), str(bare))
    return bare, commit


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_commit_is_written_as_it_is_and_no_setting_of_the_repository_takes_effect(tmp_path: Path) -> None:
    bare, commit = repository(tmp_path)
    with (bare / "config").open("a") as config:
        config.write('[core]\n\tfsmonitor = touch fired\n[filter "x"]\n\tsmudge = false\n')
    checkouts = Checkouts(str(tmp_path / "repos"), str(tmp_path / "trees"))
    (tmp_path / "deps/pkg").mkdir(parents=True)
    place = checkouts.tree("pallets/flask", commit, str(tmp_path / "deps"))
    assert (place / "calc/__init__.py").read_text() == BROKEN
    assert (place / "link").is_symlink() and (place / "run").stat().st_mode & 0o111
    assert not (place / ".git").exists() and not (place / "fired").exists()
    assert (place / ".deps/pkg").is_dir() and (place / ".deps/bin/python").is_symlink()
    assert checkouts.tree("pallets/flask", commit, str(tmp_path / "deps")) == place
    assert [path.name for path in (tmp_path / "trees").iterdir()] == [place.name]
    for repo, wanted, deps in (
        ("a/b", commit, ""),
        ("pallets/flask", "0" * 40, ""),
        ("pallets/flask", commit, "/none"),
    ):
        with pytest.raises(MissingRepository):
            checkouts.tree(repo, wanted, deps)


@needs_sandboxes
def test_rows_run_without_images_on_repositories_of_this_machine(tmp_path: Path, caplog: Any) -> None:
    _, commit = repository(tmp_path)
    row = {**SWEBENCH, "base_commit": commit, "test_patch": patch("tests/test_calc.py", OLD_TESTS, NEW_TESTS)}
    path = write_rows(tmp_path / "rows.jsonl", row, {**row, "instance_id": "a__b-1", "repo": "psf/requests"})
    (task,) = read_swebench(
        path=path, repos=str(tmp_path / "repos"), trees=str(tmp_path / "trees"), deps=str(tmp_path / "work/.deps")
    )
    assert "row 2 is left out" in caplog.text and "no repository psf/requests" in caplog.text
    played = play(task, f"python -m pytest -q tests; {FIX}", "true")
    assert [one.verdict.reward for one in played] == [1.0, 0.0], played[0].verdict.detail
    assert "1 passed" in played[0].said
