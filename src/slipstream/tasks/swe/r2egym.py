"""Reads R2E-Gym.

Its images contain the hidden tests and the script that runs them. They are removed from the agent's sandbox, but not
from the grader's, where the image's own script runs on the work. A task is solved if all statuses are as expected.
"""

from __future__ import annotations

import re

from slipstream.tasks.swe.building import NO_LATER_HISTORY, TESTBED, ReaderOptions, make_task, reader_of, test_patterns
from slipstream.tasks.swe.rows import Row
from slipstream.types import Json, Task

HIDDEN = (
    "run_tests.sh",
    "r2e_tests",
    "syn_issue.json",
    "expected_test_output.json",
    "execution_result.json",
    "parsed_commit.json",
    "modified_files.json",
    "modified_entities.json",
)
"""Files of the images that reveal the tests or the solution."""
TIMEOUT_S = 300.0
_ISSUE = re.compile(r"\[ISSUE\](.*)\[/ISSUE\]", re.DOTALL)
_COLOUR = re.compile(r"\x1b\[\d+m")
_PATH = f"{TESTBED}/.venv/bin:/root/.local/bin:/root/.cargo/bin:$PATH"


def r2egym_task(row: Row, options: ReaderOptions) -> Task:
    statement = row.text("problem_statement")
    issue = _ISSUE.search(statement)
    expected: dict[str, Json] = {
        _COLOUR.sub("", name): status for name, status in row.statuses("expected_output_json").items()
    }
    if not expected:
        raise row.wrong('the field "expected_output_json" is empty: nothing would show that the problem is solved')
    sources = row.texts("modified_files") if row.fields.get("modified_files") is not None else []
    everywhere = " ".join(f"{TESTBED}/{name} /{name}" for name in HIDDEN)
    return make_task(
        row,
        options,
        id=f"{row.text('repo_name')}-{row.text('commit_hash')}",
        image=row.text("docker_image"),
        problem=issue[1] if issue else statement,
        setup=(f"rm -rf {everywhere}", NO_LATER_HISTORY),
        grading={
            "command": f"export PATH={_PATH}\nbash {TESTBED}/run_tests.sh\n",
            "parser": "r2e",
            "rules": "r2egym",
            "expected": expected,
            "sandbox_setup": [NO_LATER_HISTORY, f"[ -e {TESTBED}/r2e_tests ] || ln -s /r2e_tests {TESTBED}/r2e_tests"],
            "drop": [*test_patterns(sources), *(f"/{name}/**" for name in HIDDEN)],
        },
    )


read_r2egym = reader_of(r2egym_task, timeout_s=TIMEOUT_S)
