"""Reads R2E-Gym.

Its images contain the hidden tests and the script that runs them. They are removed from the agent's sandbox, but not
from the grader's, where the image's own script runs on the work. A task is solved if all statuses are as expected.
"""

from __future__ import annotations

import re

from slipstream.tasks.swe.building import NO_LATER_HISTORY, make_task, reported, test_patterns
from slipstream.tasks.swe.options import TESTBED, VENV, RowContext, reader_of
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
HIDE = f"""for place in {" ".join(f"{TESTBED}/{name} /{name}" for name in HIDDEN)}; do
rm -rf "$place" 2>/dev/null || true
if [ -d "$place" ]; then find "$place" -mindepth 1 -delete || exit 1
elif [ -e "$place" ]; then : >"$place" || exit 1; fi
done"""
"""Removes them, or empties them where the image's root folder cannot be written to."""
TIMEOUT_S = 300.0
_ISSUE = re.compile(r"\[ISSUE\](.*)\[/ISSUE\]", re.DOTALL)
_COLOUR = re.compile(r"\x1b\[\d+m")
PYTEST_REPOS = frozenset(
    {"aiohttp", "bokeh", "coveragepy", "datalad", "numpy", "pandas", "pillow", "pyramid", "scrapy", "sympy"}
)
"""The repositories whose script runs pytest on the hidden tests, without a display or a runner of its own."""
WARNINGS = {"PYTHONWARNINGS": "ignore"}


def r2egym_task(row: Row, context: RowContext) -> Task:
    statement = row.text("problem_statement")
    issue = _ISSUE.search(statement)
    expected: dict[str, Json] = {
        _COLOUR.sub("", name): status for name, status in row.statuses("expected_output_json").items()
    }
    if not expected:
        raise row.wrong('the field "expected_output_json" is empty: nothing would show that the problem is solved')
    sources = row.texts("modified_files") if row.fields.get("modified_files") is not None else []
    return make_task(
        row,
        context,
        id=f"{row.text('repo_name')}-{row.text('commit_hash')}",
        image=row.text("docker_image"),
        problem=issue[1] if issue else statement,
        setup=(HIDE, NO_LATER_HISTORY),
        grading={
            **_run(row, context),
            "rules": "r2egym",
            "expected": expected,
            "sandbox_setup": [NO_LATER_HISTORY, f"[ -e {TESTBED}/r2e_tests ] || cp -R /r2e_tests {TESTBED}/r2e_tests"],
            "drop": [*test_patterns(sources), *(f"/{name}/**" for name in HIDDEN)],
        },
    )


read_r2egym = reader_of(r2egym_task, images=VENV, timeout_s=TIMEOUT_S)


def _run(row: Row, context: RowContext) -> dict[str, Json]:
    """How the hidden tests are run: by our own reporter where pytest runs them, else by the image's own script."""
    if context.uses_report(row, is_pytest=row.text("repo_name") in PYTEST_REPOS):
        return {**reported(context, "-rA", "r2e", "r2egym"), "tests": ["r2e_tests"], "env": {**WARNINGS}}
    script = context.options.own_script("r2e_tests") or f"bash {TESTBED}/run_tests.sh\n"
    return {"command": script, "parser": context.options.log_parser or "r2e"}
