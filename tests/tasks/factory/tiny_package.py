"""A small package with tests, like an unpacked source distribution, and a fetcher that needs no network."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from slipstream.sandbox.base import SandboxProvider
from slipstream.tasks.factory.package.fetch import Package
from slipstream.tasks.factory.package.layout import read_layout
from slipstream.tasks.factory.package.runner import DEPS
from slipstream.tasks.factory.package.sources import Requirement

SOURCE = '''"""Sums and words."""


def clamp(value, low, high):
    """Keep a value between two others."""
    if value < low:
        return low
    if value > high:
        return high
    return value


def windows(items, size):
    """All runs of `size` neighbours."""
    items = list(items)
    if size < 1:
        raise ValueError("size must be at least 1")
    found = []
    for start in range(len(items) - size + 1):
        found.append(tuple(items[start : start + size]))
    return found


class Counter:
    def __init__(self, start=0):
        self.total = start
        self.names = []

    def add(self, name, amount=1):
        self.names.append(name)
        self.total += amount
        return self.total


def never_tested(x):
    return x + 1
'''

TESTS = """import pytest

from tinypack.core import Counter, clamp, windows


def test_clamp_keeps_what_is_inside():
    assert clamp(5, 0, 10) == 5


def test_clamp_cuts_both_sides():
    low = clamp(-1, 0, 10)
    assert low == 0
    assert clamp(11, 0, 10) == 10


@pytest.mark.parametrize("size, expected", [(1, [(1,), (2,), (3,)]), (2, [(1, 2), (2, 3)]), (4, [])])
def test_windows(size, expected):
    assert windows([1, 2, 3], size) == expected


def test_windows_refuses_nothing():
    with pytest.raises(ValueError):
        windows([1], 0)


class TestCounter:
    def test_adds(self):
        counter = Counter()
        counter.add("a")
        assert counter.add("b", 2) == 3
        assert counter.names == ["a", "b"]

    def test_begins_where_told(self):
        assert Counter(5).add("a") == 6


def test_that_needs_the_network():
    import socket

    socket.create_connection(("192.0.2.1", 80), timeout=0.2)


def test_that_is_not_steady(tmp_path):
    import os

    marker = "/tmp/was_here"
    assert not os.path.exists(marker)
    open(marker, "w").close()
"""


def write_source(folder: Path) -> Path:
    """The unpacked source distribution."""
    (folder / "tinypack").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "tinypack/__init__.py").write_text("from tinypack.core import Counter, clamp, windows\n")
    (folder / "tinypack/core.py").write_text(SOURCE)
    (folder / "tests/test_core.py").write_text(TESTS)
    (folder / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: tinypack\nVersion: 1.2\n")
    return folder


async def fetch_tiny(wanted: Requirement, trees: Path, downloads: Path, *, provider: SandboxProvider) -> Package:
    """As `fetch`, with the pytest that runs these tests in place of a download."""
    assert wanted.path is not None
    tree = trees / "tinypack-1.2"
    shutil.copytree(wanted.path, tree)
    layout = read_layout(tree, name="tinypack", version="1.2")
    add_pytest(tree / DEPS)
    return Package(layout=layout, tree=tree)


def add_pytest(folder: Path) -> None:
    """Copy the pytest that runs these tests to a folder on the search path."""
    folder.mkdir()
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        found = importlib.util.find_spec(name)
        assert found is not None and found.origin is not None
        shutil.copytree(Path(found.origin).parent, folder / name)
        for info in Path(found.origin).parents[1].glob(f"{name}-*.dist-info"):
            shutil.copytree(info, folder / info.name)
    (folder / "py.py").write_bytes(Path(pytest.__file__).parents[1].joinpath("py.py").read_bytes())
