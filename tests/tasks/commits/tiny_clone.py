"""A small git repository with a history, made anew for each test, and requirements that need no network."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tiny_package import add_pytest

from slipstream.tasks.factory.package.install import Interpreter, add_interpreter
from slipstream.tasks.factory.package.layout import Layout
from slipstream.tasks.factory.package.runner import DEPS

SOURCE = '''"""Numbers."""


def clamp(value, low, high):
    """Keep a value between two others."""
    if value < low:
        return low
    return value


def mean(values):
    """The average."""
    return sum(values) / len(values)
'''
FIXED_CLAMP = SOURCE.replace("        return low\n", "        return low\n    if value > high:\n        return high\n")
FIXED_MEAN = FIXED_CLAMP.replace(
    "    return sum(values) / len(values)", "    values = list(values)\n    return sum(values) / len(values)"
)
TESTS = """from tinypack import clamp, mean


def test_clamp_keeps_what_is_inside():
    assert clamp(5, 0, 10) == 5


def test_clamp_above():
    assert clamp(11, 0, 10) == 11


def test_mean():
    assert mean([1, 2]) == 1.5
"""
CLAMP_TESTS = TESTS.replace("== 11", "== 10") + """

def test_clamp_above_negative_limits():
    assert clamp(0, -5, -2) == -2
"""  # fmt: skip
MEAN_TESTS = CLAMP_TESTS + """

def test_mean_of_an_iterator():
    assert mean(iter([1, 2, 3])) == 2
"""  # fmt: skip
SETTINGS = '[project]\nname = "tinypack"\nversion = "1.2"\n\n[tool.pytest.ini_options]\ntestpaths = ["tests"]\n'
CLAMP = """Values above the upper limit are cut by clamp, too (#12)

So far only the lower limit was kept.

Changes tinypack/__init__.py.

Co-authored-by: Somebody <somebody@example.org>
"""
MEAN = "The average of an iterator can be asked for\n"


def git(folder: Path, *command: str) -> str:
    env = {
        "PATH": os.defpath, "HOME": str(folder), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_AUTHOR_DATE": "2025-03-01T10:00:00Z",
        "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org", "GIT_COMMITTER_DATE": "2025-03-01T10:00:00Z",
    }  # fmt: skip
    done = subprocess.run(["git", *command], cwd=folder, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path, message: str, files: Mapping[str, str]) -> str:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)
    return git(folder, "rev-parse", "HEAD")


def write_clone(folder: Path) -> dict[str, str]:
    """Make the repository. Returns the commits by a short name."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    start = {"tinypack/__init__.py": SOURCE, "tests/test_numbers.py": TESTS, "pyproject.toml": SETTINGS}
    return {
        "first": commit(folder, "Begin", start),
        "clamp": commit(folder, CLAMP, {"tinypack/__init__.py": FIXED_CLAMP, "tests/test_numbers.py": CLAMP_TESTS}),
        "docs": commit(folder, "Explain what clamp does in the manual", {"docs/manual.md": "It clamps.\n"}),
        "mean": commit(folder, MEAN, {"tinypack/__init__.py": FIXED_MEAN, "tests/test_numbers.py": MEAN_TESTS}),
        "same": commit(
            folder,
            "Divide by the length in one place alone",
            {
                "tinypack/__init__.py": FIXED_MEAN.replace("The average", "The mean"),
                "tests/test_numbers.py": f"{MEAN_TESTS}\n\ndef test_mean_of_one():\n    assert mean([1]) == 1\n",
            },
        ),
    }


async def install_pytest(tree: Path, layout: Layout, downloads: Path, python: Interpreter) -> tuple[str, ...]:
    """As `add_requirements`, with the pytest that runs these tests in place of a download."""
    add_pytest(tree / DEPS)
    add_interpreter(tree, python)
    return ()
