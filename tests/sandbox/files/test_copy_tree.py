"""Copying a folder of ours."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.sandbox.files.copy import FOLDER, copy_tree


def open_descriptors() -> list[int]:
    return [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_descriptors()) + 40, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_descriptors")
def test_a_folder_of_many_folders_is_copied_whole_with_few_descriptors(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for number in range(200):
        (source / f"{number:03d}" / "below").mkdir(parents=True)
        (source / f"{number:03d}" / "below" / "file").write_text(str(number))
    target.mkdir()
    num_open = len(open_descriptors())
    fds = [os.open(folder, FOLDER) for folder in (source, target)]
    try:
        copy_tree(*fds, uid=os.geteuid(), gid=os.getegid())
    finally:
        for fd in fds:
            os.close(fd)
    assert len(open_descriptors()) == num_open
    found = {str(path.relative_to(target)): path.read_text() for path in target.glob("*/below/file")}
    assert found == {f"{number:03d}/below/file": str(number) for number in range(200)}
