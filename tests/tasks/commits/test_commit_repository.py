"""Commits and files of a clone, read without running anything of it."""

from pathlib import Path

import pytest
from tiny_clone import FIXED_CLAMP, SOURCE, git, write_clone

from slipstream.errors import ConfigError
from slipstream.tasks.commits.repository import Blob, Repository


def test_commits_come_newest_first_with_their_changes(tmp_path: Path) -> None:
    ids = write_clone(tmp_path / "clone")
    found = list(Repository.open(tmp_path / "clone").commits())
    assert [one.id for one in found] == [ids[name] for name in ("same", "mean", "docs", "clamp")]
    clamp = found[-1]
    assert clamp.parent == ids["first"] and clamp.when == "2025-03-01T10:00:00Z"
    assert clamp.subject == "Values above the upper limit are cut by clamp, too (#12)"
    assert [change.path for change in clamp.changes] == ["tests/test_numbers.py", "tinypack/__init__.py"]
    repository = Repository.open(tmp_path / "clone/.git")
    new = {change.path: change.new for change in clamp.changes if change.new is not None}
    assert repository.entries(new)["tinypack/__init__.py"].data.decode() == FIXED_CLAMP
    before = repository.entries(repository.files(clamp.parent))
    assert set(before) == {"pyproject.toml", "tests/test_numbers.py", "tinypack/__init__.py"}
    assert before["tinypack/__init__.py"].data.decode() == SOURCE


def test_merges_are_left_out_and_a_limit_is_a_day_or_a_revision(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    ids = write_clone(clone)
    git(clone, "checkout", "--quiet", "-b", "side", ids["docs"])
    git(clone, "commit", "--quiet", "--allow-empty", "-m", "Nothing")
    git(clone, "merge", "--quiet", "--no-edit", "main")
    repository = Repository.open(clone)
    assert len(list(repository.commits())) == 4, "neither the merge nor the commit without changes"
    assert [one.id for one in repository.commits(ids["docs"])] == [ids["same"], ids["mean"]]
    assert len(list(repository.commits("2025-03-01"))) == 4 and not list(repository.commits("2025-03-02"))
    for wrong in ("yesterday", "2025-13-01", "--all"):
        with pytest.raises(ConfigError, match="--since"):
            list(repository.commits(wrong))


def test_a_folder_that_is_no_clone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no git clone"):
        Repository.open(tmp_path)
    git(tmp_path, "init", "--quiet")
    with pytest.raises(ConfigError, match="has no commit at HEAD"):
        Repository.open(tmp_path)


def test_where_a_clone_comes_from(tmp_path: Path) -> None:
    write_clone(tmp_path / "clone")
    repository = Repository.open(tmp_path / "clone")
    assert repository.origin() == ""
    for url in ("https://github.com/some/pack.git", "git@github.com:some/pack.git", "ssh://git@host/some/pack"):
        git(tmp_path / "clone", "config", "remote.origin.url", url)
        assert repository.origin() == "some/pack"


def test_a_missing_object_is_not_fetched_by_a_command_of_the_clone(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    write_clone(clone)
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\n")
    trap.chmod(0o755)
    settings = {
        "core.repositoryFormatVersion": "1", "extensions.partialClone": "origin", "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::{trap}", "protocol.allow": "always", "protocol.ext.allow": "always",
    }  # fmt: skip
    for name, value in settings.items():
        git(clone, "config", name, value)
    with pytest.raises(ConfigError):
        Repository.open(clone).entries({"x": Blob(id="1" * 40, mode=0o100644)})
    assert not (tmp_path / "executed").exists()
