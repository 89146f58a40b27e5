"""Tasks from a clone, from end to end, in real sandboxes."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_clone import FIXED_MEAN, TESTS, git, install_pytest, write_clone

from slipstream.errors import ConfigError
from slipstream.graders.base import GradeContext
from slipstream.graders.tests import TestsGrader
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.sandbox.ready import open_sandbox
from slipstream.tasks.commits.formats import Format, write_format
from slipstream.tasks.commits.make import CommitOptions, make_commit_tasks
from slipstream.tasks.commits.swebench import write_rows
from slipstream.tasks.factory.parts import package_name, tier_of
from slipstream.tasks.factory.task_set import FactoryReport
from slipstream.tasks.gate import oracle_of, package_of
from slipstream.tasks.jsonl import read_tasks
from slipstream.tasks.swe.swebench import read_swebench
from slipstream.types import Artifact, File, Json, SandboxSpec, Task


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("clones") / "tinypack"
    commits = write_clone(folder)
    trap = folder.parent / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {folder.parent}/executed\n")
    trap.chmod(0o755)
    for name in ("core.fsmonitor", "diff.external", "core.pager", "filter.x.smudge", "diff.x.textconv"):
        git(folder, "config", name, str(trap))
    (folder / ".git/info").mkdir(exist_ok=True)
    (folder / ".git/info/attributes").write_text("* filter=x diff=x\n")
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        (folder / ".git/hooks" / hook).write_bytes(trap.read_bytes())
        (folder / ".git/hooks" / hook).chmod(0o755)
    return folder, commits


def make(clone: Path, out: Path, **options: Any) -> FactoryReport:
    async def main() -> FactoryReport:
        provider = LocalProvider()
        try:
            return await make_commit_tasks(
                clone, out, provider=provider, options=CommitOptions(num_cheats=2, **options), install=install_pytest
            )
        finally:
            await provider.aclose()

    return asyncio.run(main())


@pytest.fixture(scope="module")
def report(clone: tuple[Path, dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[FactoryReport]:
    yield make(clone[0], tmp_path_factory.getbasetemp() / "made", name="someone/tinypack")


@pytest.fixture(scope="module")
def out(report: FactoryReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "made"


@pytest.fixture(scope="module")
def tasks(out: Path) -> tuple[Task, ...]:
    return read_tasks(out / "tasks.jsonl")


def test_commits_whose_tests_tell_the_fix_become_tasks(
    report: FactoryReport, tasks: tuple[Task, ...], clone: tuple[Path, dict[str, str]]
) -> None:
    commits = clone[1]
    skipped = {one.wanted: one.skipped for one in report.packages}
    assert list(skipped) == [commits["same"], commits["mean"], commits["clamp"]], skipped
    assert skipped[commits["same"]] == "none of its tests fails before it and always passes with it"
    assert [one["commit"] for one in report.tasks] == [commits["mean"], commits["clamp"]]
    assert [one["guards"] for one in report.tasks] == [["twin"], ["twin"]]
    mean, clamp = tasks
    assert mean.id == f"tinypack-1.2-{commits['mean'][:10]}-easy" and tier_of(mean) == "easy"
    assert package_name(mean) == package_of(mean) == package_of(clamp) == "tinypack"
    assert mean.grading.spec["fail_to_pass"] == ["tests/test_numbers.py::test_mean_of_an_iterator"]
    assert clamp.grading.spec["fail_to_pass"] == [
        "tests/test_numbers.py::test_clamp_above",
        "tests/test_numbers.py::test_clamp_above_negative_limits",
    ]
    assert clamp.grading.spec["pass_to_pass"] == [
        "tests/test_numbers.py::test_clamp_keeps_what_is_inside",
        "tests/test_numbers.py::test_mean",
    ]


def test_the_agent_gets_the_parent_without_the_changed_tests(tasks: tuple[Task, ...]) -> None:
    clamp = tasks[1]
    assert clamp.sandbox is not None and not clamp.sandbox.setup
    tree = Path(clamp.sandbox.tree)
    assert "value > high" not in (tree / "tinypack/__init__.py").read_text()
    before, _, after = TESTS.partition("def test_clamp_above():\n    assert clamp(11, 0, 10) == 11\n")
    assert (tree / "tests/test_numbers.py").read_text() == before + after
    assert not list(tree.glob("tinypack/__pycache__")) and not (tree / ".git").exists()


def test_the_statement_is_the_message_without_the_place_of_the_fix(tasks: tuple[Task, ...]) -> None:
    told = tasks[1].brief.instruction
    assert "Values above the upper limit are cut by clamp, too\n\nSo far only the lower limit was kept." in told
    assert "__init__.py" not in told and "Co-authored" not in told and "#12" not in told


def test_nothing_of_the_clone_was_executed(report: FactoryReport, clone: tuple[Path, dict[str, str]]) -> None:
    assert report.num_passed == 2 and not (clone[0].parent / "executed").exists()


def test_a_set_goes_on_without_the_commits_that_were_tried(
    report: FactoryReport, out: Path, clone: tuple[Path, dict[str, str]]
) -> None:
    lines = (out / "tasks.jsonl").read_text()
    again = make(clone[0], out, name="someone/tinypack")
    assert [one.wanted for one in again.packages] == [one.wanted for one in report.packages]
    assert again.num_passed == report.num_passed and (out / "tasks.jsonl").read_text() == lines
    assert not list(out.glob(".part-*"))
    with pytest.raises(ConfigError, match=r"max_lines.*name a new folder"):
        make(clone[0], out, name="someone/tinypack", max_lines=5)


def test_an_issue_is_the_statement_of_the_commit_that_names_it(
    clone: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    issue = "In tinypack/__init__.py the function clamp ignores its last argument.\n\nassert test_clamp_above fails"
    made = make(clone[0], tmp_path / "set", issues={"12": issue}, since=clone[1]["first"], num=2, max_lines=2)
    assert {one.wanted: one.skipped for one in made.packages}[clone[1]["mean"]] == ""
    (one,) = [one for one in made.tasks if one["commit"] == clone[1]["clamp"]]
    (task,) = [task for task in read_tasks(tmp_path / "set/tasks.jsonl") if task.id == one["id"]]
    assert one["statement"] == "issue"
    assert "A user reports:\n\nIn tinypack/__init__.py the function clamp ignores its last argument.\n\nMake" in (
        task.brief.instruction
    )


def test_rows_leave_out_what_the_formats_parser_cannot_read(tasks: tuple[Task, ...], out: Path, tmp_path: Path) -> None:
    facts = {one["id"]: one for one in json.loads((out / "report.json").read_text())["tasks"]}

    def row(*failing: str) -> list[str]:
        spec: dict[str, Json] = {**tasks[0].grading.spec, "fail_to_pass": [*failing]}
        task = replace(tasks[0], grading=replace(tasks[0].grading, spec=spec))
        lines = write_rows((task,), facts, tmp_path).read_text().splitlines()
        return [test for line in lines for test in json.loads(json.loads(line)["FAIL_TO_PASS"])]

    assert row("t.py::test_a[1]", "t.py::test_a[a b]") == ["t.py::test_a[1]"]
    assert row("t.py::test_a[a b]") == []


def test_rows_in_the_format_of_swe_bench_are_graded_alike(tasks: tuple[Task, ...], out: Path) -> None:
    place = write_format(Format.SWEBENCH, out)
    row = json.loads(place.read_text().splitlines()[0])
    assert row["repo"] == "someone/tinypack" and "+def test_mean_of_an_iterator():" in row["test_patch"]
    assert row["problem_statement"] == "The average of an iterator can be asked for"
    read = read_swebench(path=str(place), base="host", tree=f"{out}/trees/{{id}}")
    assert [task.id for task in read] == [task.id for task in tasks]

    async def main() -> list[float]:
        provider = LocalProvider()
        grader, rewards = TestsGrader(), []
        try:
            for patch in (oracle_of(read[0]).encode(), b""):
                assert read[0].sandbox is not None
                context = GradeContext(provider=provider, sandbox=read[0].sandbox)
                rewards.append((await grader.grade(read[0].grading, Artifact(patch=patch), context)).reward)
        finally:
            await provider.aclose()
        return rewards

    assert asyncio.run(main()) == [1.0, 0.0]


def test_harbor_folders_are_solved_by_their_solution(tasks: tuple[Task, ...], out: Path) -> None:
    folder = write_format(Format.HARBOR, out) / tasks[0].id
    assert {path.name for path in folder.iterdir()} == {
        "instruction.md", "task.toml", "environment", "solution", "tests",
    }  # fmt: skip
    assert 'schema_version = "1.4"' in (folder / "task.toml").read_text()
    tree = folder / "environment/tree"
    assert "values = list(values)" not in (tree / "tinypack/__init__.py").read_text()

    async def main() -> list[str]:
        provider = LocalProvider()
        env = {"PYTHONPATH": "/work:/work/.deps"}
        sandbox = await open_sandbox(provider, SandboxSpec(tree=str(tree), env=env), timeout_s=60.0)
        found = []
        try:
            files = {f"/tmp/tests/{path.name}": File(data=path.read_bytes()) for path in (folder / "tests").iterdir()}
            solve = File(data=(folder / "solution/solve.sh").read_bytes())
            await sandbox.write({**files, "/tmp/solve.sh": solve, "/tmp/logs/reward.json": File(data=b'{"reward": 1}')})
            for command in ("true", "bash /tmp/solve.sh"):
                await sandbox.exec(["/bin/sh", "-c", command], timeout_s=60.0)
                graded = await sandbox.exec(
                    ["/usr/bin/env", "python3", "-I", "-S", "/tmp/tests/grade.py", "/tmp/logs"], timeout_s=60.0
                )
                assert graded.exit_code == 0, graded.stderr.text()
                listed = await sandbox.exec(["/bin/sh", "-c", "ls /tmp/logs; cat /tmp/logs/reward.txt"], timeout_s=60.0)
                found.append(listed.stdout.text())
            assert (await sandbox.read("tinypack/__init__.py")).decode() == FIXED_MEAN
        finally:
            await sandbox.aclose()
            await provider.aclose()
        return found

    assert asyncio.run(main()) == ["reward.txt\n0\n", "reward.txt\n1\n"]
