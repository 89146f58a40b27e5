"""Which commits may become tasks: those that change both Python source and tests, and not too much. Pure.

A commit's changed files are tests (with their data), source of the package, or others such as documentation, which
belong to no task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from slipstream.patches.apply import Entry
from slipstream.patches.parse import LINK
from slipstream.tasks.commits.repository import Change, Commit
from slipstream.tasks.factory.package.layout import NOT_PACKAGES, TEST_FILE, TEST_FOLDERS, Layout

MAX_FILES = 12
"""Source files that a commit may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    commit: Commit
    tests: tuple[Change, ...]
    """Test files and files in the folders of tests."""
    sources: tuple[Change, ...]
    """Other files that may belong to the package."""


def candidate_of(commit: Commit) -> Candidate | None:
    """None if the commit does not change both source and tests."""
    tests = tuple(change for change in commit.changes if is_test(change.path))
    sources = tuple(change for change in commit.changes if not is_test(change.path) and _may_be_source(change.path))
    has_tests = any(change.new is not None and TEST_FILE.fullmatch(_name(change.path)) for change in tests)
    num_python = sum(change.path.endswith(".py") for change in sources)
    if not has_tests or not 0 < num_python <= MAX_FILES:
        return None
    return Candidate(commit=commit, tests=tests, sources=sources)


def is_test(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return any(part in TEST_FOLDERS for part in parts[:-1]) or bool(TEST_FILE.fullmatch(parts[-1])) or (
        parts[-1] == "conftest.py"
    )  # fmt: skip


def _may_be_source(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return parts[0].removesuffix(".py") not in NOT_PACKAGES and not parts[0].startswith(".")


def _name(path: str) -> str:
    return PurePosixPath(path).name


def in_package(path: str, layout: Layout) -> bool:
    """Whether a file is part of the package itself."""
    root = "" if layout.root == "." else f"{layout.root}/"
    return any(path == f"{root}{module}.py" or path.startswith(f"{root}{module}/") for module in layout.modules)


def num_changed_lines(patch: bytes) -> int:
    lines = patch.split(b"\n")
    return sum(line[:1] in (b"+", b"-") and not line.startswith((b"+++ ", b"--- ")) for line in lines)


def unusable(entries: Mapping[str, Entry | None]) -> str:
    """Why changed files cannot be part of a task; empty if they can."""
    for path, entry in entries.items():
        if entry is not None and entry.mode == LINK:
            return f"it changes the link {path}"
        try:
            (b"" if entry is None else entry.data).decode()
        except UnicodeDecodeError:
            return f"{path} is not UTF-8"
    return ""
