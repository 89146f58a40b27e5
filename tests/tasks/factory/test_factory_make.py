"""The factory from end to end, on a small package, in real sandboxes."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_package import SOURCE, fetch_tiny, write_source

from slipstream.bench.localise import run as localise
from slipstream.errors import ConfigError
from slipstream.graders.base import GradeContext
from slipstream.graders.tests import TestsGrader
from slipstream.patches.apply import Entry, make_patch
from slipstream.recipes.swe.oracle import demonstration, program_of
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.tasks.factory.make import make_tasks
from slipstream.tasks.factory.package.fetch import Package
from slipstream.tasks.factory.package.runner import open_workers
from slipstream.tasks.factory.package.sources import Requirement, Skipped
from slipstream.tasks.factory.package.suite import Suite, find_suite
from slipstream.tasks.factory.plant import Planted
from slipstream.tasks.factory.plant import plant as plant_bugs
from slipstream.tasks.factory.task_set import FactoryReport
from slipstream.tasks.gate import check_task, check_tasks
from slipstream.tasks.jsonl import read_tasks
from slipstream.tasks.reference_edits import reference_edits
from slipstream.types import Artifact, Task, Verdict


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("factory")


@pytest.fixture(scope="module")
def report(folder: Path) -> Iterator[FactoryReport]:
    source = write_source(folder / "tinypack-1.2")

    async def make() -> FactoryReport:
        provider = LocalProvider()
        try:
            return await make_tasks(
                [str(source)], folder / "set", provider=provider, seed=5, per_package=3, fetcher=fetch_tiny
            )
        finally:
            await provider.aclose()

    yield asyncio.run(make())


@pytest.fixture(scope="module")
def tasks(report: FactoryReport, folder: Path) -> tuple[Task, ...]:
    return read_tasks(folder / "set/tasks.jsonl")


def test_tasks_are_made_and_pass_the_gate(report: FactoryReport, tasks: tuple[Task, ...], folder: Path) -> None:
    assert report.num_passed == len(tasks) == 3, report.as_json()
    told = json.loads((folder / "set/report.json").read_text())
    assert told["num_passed"] == 3 and {one["id"] for one in told["tasks"]} == {task.id for task in tasks}


def test_a_statement_tells_the_symptom_and_not_the_place(tasks: tuple[Task, ...]) -> None:
    for task in tasks:
        assert "core.py" not in task.brief.instruction and "test_" not in task.brief.instruction
        assert "the package's source" in task.brief.instruction.lower()


def test_the_agents_sandbox_holds_neither_oracle_nor_hidden_tests(tasks: tuple[Task, ...]) -> None:
    for task in tasks:
        assert task.sandbox is not None
        (changed,) = task.sandbox.files.values()
        assert changed.data.decode() != SOURCE
        assert task.sandbox.setup and task.grading.spec["sandbox_setup"] == []


def test_the_oracle_makes_the_source_what_it_was(tasks: tuple[Task, ...]) -> None:
    for task in tasks:
        assert task.sandbox is not None
        text = task.sandbox.files["tinypack/core.py"].data.decode()
        for edit in reference_edits(task):
            text = text.replace(edit.old, edit.new)
        assert text == SOURCE


def test_a_demonstration_uses_the_tasks_own_tools(tasks: tuple[Task, ...]) -> None:
    for task in tasks:
        lines = demonstration(task, with_search=True)
        used = [line.calls[0].name for line in lines]
        has_search = "search" in task.brief.tools
        assert used[-1] == "finish" and used[0] == ("search" if has_search else "bash")
        assert set(used) <= {name.rpartition(":")[2] for name in task.brief.tools}
        assert bool(program_of(task.brief.instruction)) == ("When I run this" in task.brief.instruction)


def test_a_task_that_nothing_solves_is_refused(tasks: tuple[Task, ...]) -> None:
    async def check(oracle: str) -> str:
        spec = {**tasks[0].grading.spec, "oracle": oracle}
        task = replace(tasks[0], grading=replace(tasks[0].grading, spec=spec))
        provider = LocalProvider()
        try:
            return (await check_task(task, provider=provider, num_repeats=1, num_cheats=0)).reason
        finally:
            await provider.aclose()

    wrong = make_patch({}, {"notes.txt": Entry(data=b"nothing\n")}).decode()
    assert "the oracle is worth 0" in asyncio.run(check(wrong))
    assert "no oracle" in asyncio.run(check(""))


def test_a_set_can_be_checked_again(tasks: tuple[Task, ...], folder: Path) -> None:
    async def check() -> dict[str, object]:
        provider = LocalProvider()
        try:
            done = await check_tasks(folder / "set", provider=provider, num_repeats=1, with_cheats=False, num=2)
        finally:
            await provider.aclose()
        return dict(done.as_json())

    told = asyncio.run(check())
    assert told["num_tasks"] == told["num_passed"] == 2 and told["num_gradings"] == 4


def test_localisation_counts_every_task(tasks: tuple[Task, ...], folder: Path) -> None:
    told = localise(folder / "set")
    assert told["num_tasks"] == len(tasks)
    for figure in ("search_share", "search_top5", "text_top5", "grep_top5"):
        assert isinstance(share := told[figure], float) and 0.0 <= share <= 1.0


def test_only_steady_tests_count_and_the_same_seed_gives_the_same_bugs(tmp_path: Path) -> None:
    source = write_source(tmp_path / "tinypack-1.2")

    async def run() -> tuple[Suite, Planted, Planted]:
        provider = LocalProvider()
        try:
            wanted = Requirement(name="tinypack", version="1.2", path=source)
            package = await fetch_tiny(wanted, tmp_path / "trees", tmp_path, provider=provider)
            async with open_workers(provider, package.spec, num_at_once=2) as workers:
                suite = await find_suite(package, workers)
                first = await plant_bugs(package, suite, workers, seed=1, num=4)
                again = await plant_bugs(package, suite, workers, seed=1, num=4)
            return suite, first, again
        finally:
            await provider.aclose()

    suite, first, again = asyncio.run(run())
    names = {test.partition("::")[2] for test in suite.tests}
    assert "test_clamp_cuts_both_sides" in names and "TestCounter::test_adds" in names
    assert not names & {"test_that_needs_the_network", "test_that_is_not_steady"}
    assert {function.name for function in suite.touched} == {"clamp", "windows", "Counter.__init__", "Counter.add"}
    assert [bug.mutant for bug in first.bugs] == [bug.mutant for bug in again.bugs] and len(first.bugs) == 4
    for bug in first.bugs:
        assert bug.failing and not set(bug.failing) & set(bug.passing)


def test_a_package_that_the_folder_holds_is_not_made_again(report: FactoryReport, folder: Path) -> None:
    async def again(per_package: int, **settings: Any) -> FactoryReport:
        provider = LocalProvider()
        try:
            return await make_tasks(
                [str(folder / "tinypack-1.2"), "none-such==1"], folder / "set", provider=provider, seed=5,
                per_package=per_package, fetcher=refuse, **settings,
            )  # fmt: skip
        finally:
            await provider.aclose()

    async def refuse(wanted: Requirement, *_: object, **__: object) -> Package:
        raise Skipped(f"{wanted} was asked for")

    lines = (folder / "set/tasks.jsonl").read_text()
    more = asyncio.run(again(3))
    assert more.num_passed == report.num_passed == 3
    assert [one.skipped for one in more.packages] == ["", "none-such==1 was asked for"]
    assert (folder / "set/tasks.jsonl").read_text() == lines
    with pytest.raises(ConfigError, match=r"'per_package': 3.*name a new folder"):
        asyncio.run(again(4))
    with pytest.raises(ConfigError, match=r"tiny.*name a new folder"):
        asyncio.run(again(3, tiers=["tiny"]))


def test_a_folder_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(ConfigError, match="name a new folder"):
        asyncio.run(make_tasks(["toolz==1.0.0"], tmp_path, provider=LocalProvider()))


REWRITES = (
    '''
def clamp(value, low, high):
    return max(low, min(value, high))


def windows(items, size):
    items = list(items)
    if size < 1:
        raise ValueError(f"a size of {size}")
    return list(zip(*(items[start:] for start in range(size))))


class Counter:
    def __init__(self, start=0):
        self.total = start
        self.names = []

    def add(self, name, amount=1):
        self.names += [name]
        self.total = self.total + amount
        return self.total
''',
    '''
def clamp(value, low, high):
    return sorted((low, value, high))[1]


def windows(items, size):
    if not size >= 1:
        raise ValueError
    items = tuple(items)
    return [items[end - size : end] for end in range(size, len(items) + 1)]


class Counter:
    names = property(lambda self: [name for name, _ in self._added])
    total = property(lambda self: self._start + sum(amount for _, amount in self._added))

    def __init__(self, start=0):
        self._start, self._added = start, []

    def add(self, name, amount=1):
        self._added.append((name, amount))
        return self.total
''',
    '''
import itertools


def clamp(value, low, high):
    return low if value < low else high if value > high else value


def windows(items, size):
    if size <= 0:
        raise ValueError("nothing to see")
    window, found = [], []
    for item in items:
        window.append(item)
        if len(window) == size:
            found.append(tuple(window))
            del window[0]
    return found


class Counter:
    def __init__(self, start=0):
        self.total, self.names = start, []

    def add(self, name, amount=1):
        self.names.extend([name])
        self.total = sum(itertools.chain([self.total], [amount]))
        return self.total
''',
)  # fmt: skip


def test_honest_rewrites_are_worth_as_much_as_the_oracle(report: FactoryReport, tasks: tuple[Task, ...]) -> None:
    assert report.num_replayed == len(tasks), "else the replay would not be asked"

    async def main() -> list[Verdict]:
        provider = LocalProvider()
        verdicts = []
        try:
            for task in tasks:
                assert task.sandbox is not None
                context = GradeContext(provider=provider, sandbox=task.sandbox)
                buggy = Entry(data=task.sandbox.files["tinypack/core.py"].data)
                for text in REWRITES:
                    new = Entry(data=(text + "\n\ndef never_tested(x):\n    return x + 1\n").encode())
                    patch = make_patch({"tinypack/core.py": buggy}, {"tinypack/core.py": new})
                    verdicts.append(await TestsGrader().grade(task.grading, Artifact(patch=patch), context))
        finally:
            await provider.aclose()
        return verdicts

    verdicts = asyncio.run(main())
    assert [verdict.reward for verdict in verdicts] == [1.0] * 9, [verdict.detail for verdict in verdicts]
