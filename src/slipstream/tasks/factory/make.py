"""`slipstream tasks make`: a set of gated tasks out of source distributions.

Input: requirements and a seed. Output: a folder with `tasks.jsonl`, `trees/` and `report.json`, and a Report.
Invariants: what is written passed the gate; a package of which no tasks can be made is skipped with the reason, and the
others continue; the folder is complete after each package, and packages that it holds are not made again.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

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
from slipstream.tasks.factory.task_set import FactoryReport, PackageReport, TaskSet, as_tasks
from slipstream.tasks.gate import TaskCheck, check_task
from slipstream.types import Json

NUM_CHEATS = 16
"""Chosen at random for each package; `slipstream tasks check` tries all of them on every task."""
SPARE_SHARE = 0.15
"""More bugs are planted than tasks requested, since some do not pass the gate."""
TIER_SHARES = {1: 0.3, 2: 0.6, 3: 0.8, 4: 1.0}
"""About the share of bugs that are of so many tiers: more are planted where only some are wanted."""

OnStep = Callable[[str], None]


class Fetch(Protocol):
    """Makes the tree of a package; raises Skipped if it cannot."""

    async def __call__(
        self, wanted: Requirement, trees: Path, downloads: Path, *, provider: SandboxProvider
    ) -> Package: ...


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
        tasks = as_tasks(self._out, made)
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
