"""Files and folders that appear complete or not at all."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.atomic import atomic_file, atomic_folder, recover_folder, replace_folder, scratch_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_file(path: Path, text: str) -> None:
    with atomic_file(path) as part:
        part.write_text(text)
        if text == "fail":
            raise OSError(errno.ENOSPC, "No space left on device")


def write_folder(path: Path, text: str) -> None:
    with atomic_folder(path) as part:
        (part / "inside").write_text(text)
        if text == "fail":
            raise OSError(errno.ENOSPC, "No space left on device")


def read(path: Path) -> str:
    return (path / "inside" if path.is_dir() else path).read_text()


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_what_is_written_replaces_what_is_there_only_if_all_went_well(
    write: Callable[[Path, str], None], tmp_path: Path
) -> None:
    path = tmp_path / "a"
    with pytest.raises(OSError, match="No space"):
        write(path, "fail")
    assert names(tmp_path) == []
    write(path, "old")
    with pytest.raises(OSError, match="No space"):
        write(path, "fail")
    assert (names(tmp_path), read(path)) == (["a"], "old")
    write(path, "new")
    assert (names(tmp_path), read(path)) == (["a"], "new")


def test_nothing_is_at_the_place_before_it_is_complete(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a") as part:
        part.write_text("half")
        assert not (tmp_path / "a").exists()
    with atomic_folder(tmp_path / "b") as part:
        (part / "c").write_text("half")
        assert not (tmp_path / "b").exists()
    assert names(tmp_path) == ["a", "b"]


def test_a_folder_comes_back_if_its_replacement_cannot_take_its_place(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", "old")
    with pytest.raises(OSError, match="Invalid argument"):
        replace_folder(tmp_path, tmp_path / "a")  # no folder can be moved into itself
    assert (names(tmp_path), read(tmp_path / "a")) == (["a"], "old")


def test_a_folder_comes_back_if_a_process_died_while_it_stood_aside(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", "old")
    (tmp_path / "a").rename(tmp_path / ".a.old")
    recover_folder(tmp_path / "a")
    recover_folder(tmp_path / "a")
    assert (names(tmp_path), read(tmp_path / "a")) == (["a"], "old")


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_holds_is_not(tmp_path: Path) -> None:
    program = """
import os, pathlib, signal, sys
from slipstream.atomic import atomic_folder
with atomic_folder(pathlib.Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "a[1]"
    assert subprocess.run([sys.executable, "-c", program, str(path)]).returncode == -9
    (left,) = names(tmp_path)
    assert left.startswith(".a[1].part-")
    with scratch_folder(path) as living:
        assert names(tmp_path) == [living.name]
        write_folder(path, "new")
        assert names(tmp_path) == [living.name, "a[1]"]
    assert names(tmp_path) == ["a[1]"]
