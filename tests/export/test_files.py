"""Whole or not there."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.export.files import MANIFEST, exported_file, exported_folder


def test_a_file_is_at_its_place_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with exported_file(path, force=False) as beside:
        beside.write_text("half")
        assert not path.exists()
        assert ".part-" in beside.name
        beside.write_text("whole")
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
    assert path.read_text() == "whole"


def failing_file(path: Path, raised: BaseException) -> None:
    with exported_file(path, force=True) as beside:
        beside.write_text("half")
        raise raised


def failing_folder(path: Path, raised: BaseException) -> None:
    with exported_folder(path, force=True) as beside:
        (beside / "x").write_text("half")
        raise raised


@pytest.fixture(params=[failing_file, failing_folder])
def failing(request: pytest.FixtureRequest) -> Iterator[Callable[[Path, BaseException], None]]:
    yield request.param


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    failing: Callable[[Path, BaseException], None], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written .*No space left.*choose another path"):
        failing(tmp_path / "a", OSError(errno.ENOSPC, "No space left on device"))
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_is_stopped_leaves_what_was_there(
    failing: Callable[[Path, BaseException], None], tmp_path: Path
) -> None:
    old = tmp_path / "a"
    if failing is failing_folder:
        old.mkdir()
        (old / MANIFEST).write_text("old")
    else:
        old.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        failing(old, KeyboardInterrupt())
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
    assert (old / MANIFEST if old.is_dir() else old).read_text() == "old"


def test_a_folder_whose_place_the_new_one_cannot_take_is_put_back(tmp_path: Path) -> None:
    old = tmp_path / "a"
    old.mkdir()
    (old / MANIFEST).write_text("old")
    with pytest.raises(ConfigError, match="cannot be written"), exported_folder(old, force=True) as beside:
        beside.rmdir()
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
    assert (old / MANIFEST).read_text() == "old"


def test_what_is_there_is_replaced_with_force_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(ConfigError, match=r"already exists.*--force"), exported_file(path, force=False):
        pass
    with exported_file(path, force=True) as beside:
        beside.write_text("new")
    assert path.read_text() == "new"


def test_a_folder_is_replaced_only_if_an_export_made_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.mkdir()
    (path / "precious").write_text("x")
    with pytest.raises(ConfigError, match="is not an exported folder"), exported_folder(path, force=True):
        pass
    (path / MANIFEST).write_text("")
    with exported_folder(path, force=True) as beside:
        (beside / "new").write_text("x")
    assert [each.name for each in path.iterdir()] == ["new"]
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_folder_takes_the_place_of_no_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("x")
    with pytest.raises(ConfigError, match="is not a folder"), exported_folder(path, force=True):
        pass
    assert path.read_text() == "x"


@pytest.mark.parametrize("writer", [exported_file, exported_folder])
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_file_is_never_replaced(
    tmp_path: Path, writer: Callable[..., AbstractContextManager[Path]], force: bool, linked: bool
) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with (
        pytest.raises(ConfigError, match="is not a regular file, so it is not replaced: choose another"),
        writer(link if linked else pipe, force=force),
    ):
        pass
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "pipe"]


def test_a_link_that_leads_nowhere_is_replaced_with_force(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    with exported_file(link, force=True) as beside:
        beside.write_text("new")
    assert not link.is_symlink()
    assert link.read_text() == "new"


def test_a_place_in_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "none" / "a", tmp_path / "file" / "a"):
        with pytest.raises(ConfigError, match="there is no folder"), exported_file(path, force=False):
            pass
