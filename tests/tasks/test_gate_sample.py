import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from slipstream.cli.tasks import tasks_app
from slipstream.tasks.gate import GateReport, TaskCheck, package_of, sampled
from slipstream.types import Brief, Grading, SandboxSpec, Task


def task(package: str, number: int) -> Task:
    return Task(
        id=f"{package}-{number}",
        brief=Brief(instruction="Mend it."),
        sandbox=SandboxSpec(tree=f"/set/trees/{package}"),
        grading=Grading(kind="tests"),
    )


TASKS = [task(package, number) for package in ("one", "two", "three") for number in range(9)]


def ids(tasks: Iterable[Task]) -> set[str]:
    return {task.id for task in tasks}


SEEDS = st.integers(0, 1_000)


@given(SEEDS, st.integers(1, 12))
def test_a_sample_has_as_many_of_each_package_in_the_order_of_the_set(seed: int, num: int) -> None:
    found = sampled(TASKS, num, seed)
    assert Counter(map(package_of, found)) == dict.fromkeys(("one", "two", "three"), min(num, 9))
    assert sorted(found, key=TASKS.index) == list(found)


@given(SEEDS, st.integers(1, 8))
def test_a_larger_sample_holds_the_smaller_and_other_packages_do_not_matter(seed: int, num: int) -> None:
    assert ids(sampled(TASKS, num, seed)) < ids(sampled(TASKS, num + 1, seed))
    assert ids(sampled(TASKS[:9], num, seed)) < ids(sampled(TASKS, num, seed))


def test_the_seed_says_which_tasks() -> None:
    assert sampled(TASKS, 3, 1) == sampled(TASKS, 3, 1) != sampled(TASKS, 3, 2)


def test_a_task_without_a_tree_belongs_to_its_image() -> None:
    assert package_of(replace(TASKS[0], sandbox=SandboxSpec(base="swebench/x"))) == "swebench/x"
    assert package_of(replace(TASKS[0], sandbox=None)) == ""


def test_a_report_counts_by_package() -> None:
    report = GateReport(
        checked=(
            TaskCheck(id="one-1", package="one", cheats=("a", "b")),
            TaskCheck(id="one-2", package="one", reason="no", cheats=("a",)),
            TaskCheck(id="two-1", package="two"),
        )
    )
    assert report.by_package() == {"one": (2, 1, 3), "two": (1, 1, 0)}
    assert report.as_json()["packages"] == {
        "one": {"num_tasks": 2, "num_passed": 1, "num_cheats": 3},
        "two": {"num_tasks": 1, "num_passed": 1, "num_cheats": 0},
    }


def test_a_report_counts_cheats_that_were_paid_and_those_without_a_verdict() -> None:
    report = GateReport(
        checked=(
            TaskCheck(id="one", cheats=("a", "b"), paid=("a",), honest=("x", "y", "z"), honest_paid=("x", "y", "z")),
            TaskCheck(id="two", cheats=("a", "b"), paid=("a",), untrusted=("b",), honest=("x",), guards=("twin",)),
            TaskCheck(id="three", cheats=("a",), grade_s=(1.0,), guards=("replay", "twin")),
        )
    )
    told = report.as_json()
    counts = {"num_cheats": 2, "num_paid": 2, "num_untrusted": 1, "num_honest": 4, "num_honest_paid": 3}
    assert {name: told[name] for name in counts} == counts
    assert told["cheats"] == {
        "a": {"num_tried": 3, "num_paid": 2, "num_untrusted": 0},
        "b": {"num_tried": 2, "num_paid": 0, "num_untrusted": 1},
    }
    assert told["guards"] == {"replay+twin": 1}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")
def test_the_command_checks_a_sample_and_prints_a_row_for_each_package(tmp_path: Path) -> None:
    grading = {"kind": "tests", "command": ["python3"], "fail_to_pass": ["tests/test_a.py::test_b"]}
    lines = []
    for package in ("one", "two"):
        (tmp_path / package).mkdir()
        for number in range(4):
            name = f"{package}-{number}"
            lines.append({"id": name, "instruction": "Mend it.", "sandbox": {"tree": package}, "grading": grading})
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = CliRunner().invoke(tasks_app, ["check", str(tmp_path), "--sample", "2", "--seed", "3"])
    assert ran.exit_code == 1  # none of them has an oracle
    assert "package  tasks  passed  cheats tried\none      2      0       0\ntwo      2      0       0\n" in ran.stdout
    assert "0 of 4 tasks passed: 0 gradings" in ran.stdout
