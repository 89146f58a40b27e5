"""`slipstream tasks make`: a set of gated tasks out of source distributions.

Input: requirements and a seed. Output: a folder with `tasks.jsonl`, `trees/` and `report.json`, and a Report.
Invariants: what is written passed the gate; a package of which no tasks can be made is skipped with the reason, and the
others continue; the folder is complete after each package, and packages that it holds are not made again.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from slipstream.aio import task_group
from slipstream.errors import AgentError, ConfigError, SandboxError
from slipstream.sandbox.base import SandboxProvider
from slipstream.tasks.factory.building import Made, build
from slipstream.tasks.factory.difficulty import Tier, difficulty_of
from slipstream.tasks.factory.package.fetch import Package, fetch
from slipstream.tasks.factory.package.runner import Workers, open_workers
from slipstream.tasks.factory.package.sources import Requirement, Skipped, read_requirement
from slipstream.tasks.factory.package.suite import Suite, find_suite
from slipstream.tasks.factory.plant import Bug, plant
from slipstream.tasks.factory.replay.make import open_replays
from slipstream.tasks.factory.statement import Statement, state
from slipstream.tasks.gate import TASKS, TaskCheck, check_task
from slipstream.tasks.jsonl import read_tasks
from slipstream.types import Json, Task

NUM_CHEATS = 16
"""Chosen at random for each package; `slipstream tasks check` tries all of them on every task."""
SPARE_SHARE = 0.15
"""More bugs are planted than tasks requested, since some do not pass the gate."""
TIER_SHARES = {1: 0.3, 2: 0.6, 3: 0.8, 4: 1.0}
"""About the share of bugs that are of so many tiers: more are planted where only some are wanted."""
REPORT = "report.json"

OnStep = Callable[[str], None]


class Fetch(Protocol):
    """Makes the tree of a package; raises Skipped if it cannot."""

    async def __call__(
        self, wanted: Requirement, trees: Path, downloads: Path, *, provider: SandboxProvider
    ) -> Package: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageReport:
    name: str
    wanted: str = ""
    """As requested."""
    skipped: str = ""
    """Why no tasks were made from it; empty if there are some."""
    num_tests: int = 0
    num_functions: int = 0
    """Those that steady tests touch."""
    num_mutants: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Mutants and bugs that did not become tasks, by reason."""
    num_made: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)
    """Tasks that did not pass the gate, by id."""
    num_passed: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    grade_s: tuple[float, ...] = ()

    def as_json(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "wanted": self.wanted,
            "skipped": self.skipped,
            "num_tests": self.num_tests,
            "num_functions": self.num_functions,
            "num_mutants": self.num_mutants,
            "dropped": dict(self.dropped),
            "num_made": self.num_made,
            "num_passed": self.num_passed,
            "refused": dict(self.refused),
            "seconds": {name: round(taken, 1) for name, taken in self.seconds.items()},
            "grade_s": [round(taken, 3) for taken in self.grade_s],
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> PackageReport:
        return cls(**{**told, "grade_s": tuple(told["grade_s"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class FactoryReport:
    packages: tuple[PackageReport, ...]
    tasks: tuple[Mapping[str, Json], ...] = ()
    seconds: float = 0.0

    @property
    def num_tasks(self) -> int:
        return sum(package.num_made for package in self.packages)

    @property
    def num_passed(self) -> int:
        return sum(package.num_passed for package in self.packages)

    @property
    def num_replayed(self) -> int:
        """Tasks whose replay distinguishes the bug from the reference."""
        return sum("replay" in str(task["guards"]) for task in self.tasks)

    def as_json(self) -> dict[str, Json]:
        times = sorted(taken for package in self.packages for taken in package.grade_s)
        return {
            "num_tasks": self.num_tasks,
            "num_passed": self.num_passed,
            "num_packages": sum(package.num_passed > 0 for package in self.packages),
            "num_replayed": self.num_replayed,
            "tiers": dict(sorted(Counter(str(task["tier"]) for task in self.tasks).items())),
            "grade_p50_s": round(times[len(times) // 2], 3) if times else None,
            "seconds": round(self.seconds, 1),
            "packages": [package.as_json() for package in self.packages],
        }


async def make_tasks(
    requirements: Sequence[str],
    out: Path,
    *,
    provider: SandboxProvider,
    seed: int = 0,
    per_package: int = 100,
    tiers: Collection[Tier] = tuple(Tier),
    num_at_once: int = 2,
    suite_timeout_s: float = 240.0,
    downloads: Path | None = None,
    fetcher: Fetch = fetch,
    on_step: OnStep = lambda line: None,
) -> FactoryReport:
    """Make up to `per_package` tasks of each package, of these tiers alone. `out` must be new, empty, or a set that was
    begun with the same seed, tiers and number."""
    wanted = [read_requirement(text) for text in requirements]
    if not wanted:
        raise ConfigError("no package is named: write NAME==VERSION, or the path of a source distribution")
    only: list[Json] = [*sorted(map(str, tiers))]
    task_set = TaskSet.open(out, {"seed": seed, "per_package": per_package, "only": only})
    factory = _Factory(
        task_set, provider, seed, per_package, frozenset(tiers), num_at_once, suite_timeout_s, fetcher, on_step
    )
    wanted = [one for one in wanted if str(one) not in task_set.done]
    with tempfile.TemporaryDirectory(prefix="slipstream-") as temporary:
        async with task_group() as group:
            fetched = factory.fetch_all(wanted, downloads or Path(temporary), group)
            for one, fetching in fetched:
                await factory.add(one, fetching)
    return task_set.report()


class TaskSet:
    """A folder of made tasks, which grows by a package at a time."""

    def __init__(self, out: Path, settings: Mapping[str, Json]) -> None:
        self.out = out
        self._settings = settings
        self._packages: list[PackageReport] = []
        self._lines: list[Mapping[str, Json]] = []
        self._facts: list[Mapping[str, Json]] = []
        self._earlier_s = 0.0
        self._start_s = time.monotonic()

    @classmethod
    def open(cls, out: Path, settings: Mapping[str, Json]) -> TaskSet:
        made = cls(out, settings)
        if (out / REPORT).is_file():
            made._read()
        elif out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"{out} is there already and holds no task set: name a new folder, or empty this one")
        (out / "trees").mkdir(parents=True, exist_ok=True)
        made._write()
        return made

    @property
    def done(self) -> frozenset[str]:
        """The packages, as requested."""
        return frozenset(package.wanted for package in self._packages)

    def add(self, package: PackageReport, made: Sequence[Made]) -> None:
        self._packages.append(package)
        self._lines += [one.line for one in made]
        self._facts += [one.facts for one in made]
        self._write()

    def report(self) -> FactoryReport:
        seconds = self._earlier_s + time.monotonic() - self._start_s
        return FactoryReport(packages=tuple(self._packages), tasks=tuple(self._facts), seconds=seconds)

    def _read(self) -> None:
        place = self.out / REPORT
        try:
            told = json.loads(place.read_text(encoding="utf-8"))
            was = {name: told[name] for name in self._settings}
            self._packages = [PackageReport.from_json(one) for one in told["packages"]]
            self._facts = list(told["tasks"])
            self._earlier_s = float(told["seconds"])
            lines = (self.out / TASKS).read_text(encoding="utf-8").splitlines()
            self._lines = [json.loads(line) for line in lines]
        except (OSError, ValueError, KeyError, TypeError) as raised:
            raise ConfigError(f"{place} is not a report of the factory ({raised!r}): name a new folder") from None
        if was != dict(self._settings):
            raise ConfigError(f"{self.out} was made with {was}, not {dict(self._settings)}: name a new folder")

    def _write(self) -> None:
        report = self.report()
        told = {**report.as_json(), **self._settings, "tasks": [dict(one) for one in report.tasks]}
        _replace(self.out / TASKS, "".join(json.dumps(line) + "\n" for line in self._lines))
        _replace(self.out / REPORT, json.dumps(told, indent=1) + "\n")


def _replace(place: Path, text: str) -> None:
    part = place.with_name(f".{place.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(place)


class _Factory:
    def __init__(
        self,
        task_set: TaskSet,
        provider: SandboxProvider,
        seed: int,
        per_package: int,
        tiers: frozenset[Tier],
        num_at_once: int,
        suite_timeout_s: float,
        fetcher: Fetch,
        on_step: OnStep,
    ) -> None:
        self._task_set = task_set
        self._out = task_set.out
        self._provider = provider
        self._seed = seed
        self._per_package = per_package
        self._tiers = tiers
        self._num_at_once = num_at_once
        self._suite_timeout_s = suite_timeout_s
        self._fetch = fetcher
        self._say = on_step

    def fetch_all(
        self, wanted: Sequence[Requirement], downloads: Path, group: asyncio.TaskGroup
    ) -> list[tuple[Requirement, asyncio.Task[Package | Skipped]]]:
        """Fetch the packages one after the other, while tasks are made from those already fetched."""
        turn = asyncio.Semaphore(1)

        async def fetch_one(one: Requirement) -> Package | Skipped:
            async with turn:
                try:
                    return await self._fetch(one, self._out / "trees", downloads, provider=self._provider)
                except Skipped as raised:
                    return raised
                except (AgentError, SandboxError) as raised:
                    return Skipped(f"its tree could not be made: {raised}")

        return [(one, group.create_task(fetch_one(one))) for one in wanted]

    async def add(self, wanted: Requirement, fetching: asyncio.Task[Package | Skipped]) -> None:
        """Make the tasks of one package and write them down."""
        start_s = time.monotonic()
        self._say(f"{wanted}: fetching")
        try:
            package = await fetching
            if isinstance(package, Skipped):
                raise package
            report, kept = await self._make(package, time.monotonic() - start_s)
        except (Skipped, AgentError, SandboxError) as raised:
            report = PackageReport(name=str(wanted), skipped=str(raised), seconds={"all": time.monotonic() - start_s})
            kept = []
        self._say(f"{wanted}: {report.skipped or f'{report.num_passed} tasks'}")
        self._task_set.add(replace(report, wanted=str(wanted)), kept)

    async def _make(self, package: Package, fetch_s: float) -> tuple[PackageReport, list[Made]]:
        clock = _Clock({"fetch": fetch_s})
        async with open_workers(self._provider, package.spec, num_at_once=self._num_at_once) as workers:
            self._say(f"{package.label}: running its tests")
            suite = await find_suite(package, workers, timeout_s=self._suite_timeout_s)
            clock.lap("suite")
            self._say(f"{package.label}: {len(suite.tests)} steady tests; planting bugs")
            num = self._per_package + max(2, round(self._per_package * SPARE_SHARE))
            num = round(num / TIER_SHARES[len(self._tiers)])
            planted = await plant(package, suite, workers, seed=self._seed, num=num)
            clock.lap("plant")
            statements = await state(package, planted.bugs, workers)
            clock.lap("state")
            dropped = Counter(planted.dropped)
            made = _built(package, suite, planted.bugs, statements, self._tiers, dropped)
            self._say(f"{package.label}: {len(made)} tasks; recording calls")
            made = await self._with_replays(package, made, workers)
            clock.lap("replay")
        self._say(f"{package.label}: {len(made)} tasks; checking them")
        checked = await self._check(made)
        clock.lap("gate")
        passed = {one.id for one in checked if one.passed}
        guarded = {one.id for one in checked if "twin" in one.guards}
        kept = [one.guarded_by("twin") if one.id in guarded else one for one in made if one.id in passed]
        report = PackageReport(
            name=package.label,
            skipped="" if passed else "none of its bugs became a task",
            num_tests=len(suite.tests),
            num_functions=len(suite.touched),
            num_mutants=planted.num_tried,
            dropped=dict(dropped),
            num_made=len(checked),
            refused={one.id: one.reason for one in checked if not one.passed},
            num_passed=len(passed),
            seconds=clock.laps,
            grade_s=tuple(taken for one in checked for taken in one.grade_s),
        )
        return report, kept

    async def _with_replays(self, package: Package, made: Sequence[Made], workers: Workers) -> list[Made]:
        """The tasks, each with its replay if it has one."""
        tests = sorted({test for one in made for test in (*one.failing, *one.passing)})
        room = asyncio.Semaphore(self._num_at_once)
        timeout_s = self._suite_timeout_s
        async with open_replays(package, tests, workers, self._provider, timeout_s=timeout_s) as replays:

            async def add(one: Made) -> Made:
                async with room:
                    replay = await replays.make(one.changed, one.failing, one.passing, seed=f"{self._seed} {one.id}")
                return one if replay is None else one.with_replay(replay)

            async with task_group() as group:
                running = [group.create_task(add(one)) for one in made]
        return [one.result() for one in running]

    async def _check(self, made: Sequence[Made]) -> list[TaskCheck]:
        """Check tasks until enough have passed; some cheats are tried on the first task whose oracle is worth 1."""
        tasks = _as_tasks(self._out, made)
        checked: list[TaskCheck] = []
        room = asyncio.Semaphore(self._num_at_once)

        async def check(number: int, with_cheats: bool) -> TaskCheck:
            async with room:
                num = NUM_CHEATS if with_cheats else 0
                return await check_task(tasks[number], provider=self._provider, num_cheats=num)

        place = 0
        while place < len(made) and (missing := self._per_package - sum(one.passed for one in checked)) > 0:
            part = range(place, min(len(made), place + missing))
            tried = any(one.cheats for one in checked)
            async with task_group() as group:
                running = [group.create_task(check(number, number == place and not tried)) for number in part]
            checked += [one.result() for one in running]
            place = part.stop
            if cheated := next((one for one in checked if one.paid or one.untrusted), None):
                raise Skipped(f"its tasks can be cheated: {cheated.reason}")
        if not any(one.cheats for one in checked):
            raise Skipped("no cheat could be tried on its tasks")
        return checked


def _built(
    package: Package,
    suite: Suite,
    bugs: Sequence[Bug],
    statements: Sequence[Statement | None],
    tiers: frozenset[Tier],
    dropped: Counter[str],
) -> list[Made]:
    """The tasks that the bugs become; why others become none is counted in `dropped`."""
    made: list[Made] = []
    said: set[Json] = set()
    for bug, statement in zip(bugs, statements, strict=True):
        if statement is None:
            dropped["its failures say too little"] += 1
            continue
        difficulty = difficulty_of(bug, statement)
        if difficulty.tier not in tiers:
            dropped[f"its tier is {difficulty.tier}"] += 1
            continue
        one = build(package, suite, bug, statement, difficulty, number=len(made))
        if one is None:
            dropped["its source is not UTF-8"] += 1
        elif one.line["instruction"] in said:
            dropped["another bug was reported in the same words"] += 1
        else:
            said.add(one.line["instruction"])
            made.append(one)
    return made


class _Clock:
    def __init__(self, laps: dict[str, float]) -> None:
        self.laps = laps
        self._last_s = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name], self._last_s = now - self._last_s, now


def _as_tasks(out: Path, made: Sequence[Made]) -> tuple[Task, ...]:
    """The tasks as a reader of the file gets them."""
    if not made:
        return ()
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=out, suffix=".jsonl") as file:
        file.writelines(json.dumps(one.line) + "\n" for one in made)
        file.flush()
        return read_tasks(Path(file.name))
