"""A folder in place of a data set's image: a small repository with its history, and pytest."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from graded_tree import add_pytest

from slipstream.graders.base import GradeContext
from slipstream.graders.registry import find_grader
from slipstream.patches.apply import Entry, make_patch
from slipstream.sandbox.base import Changes
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.sandbox.ready import open_sandbox
from slipstream.types import Artifact, SandboxLimits, Task, Verdict

needs_sandboxes = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("git") is None, reason="needs Linux and git"
)

BROKEN = "def total(values):\n    return sum(values[1:])\n\n\ndef largest(values):\n    return max(values)\n"
FIXED = BROKEN.replace("values[1:]", "values")
OLD_TESTS = "from calc import largest\n\n\ndef test_largest():\n    assert largest([1, 3]) == 3\n"
NEW_TESTS = "from calc import largest, total\n" + OLD_TESTS.partition("\n")[2] + (
    "\n\ndef test_total():\n    assert total([1, 2]) == 3\n"
)  # fmt: skip
FIX = "sed -i 's/values\\[1:\\]/values/' calc/__init__.py"


def patch(path: str, old: str, new: str) -> str:
    return make_patch({path: Entry(data=old.encode())}, {path: Entry(data=new.encode())}).decode()


SWEBENCH = {
    "repo": "pallets/flask",
    "instance_id": "pallets__flask-1",
    "base_commit": "HEAD",
    "version": "2.3",
    "problem_statement": "total([1, 2]) gives 2, and 3 is right.",
    "hints_text": "It skips the first.",
    "created_at": "2024-01-01",
    "patch": patch("calc/__init__.py", BROKEN, FIXED),
    "test_patch": patch("tests/test_calc.py", OLD_TESTS, NEW_TESTS),
    "FAIL_TO_PASS": '["tests/test_calc.py::test_total"]',
    "PASS_TO_PASS": '["tests/test_calc.py::test_largest"]',
    "environment_setup_commit": "abc",
}
R2EGYM = {
    "repo_name": "pillow",
    "docker_image": "namanjain12/pillow_final:0123abc",
    "commit_hash": "0123abc",
    "problem_statement": "Words before.\n[ISSUE]\ntotal([1, 2]) gives 2.\n[/ISSUE]",
    "expected_output_json": json.dumps({"test_largest": "PASSED", "\x1b[1mtest_total\x1b[0m": "PASSED"}),
    "modified_files": ["calc/__init__.py"],
}


def write_rows(path: Path, *rows: Mapping[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=someone", "-c", "user.email=someone@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def make_repository(folder: Path, files: Mapping[str, str]) -> None:
    """Files, pytest where a sandbox finds it, and a first commit."""
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    git(folder, "init", "--quiet")
    (folder / ".gitignore").write_text(".deps\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "First")
    _add_pytest_program(folder / ".deps")


def add_later_history(folder: Path) -> str:
    """The fix, as a commit that is no longer checked out, with a tag, a branch and a log of it. Leaves its name."""
    (folder / "calc/__init__.py").write_text(FIXED)
    git(folder, "commit", "--quiet", "--all", "--message", "The fix")
    later = git(folder, "rev-parse", "HEAD")
    git(folder, "tag", "v2")
    git(folder, "branch", "later")
    git(folder, "remote", "add", "origin", "https://example.org/calc")
    git(folder, "reset", "--quiet", "--hard", "HEAD~1")
    return later


def _add_pytest_program(folder: Path) -> None:
    add_pytest(folder)
    (folder / "bin").mkdir()
    program = folder / "bin/pytest"
    program.write_text('#!/bin/sh\nexec python3 -B -m pytest -p no:cacheprovider --color=no "$@"\n')
    program.chmod(0o755)


def on_this_machine(task: Task) -> Task:
    """The same task where an image's environment would be."""
    assert task.sandbox is not None
    here = {"PATH": "/testbed/.deps/bin:/usr/bin:/bin", "PYTHONPATH": "/testbed/.deps:/testbed"}
    limits = SandboxLimits(memory_mb=512, disk_mb=128)
    return replace(task, sandbox=replace(task.sandbox, env={**task.sandbox.env, **here}, limits=limits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    said: str
    """What the agent's commands printed."""
    verdict: Verdict


def play(task: Task, *works: str) -> list[Played]:
    """For each script: an agent runs it in a sandbox of the task, and what it changed is graded."""
    task = on_this_machine(task)

    async def one(provider: LocalProvider, script: str) -> Played:
        assert task.sandbox is not None
        sandbox = await open_sandbox(provider, task.sandbox, timeout_s=60.0)
        try:
            assert isinstance(sandbox, Changes)
            ran = await sandbox.exec(["/bin/sh", "-c", script], timeout_s=60.0)
            changed = await sandbox.changes(task.patch_of)
        finally:
            await sandbox.aclose()
        context = GradeContext(provider=provider, sandbox=task.sandbox)
        verdict = await find_grader(task.grading.kind).grade(task.grading, Artifact(patch=changed.patch), context)
        return Played(said=ran.stdout.text() + ran.stderr.text(), verdict=verdict)

    async def main() -> list[Played]:
        provider = LocalProvider()
        try:
            return [await one(provider, script) for script in works]
        finally:
            await provider.aclose()

    return asyncio.run(main())
