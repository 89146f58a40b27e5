"""Writes a set of tasks from commits as Harbor folders, task schema 1.4.

Input: the folder of a set. Output: `harbor/ID/` with instruction.md, task.toml, environment/, solution/ and tests/.
Invariants: the image is built from the agent's tree alone; the solution and the commit's tests are only in `solution/`
and `tests/`, which Harbor brings into the container after the agent; the tests' own reward is written last, over
whatever was there, and only if every test of FAIL_TO_PASS and PASS_TO_PASS passed is it 1.

In this format the tests run where the agent worked, and their results can be forged by its work: the twin run and the
reporter of our own grader do not come along.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from slipstream.patches.apply import Entry, apply_patch
from slipstream.tasks.commits.checkout import link_folder
from slipstream.tasks.commits.swebench import written
from slipstream.tasks.factory.building import issue_in
from slipstream.tasks.factory.package.runner import DEPS, WORKDIR
from slipstream.tasks.factory.package.sources import normal_name
from slipstream.types import Json, Task

FOLDER = "harbor"
GRADE = Path(__file__).with_name("harbor_grade.py")


def write_folders(tasks: tuple[Task, ...], facts: Mapping[str, Mapping[str, Json]], out: Path, *, python: str) -> Path:
    """`python` is the version that the requirements in the trees were installed for."""
    for task in tasks:
        folder = out / FOLDER / task.id
        shutil.rmtree(folder, ignore_errors=True)
        _write_task(task, facts[task.id], folder, python)
    return out / FOLDER


def _write_task(task: Task, facts: Mapping[str, Json], folder: Path, python: str) -> None:
    assert task.sandbox is not None
    tree = Path(task.sandbox.tree)
    link_folder(tree, folder / "environment/tree")
    shutil.rmtree(folder / "environment/tree" / DEPS / "bin")
    (folder / "environment/tree" / DEPS / "pyvenv.cfg").unlink()
    env = {name: value for name, value in task.sandbox.env.items() if name != "PATH"}
    settings = "".join(f'ENV {name}="{value}"\n' for name, value in env.items())
    files = {
        "instruction.md": f"The source is in {WORKDIR}.\n\n{issue_in(task.brief.instruction)}\n",
        "task.toml": _settings(task, facts),
        "environment/Dockerfile": f"FROM python:{python}-slim\nCOPY tree {WORKDIR}\n{settings}WORKDIR {WORKDIR}\n",
        "solution/solve.sh": _solution(task, tree),
        "tests/test.sh": f"#!/bin/bash\ncd {WORKDIR}\nexec python3 -I -S /tests/grade.py\n",
        "tests/grade.py": GRADE.read_text(encoding="utf-8"),
        "tests/expected.json": json.dumps(
            {name: task.grading.spec[name] for name in ("fail_to_pass", "pass_to_pass", "tests", "restore")}
        ),
    }
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        if path.endswith(".sh"):
            place.chmod(0o755)


def _settings(task: Task, facts: Mapping[str, Json]) -> str:
    assert task.sandbox is not None
    limits = task.sandbox.limits
    owner, _, name = str(facts["repo"]).rpartition("/")
    title = f"{normal_name(owner or name)}/{task.id}"
    return "\n".join(
        [
            'schema_version = "1.4"',
            f"source = {json.dumps(str(facts['repo']))}",
            "",
            "[task]",
            f"name = {json.dumps(title)}",
            f"description = {json.dumps('A change to ' + name)}",
            'keywords = ["software-engineering", "python"]',
            "",
            "[metadata]",
            f"tier = {json.dumps(facts['tier'])}",
            f"commit = {json.dumps(facts['commit'])}",
            "",
            "[agent]",
            "timeout_sec = 3600.0",
            "",
            "[environment]",
            "build_timeout_sec = 600.0",
            f"cpus = {max(1.0, limits.cpus)}",
            f"memory_mb = {limits.memory_mb}",
            f"storage_mb = {10 * limits.disk_mb}",
            f"workdir = {json.dumps(WORKDIR)}",
            "",
            "[verifier]",
            f"timeout_sec = {float(str(task.grading.spec['timeout_s']))}",
            "",
        ]
    )


def _solution(task: Task, tree: Path) -> str:
    def read(path: str) -> Entry | None:
        return Entry(data=(tree / path).read_bytes()) if (tree / path).is_file() else None

    solved = apply_patch(str(task.grading.spec["oracle"]).encode(), read)
    texts = {path: None if entry is None else entry.data.decode() for path, entry in solved.items()}
    lines = [line for path, text in texts.items() for line in written(path, text)]
    return "\n".join(["#!/bin/bash", "set -e", f"cd {WORKDIR}", *lines, ""])
