"""Writes a set of tasks from commits as rows in SWE-bench's format.

Input: the folder of a set. Output: one row for each task, as `slipstream.tasks.swe.swebench` reads it.
Invariants: a row names its test script, which writes the commit's test files itself, so it runs on a checkout of
`base_commit` and on the agent's tree alike; patch and test patch are the commit's own. Tests whose ids the format's log
parser cannot read, such as those with spaces, are left out, and so is a task whose FAIL_TO_PASS has no other.

    slipstream eval swe tasks=slipstream.tasks.swe.swebench:read_swebench tasks.args.path=DIR/swebench.jsonl \
        tasks.args.base=host tasks.args.tree=DIR/trees/{id}
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Mapping
from pathlib import Path

from slipstream.graders.testing.logs import PARSERS, PASSED
from slipstream.tasks.factory.building import issue_in
from slipstream.tasks.factory.package.runner import WORKDIR
from slipstream.tasks.swe.building import END, START
from slipstream.tasks.swe.options import TESTBED
from slipstream.types import Json, Task

FILE = "swebench.jsonl"


def write_rows(tasks: tuple[Task, ...], facts: Mapping[str, Mapping[str, Json]], out: Path) -> Path:
    rows = [json.dumps(row_of(task, facts[task.id])) for task in tasks if _readable(task, "fail_to_pass")]
    (out / FILE).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return out / FILE


def row_of(task: Task, facts: Mapping[str, Json]) -> dict[str, Json]:
    spec = task.grading.spec
    return {
        "instance_id": task.id,
        "repo": facts["repo"],
        "base_commit": facts["parent"],
        "environment_setup_commit": facts["parent"],
        "version": facts["version"],
        "created_at": facts["created"],
        "problem_statement": issue_in(task.brief.instruction),
        "hints_text": "",
        "patch": spec["oracle"],
        "test_patch": facts["test_patch"],
        "FAIL_TO_PASS": json.dumps(_readable(task, "fail_to_pass")),
        "PASS_TO_PASS": json.dumps(_readable(task, "pass_to_pass")),
        "env": json.dumps(environment_of(task)),
        "eval_script": eval_script(task),
        "eval_type": "pass_and_fail",
        "log_parser": "parse_log_pytest",
    }


def _readable(task: Task, kind: str) -> list[str]:
    tests = task.grading.spec[kind]
    assert isinstance(tests, list)
    return [test for test in map(str, tests) if test in PARSERS["pytest"](f"{PASSED} {test}")]


def environment_of(task: Task) -> dict[str, str]:
    """The variables that the tests need, in the format's folder; our reader takes them from the row."""
    env = task.grading.spec["env"]
    assert isinstance(env, dict)
    return {name: str(value).replace(WORKDIR, TESTBED) for name, value in env.items()}


def eval_script(task: Task) -> str:
    """A script that puts the commit's tests in place and runs them, with the results between the format's markers."""
    spec = task.grading.spec
    restore, tests = spec["restore"], spec["tests"]
    assert isinstance(restore, dict) and isinstance(tests, list)
    command = ["python3", "-m", "pytest", "-rA", "-o", "addopts=", "-p", "no:cacheprovider", *map(str, tests)]
    settings = [f"export {name}={shlex.quote(value)}" for name, value in environment_of(task).items()]
    return "\n".join(
        [
            "#!/bin/bash",
            f"cd {TESTBED}",
            *settings,
            *(line for path, text in restore.items() for line in written(path, text)),
            f"echo '{START}'",
            shlex.join(command),
            f"echo '{END}'",
            "",
        ]
    )


def written(path: str, text: Json) -> list[str]:
    """Shell commands that write a file, or remove it."""
    if not isinstance(text, str):
        return [f"rm -f -- {shlex.quote(path)}"]
    folder = shlex.quote(str(Path(path).parent))
    data = base64.b64encode(text.encode()).decode()
    return [f"mkdir -p -- {folder}", f"base64 -d > {shlex.quote(path)} <<'END_OF_FILE'\n{data}\nEND_OF_FILE"]
