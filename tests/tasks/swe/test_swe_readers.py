"""The public formats: one task written by hand in each goes from its row through an agent's work to its verdict, on a
folder that stands in for the image; and what a row says becomes what a harness would do."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stand_in import (
    BROKEN,
    FIX,
    FIXED,
    NEW_TESTS,
    OLD_TESTS,
    R2EGYM,
    SWEBENCH,
    Played,
    add_later_history,
    git,
    make_repository,
    needs_sandboxes,
    patch,
    play,
    write_rows,
)

from slipstream.errors import ConfigError, GraderError, SandboxError
from slipstream.patches.apply import Entry, apply_patch, make_patch
from slipstream.tasks.cheats.base import Target
from slipstream.tasks.cheats.suite import cheats_of
from slipstream.tasks.source import load_tasks
from slipstream.tasks.swe.building import reversed_patch
from slipstream.tasks.swe.r2egym import read_r2egym
from slipstream.tasks.swe.swebench import read_swebench
from slipstream.tasks.swe.swegym import read_swegym
from slipstream.tasks.swe.swesmith import read_swesmith
from slipstream.types import Task

EVAL_SCRIPT = f"""#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout HEAD tests/test_calc.py
git apply -v - <<'EOF_1'
{SWEBENCH["test_patch"]}
EOF_1
: '>>>>> Start Test Output'
pytest -rA tests/test_calc.py
: '>>>>> End Test Output'
git checkout HEAD tests/test_calc.py
"""
SWEBENCH_5 = {
    **SWEBENCH,
    "image": "swebench/sweb.eval.x86_64.pallets_1776_flask-1:v2",
    "eval_script": EVAL_SCRIPT,
    "log_parser": "parse_log_flask",
    "eval_type": "pass_and_fail",
}
SWEGYM = {
    **SWEBENCH,
    "repo": "iterative/dvc",
    "instance_id": "iterative__dvc-1",
    "version": "3.1",
    "FAIL_TO_PASS": ["tests/test_calc.py::test_total"],
    "PASS_TO_PASS": ["tests/test_calc.py::test_largest"],
}
SWESMITH = {
    "instance_id": "Someone__calc.0123abcd.lm_rewrite__x1",
    "repo": "swesmith/Someone__calc.0123abcd",
    "image_name": "swesmith.x86_64.someone__calc.0123abcd",
    "patch": patch("calc/__init__.py", FIXED, BROKEN),
    "problem_statement": "total([1, 2]) gives 2, and 3 is right.",
    "FAIL_TO_PASS": ["tests/test_calc.py::test_total"],
    "PASS_TO_PASS": ["tests/test_calc.py::test_largest", "tests/test_far.py::test_not_run"],
}
SWEBENCH_NEEDS = ("instance_id", "repo", "problem_statement", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS")
CHEAT = "printf 'import os\\nos._exit(0)\\n' > calc/__init__.py"
FORGED = "printf 'def test_total(): pass\\ndef test_largest(): pass\\n' > tests/test_calc.py; " + (
    "printf 'collect_ignore = []\\n' > conftest.py"
)

Reader = Callable[..., tuple[Task, ...]]


def task_of(reader: Reader, tmp_path: Path, row: dict[str, Any], **more: Any) -> Task:
    (task,) = reader(path=write_rows(tmp_path / "rows.jsonl", row), **more)
    return task


def without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {field: value for field, value in row.items() if field != name}


def rewards(played: list[Played]) -> list[float]:
    return [one.verdict.reward for one in played]


# ---------------------------------------------------------------- from a row to a verdict


@needs_sandboxes
@pytest.mark.parametrize(
    ("reader", "row", "parser"),
    [
        (read_swebench, SWEBENCH, "report"),
        (read_swebench, SWEBENCH, "log"),
        (read_swebench, SWEBENCH_5, "log"),
        (read_swegym, SWEGYM, "auto"),
    ],
)
def test_a_task_of_the_swebench_format_is_worked_on_and_judged(
    tmp_path: Path, reader: Reader, row: dict[str, Any], parser: str
) -> None:
    image = tmp_path / "image"
    make_repository(image, {"calc/__init__.py": BROKEN, "tests/test_calc.py": OLD_TESTS})
    later = add_later_history(image)
    task = task_of(reader, tmp_path, row, base="host", tree=str(image), timeout_s=60.0, parser=parser)
    look = f"git log --all --oneline; git tag; git remote; git cat-file -t {later}; cat tests/*.py"
    played = play(task, f"{look}; {FIX}; git commit -qam done", "true", CHEAT, FORGED)
    assert rewards(played) == [1.0, 0.0, 0.0, 0.0], [one.verdict.detail for one in played]
    assert "First" in played[0].said
    assert "The fix" not in played[0].said and "v2" not in played[0].said and "origin" not in played[0].said
    assert "could not get object info" in played[0].said
    assert "test_total" not in played[0].said


@needs_sandboxes
def test_a_task_of_r2egym_is_worked_on_and_judged(tmp_path: Path) -> None:
    image = tmp_path / "image"
    make_repository(image, {"calc/__init__.py": BROKEN, "tests/test_calc.py": OLD_TESTS})
    (image / "r2e_tests").mkdir()
    (image / "r2e_tests/test_1.py").write_text(NEW_TESTS)
    (image / "run_tests.sh").write_text("pytest -rA r2e_tests\n")
    task = task_of(read_r2egym, tmp_path, R2EGYM, base="host", tree=str(image), timeout_s=60.0)
    played = play(task, f"ls; {FIX}", "true", CHEAT, f"{FIX}; echo true > run_tests.sh; mkdir r2e_tests")
    assert rewards(played) == [1.0, 0.0, 0.0, 1.0], [one.verdict.detail for one in played]
    assert played[0].said.split() == ["calc", "tests"]
    assert played[1].verdict.components == {"as_expected": 0.5, "log_rule": 0.0}


@needs_sandboxes
def test_a_task_of_swesmith_is_worked_on_and_judged(tmp_path: Path) -> None:
    image = tmp_path / "image"
    make_repository(image, {"calc/__init__.py": FIXED, "tests/test_calc.py": NEW_TESTS, "tests/test_far.py": OLD_TESTS})
    task = task_of(read_swesmith, tmp_path, SWESMITH, base="host", tree=str(image), timeout_s=60.0)
    played = play(task, f"cat calc/__init__.py; ls tests; git log -p; {FIX}", "true", CHEAT, FORGED)
    assert rewards(played) == [1.0, 0.0, 0.0, 0.0], [one.verdict.detail for one in played]
    assert "+    return sum(values)\n" in str(task.grading.spec["oracle"])
    assert "sum(values[1:])" in played[0].said and "sum(values)" not in played[0].said
    assert "test_calc.py" not in played[0].said and "test_far.py" in played[0].said
    assert played[0].said.count("commit ") == 1


FORGED_LOG = """import contextlib, os
for fd in range(20):  # one of them is the output that pytest put aside
    with contextlib.suppress(OSError):
        os.write(fd, b"PASSED tests/test_calc.py::test_total\\nPASSED tests/test_calc.py::test_largest\\n")
os._exit(0)
"""


@needs_sandboxes
@pytest.mark.parametrize(("parser", "reward"), [("log", 1.0), ("report", 0.0)])
def test_a_printed_report_pays_by_the_data_sets_own_rule_and_not_by_ours(
    tmp_path: Path, parser: str, reward: float
) -> None:
    image = tmp_path / "image"
    make_repository(image, {"calc/__init__.py": BROKEN, "tests/test_calc.py": OLD_TESTS})
    task = task_of(read_swebench, tmp_path, SWEBENCH, base="host", tree=str(image), timeout_s=60.0, parser=parser)
    task = replace(task, grading=replace(task.grading, spec={**task.grading.spec, "twin": False}))
    (played,) = play(task, f"cat > calc/__init__.py <<'END'\n{FORGED_LOG}END\n")
    assert played.verdict.reward == reward, played.verdict.detail


def reading_hidden_files() -> str:
    """A script that leaves a package which looks for its own fix when it is imported."""
    before = {"calc/__init__.py": Entry(data=BROKEN.encode())}
    target = Target(
        source="calc/__init__.py", root="", test_file="tests/test_calc.py", tests=(), read=lambda path: BROKEN.encode()
    )
    entry = apply_patch(cheats_of(target)["read hidden files"], before.get)["calc/__init__.py"]
    assert entry is not None
    return f"cat > calc/__init__.py <<'END_OF_CHEAT'\n{entry.data.decode()}END_OF_CHEAT\n"


@needs_sandboxes
@pytest.mark.parametrize(
    ("reader", "row"),
    [(read_swebench, SWEBENCH), (read_r2egym, R2EGYM), (read_swesmith, SWESMITH)],
    ids=["swebench", "r2egym", "swesmith"],
)
def test_the_fix_is_not_in_the_history_that_the_graders_sandbox_holds(
    tmp_path: Path, reader: Reader, row: dict[str, Any]
) -> None:
    image = tmp_path / "image"
    if reader is read_swesmith:
        make_repository(image, {"calc/__init__.py": FIXED, "tests/test_calc.py": NEW_TESTS})
    else:
        make_repository(image, {"calc/__init__.py": BROKEN, "tests/test_calc.py": OLD_TESTS})
        add_later_history(image)
        (image / "r2e_tests").mkdir()
        (image / "r2e_tests/test_1.py").write_text(NEW_TESTS)
        (image / "run_tests.sh").write_text("pytest -rA r2e_tests\n")
    task = task_of(reader, tmp_path, row, base="host", tree=str(image), timeout_s=60.0)
    (cheated,) = play(task, reading_hidden_files())
    assert cheated.verdict.reward == 0.0
    assert "test_total" in cheated.verdict.detail


@needs_sandboxes
def test_patches_that_do_not_fit_the_image_are_named(tmp_path: Path) -> None:
    image = tmp_path / "image"
    make_repository(image, {"calc/__init__.py": "x = 1\n", "tests/test_calc.py": "y = 2\n"})
    bug = task_of(read_swesmith, tmp_path, SWESMITH, base="host", tree=str(image))
    with pytest.raises(SandboxError, match=r"(?s)# the patch of the row must fit .*does not apply"):
        play(bug, "true")
    tests = task_of(read_swebench, tmp_path, SWEBENCH, base="host", tree=str(image))
    with pytest.raises(GraderError, match=r"test_patch does not apply to the task's files: tests/test_calc\.py"):
        play(tests, "true")


def test_an_image_where_local_sandboxes_are_asked_for_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"docker\.io/swebench/.*flask-1:latest"):
        play(task_of(read_swebench, tmp_path, SWEBENCH), "true")


DIGITS = "".join(f"{digit}\n" for digit in range(1, 10))


@pytest.mark.parametrize(
    "patches",
    [
        patch("calc/__init__.py", FIXED, BROKEN),
        patch("a.py", "--- x\n+++ y\n1\n", "--- z\n1\n2")
        + patch("b.py", "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n9\n"),
        make_patch({}, {"new.py": Entry(data=b"one\ntwo\n")}).decode(),
        make_patch({"old.py": Entry(data=b"one\ntwo\n")}, {}).decode(),
    ],
)
def test_a_patch_can_be_turned_round(patches: str) -> None:
    before = {"calc/__init__.py": FIXED, "a.py": "--- x\n+++ y\n1\n", "b.py": DIGITS}
    files: dict[str, Entry | None] = {name: Entry(data=text.encode()) for name, text in before.items()}
    files["old.py"] = Entry(data=b"one\ntwo\n")
    there = {**files, **apply_patch(patches.encode(), files.get)}
    assert there != files
    back = {**there, **apply_patch(reversed_patch(patches).encode(), there.get)}
    assert {name: entry for name, entry in back.items() if entry is not None} == files


def test_a_rename_is_not_turned_round() -> None:
    assert reversed_patch("diff --git a/x b/y\nrename from x\nrename to y\n") == ""


# ---------------------------------------------------------------- what the agent gets


@pytest.mark.parametrize(
    ("reader", "row", "image"),
    [
        (read_swebench, SWEBENCH, "docker.io/swebench/sweb.eval.x86_64.pallets_1776_flask-1:latest"),
        (read_swebench, SWEBENCH_5, "docker.io/swebench/sweb.eval.x86_64.pallets_1776_flask-1:v2"),
        (read_swegym, SWEGYM, "docker.io/xingyaoww/sweb.eval.x86_64.iterative_s_dvc-1:latest"),
        (read_r2egym, R2EGYM, "docker.io/namanjain12/pillow_final:0123abc"),
        (read_swesmith, SWESMITH, "docker.io/jyangballin/swesmith.x86_64.someone_1776_calc.0123abcd"),
        (read_swesmith, {**SWESMITH, "image_name": "swebench/x"}, "docker.io/swebench/x"),
        (read_swesmith, {**SWESMITH, "image_name": "example.org/x"}, "example.org/x"),
        (read_swesmith, {**SWESMITH, "image_name": "localhost/x"}, "localhost/x"),
    ],
)
def test_the_image_is_named_as_the_data_set_names_it(
    tmp_path: Path, reader: Reader, row: dict[str, Any], image: str
) -> None:
    task = task_of(reader, tmp_path, row)
    assert task.sandbox is not None
    assert task.sandbox.base == image
    assert task.sandbox.workdir == task.patch_of == "/testbed"


@pytest.mark.parametrize(
    ("reader", "row"),
    [(read_swebench, SWEBENCH), (read_swebench, SWEBENCH_5), (read_swegym, SWEGYM), (read_r2egym, R2EGYM)],
)
def test_no_part_of_the_answer_is_in_what_the_agent_sees(tmp_path: Path, reader: Reader, row: dict[str, Any]) -> None:
    task = task_of(reader, tmp_path, row)
    seen = repr((task.brief, task.sandbox))
    assert "total([1, 2]) gives 2" in seen
    for hidden in ("sum(values)", "test_total", "It skips", "expected_output", "Words before"):
        assert hidden not in seen


def test_the_fix_of_a_planted_bug_is_not_in_the_brief(tmp_path: Path) -> None:
    task = task_of(read_swesmith, tmp_path, SWESMITH)
    assert "sum(values)" not in repr(task.brief)
    assert task.sandbox is not None
    assert not task.sandbox.files


# ---------------------------------------------------------------- what is run


def test_what_pytest_runs_is_reported_by_our_own_reporter_with_the_data_sets_rule_beside_it(tmp_path: Path) -> None:
    for reader, row, rule in (
        (read_swebench, SWEBENCH, {"parser": "pytest", "rules": "swebench"}),
        (read_swebench, SWEBENCH_5, {"parser": "pytest", "rules": "swebench"}),
        (read_swebench, {**SWEBENCH, "repo": "sphinx-doc/sphinx"}, {"parser": "pytest_any_order", "rules": "swebench"}),
        (read_r2egym, R2EGYM, {"parser": "r2e", "rules": "r2egym"}),
        (read_swesmith, SWESMITH, {"parser": "smith_pytest", "rules": "swesmith"}),
    ):
        spec = task_of(reader, tmp_path, row).grading.spec
        assert spec["parser"] == "report" and spec["log_rule"] == rule
    for row in ({**SWEBENCH, "repo": "sympy/sympy"}, {**SWEBENCH, "repo": "django/django"}):
        assert task_of(read_swebench, tmp_path, row).grading.spec["parser"] != "report"
        with pytest.raises(ConfigError, match="not run by pytest"):
            task_of(read_swebench, tmp_path, row, parser="report")
    assert task_of(read_r2egym, tmp_path, {**R2EGYM, "repo_name": "tornado"}).grading.spec["parser"] == "r2e"


def test_an_unknown_repository_is_run_by_pytest_or_by_a_script_of_ones_own(tmp_path: Path) -> None:
    row = {**SWEBENCH, "repo": "someone/calc"}
    assert command_of(read_swebench, tmp_path, row, "report") == ["python", "-rA"]
    script = tmp_path / "run.sh"
    script.write_text("make test ARGS='{tests}'\n")
    spec = task_of(read_swebench, tmp_path, row, eval_script=str(script), log_parser="parse_log_flask").grading.spec
    assert (spec["command"], spec["parser"]) == ("make test ARGS='tests/test_calc.py'\n", "pytest")
    with pytest.raises(ConfigError, match="cannot be read"):
        task_of(read_swebench, tmp_path, row, eval_script="/none/there.sh")


def test_limits_and_variables_of_a_reader_are_its_tasks(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"limits": {"turns": 7}, "sandbox_limits": {"memory_mb": 512}, "env": {"A": "b"}}
    source = "slipstream.tasks.swe.swebench:read_swebench"
    path = write_rows(tmp_path / "rows.jsonl", SWEBENCH, {**SWEBENCH, "instance_id": "a__b-2"})
    (task,) = load_tasks(source, num=None, args={"path": path, "ids": ["a__b-2"], "setup": ["true"], **limits})
    assert task.sandbox is not None
    assert (task.id, task.brief.limits.turns, task.sandbox.limits.memory_mb) == ("a__b-2", 7, 512)
    assert task.sandbox.env["A"] == "b" and task.sandbox.setup[0] == "true"
    with pytest.raises(ConfigError, match='no "turn" in limits'):
        load_tasks(source, num=None, args={"path": path, "limits": {"turn": 7}})
    with pytest.raises(ConfigError, match="has no row c"):
        load_tasks(source, num=None, args={"path": path, "ids": ["c"]})


@pytest.mark.parametrize(
    ("reader", "row", "python"),
    [
        (read_swebench, SWEBENCH, "/opt/miniconda3/envs/testbed/bin/python"),
        (read_swegym, SWEGYM, "/opt/miniconda3/envs/testbed/bin/python"),
        (read_swesmith, SWESMITH, "/opt/miniconda3/envs/testbed/bin/python"),
        (read_r2egym, R2EGYM, "/testbed/.venv/bin/python"),
    ],
)
def test_the_environment_of_the_images_is_entered(
    tmp_path: Path, reader: Reader, row: dict[str, Any], python: str
) -> None:
    sandbox = task_of(reader, tmp_path, row).sandbox
    assert sandbox is not None and sandbox.activation.python == python
    assert sandbox.activation.path[0] == python.removesuffix("/python")
    other = task_of(reader, tmp_path, row, python="/opt/own/bin/python").sandbox
    assert other is not None and other.activation.path == ("/opt/own/bin",)
    entered = task_of(reader, tmp_path, row, entry="source x").sandbox
    assert entered is not None and (entered.activation.script, entered.activation.python) == ("source x", python)


def test_the_tests_of_django_are_run_as_modules(tmp_path: Path) -> None:
    tests = patch("tests/admin/test_a.py", "x\n", "y\n") + patch("tests/admin/data.json", "1\n", "2\n")
    row = {
        **SWEBENCH,
        "repo": "django/django",
        "instance_id": "django__django-1",
        "version": "3.1",
        "test_patch": tests,
    }
    command = str(task_of(read_swebench, tmp_path, row).grading.spec["command"])
    assert "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 admin.test_a\n" in command
    assert "locale-gen" in command


def command_of(reader: Reader, tmp_path: Path, row: dict[str, Any], parser: str) -> Any:
    return task_of(reader, tmp_path, row, parser=parser).grading.spec["command"]


def test_versions_differ(tmp_path: Path) -> None:
    row = {**SWEBENCH, "repo": "astropy/astropy", "version": "1.3"}
    classic = ["-rA", "-vv", "-o", "console_output_style=classic", "--tb=no"]
    assert command_of(read_swebench, tmp_path, row, "report") == ["python", *classic]
    assert "-o console_output_style=classic" in command_of(read_swebench, tmp_path, row, "log")
    row = {**SWEBENCH, "repo": "astropy/astropy", "version": "5.1"}
    assert command_of(read_swebench, tmp_path, row, "auto") == ["python", "-rA"]
    assert "pytest -rA tests/test_calc.py" in command_of(read_swebench, tmp_path, row, "log")


def test_the_cases_of_mypy_are_chosen_by_name(tmp_path: Path) -> None:
    cases = patch("test-data/unit/check.test", "x\n", "x\n[case testOne]\n[case testTwo]\n")
    row = {**SWEGYM, "repo": "python/mypy", "instance_id": "python__mypy-1", "version": "1.8", "test_patch": cases}
    assert command_of(read_swegym, tmp_path, row, "auto") == ["python", "-rA", "-k", "testOne or testTwo"]
    assert "pytest -rA -k 'testOne or testTwo'\n" in command_of(read_swegym, tmp_path, row, "log")


def test_only_expected_tests_of_files_that_are_run_count(tmp_path: Path) -> None:
    spec = task_of(read_swesmith, tmp_path, SWESMITH).grading.spec
    assert spec["pass_to_pass"] == ["tests/test_calc.py::test_largest"]


def test_source_in_a_place_of_tests_can_be_changed(tmp_path: Path) -> None:
    drop = task_of(read_swebench, tmp_path, SWEBENCH).grading.spec["drop"]
    assert isinstance(drop, list) and "**/tests/**" in drop
    row = {**SWEBENCH, "patch": patch("astropy/tests/runner.py", "x\n", "y\n")}
    drop = task_of(read_swebench, tmp_path, row).grading.spec["drop"]
    assert isinstance(drop, list) and "**/tests/**" not in drop and "**/test_*.py" in drop


def test_settings_that_the_fix_changes_can_be_changed(tmp_path: Path) -> None:
    fix = patch("sklearn/conftest.py", "x\n", "y\n") + patch("setup.cfg", "x\n", "y\n")
    assert task_of(read_swebench, tmp_path, {**SWEBENCH, "patch": fix}).grading.spec["keep"] == [
        "setup.cfg",
        "sklearn/conftest.py",
    ]


# ---------------------------------------------------------------- files


def test_rows_are_read_from_parquet_and_json_as_from_jsonl(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist([SWEGYM, {**SWEGYM, "instance_id": "a__b-2"}]), tmp_path / "r.parquet")
    (tmp_path / "r.json").write_text(json.dumps([SWEGYM]))
    from_lines = task_of(read_swegym, tmp_path, SWEGYM)
    assert read_swegym(path=str(tmp_path / "r.parquet"), num=1) == (from_lines,)
    assert len(read_swegym(path=str(tmp_path / "r.parquet"))) == 2
    assert read_swegym(path=str(tmp_path / "r.json")) == (from_lines,)


def test_a_run_can_name_a_reader_as_its_source(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", SWEBENCH)
    source = "slipstream.tasks.swe.swebench:read_swebench"
    (task,) = load_tasks(source, num=1, args={"path": path, "tools": ["bash", "finish"]})
    assert task.brief.tools == ("bash", "finish")


@pytest.mark.parametrize(
    ("reader", "row", "said"),
    [
        (read_swebench, {"instance_id": "a__b-1"}, 'row 1: the field "'),
        *((read_swebench, without(SWEBENCH, name), f'"{name}" is missing') for name in SWEBENCH_NEEDS),
        *((read_swegym, without(SWEGYM, name), f'"{name}" is missing') for name in SWEBENCH_NEEDS),
        *((read_r2egym, without(R2EGYM, name), f'"{name}" is missing') for name in ("docker_image", "commit_hash")),
        (read_r2egym, without(R2EGYM, "expected_output_json"), '"expected_output_json" is missing'),
        *((read_swesmith, without(SWESMITH, name), f'"{name}" is missing') for name in ("patch", "PASS_TO_PASS")),
        (read_swebench, {**SWEBENCH, "instance_id": 7}, "is a int, but must be text"),
        (read_swebench, {**SWEBENCH, "repo": "pallets/flusk"}, 'did you mean "pallets/flask"'),
        (read_swebench, {**SWEBENCH, "FAIL_TO_PASS": "[oops"}, "not valid JSON"),
        (read_swebench, {**SWEBENCH, "FAIL_TO_PASS": "[]"}, "nothing would show"),
        (read_swebench, {**SWEBENCH, "patch": "no patch"}, '"patch" is not a valid patch'),
        (read_swebench, {**SWEBENCH, "problem_statement": " "}, "would not know what to do"),
        (read_swebench, {**SWEBENCH_5, "log_parser": "parse_log_jest"}, "is not supported: only those for Python"),
        (read_swebench, {**SWEBENCH_5, "eval_type": "fail_only"}, "only pass_and_fail"),
        (read_r2egym, {**R2EGYM, "expected_output_json": "[]"}, "must be a map from text to text"),
        (read_swesmith, {**SWESMITH, "instance_id": "calc-1"}, "owner__repo.commit.name"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, reader: Reader, row: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match="row 1") as raised:
        task_of(reader, tmp_path, row)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rows.csv", "", "are not supported"),
        ("rows.jsonl", "{", "not valid JSON"),
        ("rows.jsonl", "[]\n", "instead of an object"),
        ("rows.json", "{}", "a list of rows"),
        ("rows.parquet", "x", "as Parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_swebench(path=str(tmp_path / name))
    with pytest.raises(ConfigError, match="there is no file"):
        read_swebench(path=str(tmp_path / "none.jsonl"))


def test_the_stand_in_holds_what_the_agent_must_not_find(tmp_path: Path) -> None:
    make_repository(tmp_path, {"calc/__init__.py": BROKEN})
    later = add_later_history(tmp_path)
    assert git(tmp_path, "cat-file", "-t", later) == "commit"
