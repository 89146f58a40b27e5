"""Reads SWE-smith.

A row's patch makes the bug: its image has the repository without it. The patch is applied when a sandbox is set up, and
the history is then a single commit, since the one before would be the fix. The tests that show the bug are removed from
the agent's sandbox.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from slipstream.graders.testing.rules import files_of
from slipstream.tasks.swe.building import (
    END,
    START,
    apply_command,
    changed_paths,
    fail_to_pass,
    make_task,
    reported,
    reversed_patch,
    script_for,
    test_patterns,
)
from slipstream.tasks.swe.options import CONDA, RowContext, log_parser_named, reader_of
from slipstream.tasks.swe.rows import Row
from slipstream.types import Json, Task

PYTEST = "pytest --disable-warnings --color=no --tb=no --verbose"
TIMEOUT_S = 480.0
NEW_HISTORY = """rm -rf .git
git init --quiet
git add --all
git -c user.name=slipstream -c user.email=slipstream@localhost commit --quiet --message Start"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """How a repository's tests are run."""

    command: str = PYTEST
    parser: str = "smith_pytest"


SUITES: Mapping[str, Suite] = {
    "hips/autograd": Suite(parser="smith_xdist"),
    "jax-ml/jax": Suite(command=f"{PYTEST} -n auto"),
    "mido/mido": Suite(command=f"{PYTEST} -rs -c /dev/null"),
    "paramiko/paramiko": Suite(command="pytest -rA --color=no --disable-warnings", parser="smith_summary"),
    "pydantic/pydantic": Suite(command=f"/root/.local/bin/uv run {PYTEST}"),
    "python/mypy": Suite(command="pytest --color=no -rA -k", parser="smith_mypy"),
    "tkrajina/gpxpy": Suite(command="pytest test.py --verbose --color=no --tb=no --disable-warnings"),
    "tornadoweb/tornado": Suite(command="python -m tornado.test --verbose", parser="smith_tornado"),
    "un33k/python-slugify": Suite(command="python test.py --verbose", parser="smith_unittest"),
}
"""The repositories that differ, by name in lower case."""
_ID = re.compile(r"(?P<owner>.+?)__(?P<repo>.+)\.(?P<commit>[0-9a-f]{8})\..+")


def image_of(image_name: str, owner: str, repo: str, commit: str) -> str:
    """The row's name if it is complete, or else the name on Docker Hub."""
    if "/" in image_name:
        return image_name
    return f"jyangballin/swesmith.x86_64.{owner}_1776_{repo}.{commit}".lower()


def swesmith_task(row: Row, context: RowContext) -> Task:
    instance_id = row.text("instance_id")
    named = _ID.fullmatch(instance_id)
    if named is None:
        raise row.wrong(f"the instance_id {instance_id!r} is not of the form owner__repo.commit.name")
    owner, repo, commit = named["owner"], named["repo"], named["commit"]
    bug = apply_command(row.text("patch"), row)
    failing = fail_to_pass(row)
    suite = SUITES.get(f"{owner}/{repo}".lower(), Suite())
    files, selected = _tests(suite, f"{owner}/{repo}".lower(), failing)
    hide = [f"rm -f -- {' '.join(map(shlex.quote, files))}"] if files else []
    kept: list[Json] = [test for test in row.texts("PASS_TO_PASS") if not files or test.startswith(files)]
    shown: list[Json] = [f"/{path}" for path in files]
    return make_task(
        row,
        context,
        id=instance_id,
        image=image_of(row.text("image_name", ""), owner, repo, commit),
        problem=row.text("problem_statement"),
        setup=(bug, *hide, NEW_HISTORY),
        grading={
            **_run(row, context, suite, files, selected),
            "fail_to_pass": [*failing],
            "pass_to_pass": kept,
            "sandbox_setup": [bug, NEW_HISTORY],
            "oracle": reversed_patch(row.text("patch")),
            "drop": [*test_patterns(changed_paths(row, "patch")), *shown],
        },
    )


read_swesmith = reader_of(swesmith_task, images=CONDA, timeout_s=TIMEOUT_S)


def _run(row: Row, context: RowContext, suite: Suite, files: tuple[str, ...], selected: str) -> dict[str, Json]:
    """How the tests are run. By our own reporter a test that is not reported did not pass; by the data set's rule it
    did, if the log shows the end of the run."""
    parser = log_parser_named(context.options.log_parser, {}) or suite.parser
    command = " ".join(filter(None, [suite.command, selected, *map(shlex.quote, files)]))
    if context.uses_report(row, is_pytest=suite.command.startswith("pytest ")):
        arguments = " ".join(filter(None, [suite.command.removeprefix("pytest "), selected]))
        return {**reported(context, arguments, parser, "swesmith"), "rules": "swebench", "tests": [*files]}
    script = context.options.own_script(" ".join(map(shlex.quote, files))) or script_for(command)
    return {"command": script, "parser": parser, "rules": "swesmith", "markers": [START, END]}


def _tests(suite: Suite, name: str, failing: list[str]) -> tuple[tuple[str, ...], str]:
    """The files that are run, none if that is all of them, and how cases are selected by name."""
    if name == "python/mypy":
        cases = " or ".join(test.rpartition("::")[2] for test in failing)
        return (), shlex.quote(cases)
    return (files_of(failing) if "pytest" in suite.command else ()), ""
