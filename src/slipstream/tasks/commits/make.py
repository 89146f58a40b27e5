"""`slipstream tasks commits`: a set of gated tasks out of the history of a git clone.

Input: a clone, and if there are some the texts of its issues. Output: a folder with `tasks.jsonl`, `trees/` and
`report.json`, and a Report in which each commit that was tried is an entry.
Invariants: what is written passed the gate, which for a commit asks for a twin too; a commit that gives no task is
skipped with the reason, and is not tried again; the folder is whole after each commit.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from slipstream.errors import AgentError, ConfigError, SandboxError
from slipstream.sandbox.base import SandboxProvider
from slipstream.tasks.commits.building import build_line, task_id
from slipstream.tasks.commits.checkout import Checkout, Checkouts, Install, agent_tree
from slipstream.tasks.commits.repository import Repository
from slipstream.tasks.commits.selection import Candidate, candidate_of
from slipstream.tasks.commits.statement import may_state, read_statement
from slipstream.tasks.commits.trial import run_trial
from slipstream.tasks.factory.building import Made
from slipstream.tasks.factory.make import NUM_CHEATS, OnStep
from slipstream.tasks.factory.package.install import add_requirements, find_interpreter
from slipstream.tasks.factory.package.runner import open_workers
from slipstream.tasks.factory.package.sources import Skipped
from slipstream.tasks.factory.task_set import FactoryReport, PackageReport, TaskSet, as_tasks
from slipstream.tasks.gate import TaskCheck, check_task

NUM_GRADINGS = 2
"""Of the fix; its tests ran three times before."""
MAX_TRIED = 40
"""Commits that are tried in a row without a task, before the rest are given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    name: str = ""
    """`owner/name` of the repository; by default where it was cloned from, or its folder's name."""
    since: str = ""
    """A day or a revision: only commits after it."""
    num: int = 20
    max_lines: int = 200
    issues: Mapping[str, str] | None = None
    """Texts by commit or by the number of an issue."""
    num_cheats: int = NUM_CHEATS
    """Cheats that are tried on the first task, chosen at random."""
    num_at_once: int = 2
    suite_timeout_s: float = 240.0


async def make_commit_tasks(
    clone: Path,
    out: Path,
    *,
    provider: SandboxProvider,
    options: CommitOptions,
    downloads: Path | None = None,
    install: Install = add_requirements,
    on_step: OnStep = lambda line: None,
) -> FactoryReport:
    """Make tasks of the newest commits first, until the set has `num`. `out` must be new, empty, or a set that was
    begun with the same clone and limits."""
    repository = await asyncio.to_thread(Repository.open, clone)
    name = options.name or await asyncio.to_thread(repository.origin) or clone.name.removesuffix(".git")
    task_set = TaskSet.open(out, {"commits_of": name, "max_lines": options.max_lines})
    try:
        python = await find_interpreter(provider)
    except Skipped as raised:
        raise ConfigError(str(raised)) from None
    with tempfile.TemporaryDirectory(dir=out, prefix=".part-") as part:
        trees, kept = Path(part, "trees"), downloads or Path(part, "downloads")
        for place in (trees, kept):
            await asyncio.to_thread(place.mkdir, parents=True, exist_ok=True)
        checkouts = Checkouts(repository, name.rpartition("/")[2], trees, kept, provider, python, install)
        factory = _Factory(task_set, checkouts, provider, name, options, on_step)
        await factory.run(repository)
    return task_set.report()


class _Factory:
    def __init__(
        self,
        task_set: TaskSet,
        checkouts: Checkouts,
        provider: SandboxProvider,
        repo: str,
        options: CommitOptions,
        on_step: OnStep,
    ) -> None:
        self._task_set = task_set
        self._checkouts = checkouts
        self._provider = provider
        self._repo = repo
        self._options = options
        self._say = on_step

    async def run(self, repository: Repository) -> None:
        commits = repository.commits(self._options.since)
        num_in_vain = 0
        while self._task_set.report().num_passed < self._options.num and num_in_vain < MAX_TRIED:
            commit = await asyncio.to_thread(next, commits, None)
            if commit is None:
                return
            candidate = candidate_of(commit)
            can_be_told = may_state(commit, self._options.issues or {})
            if candidate is None or not can_be_told or commit.id in self._task_set.done:
                continue
            num_in_vain = 0 if await self._add(candidate) else num_in_vain + 1

    async def _add(self, candidate: Candidate) -> bool:
        """Make the task of one commit, if it gives one, and write it down."""
        commit, start_s = candidate.commit, time.monotonic()
        told = f"{commit.id[:10]} {commit.subject[:60]}"
        made: list[Made] = []
        report = PackageReport(name=told, wanted=commit.id)
        checkout: Checkout | None = None
        try:
            checkout = await self._checkouts.make(candidate, max_lines=self._options.max_lines)
            one, num_tests = await self._make(checkout)
            check = await self._check(one)
            report = replace(report, num_tests=num_tests, num_made=1, grade_s=check.grade_s)
            if check.passed and "twin" in check.guards:
                made.append(one.guarded_by("twin"))
                report = replace(report, num_passed=1)
            else:
                why = check.reason or "no hidden test has an expectation that can be made wrong, so there is no twin"
                report = replace(report, refused={one.id: why}, skipped=why)
                await asyncio.to_thread(shutil.rmtree, self._tree_of(checkout), ignore_errors=True)
        except (Skipped, AgentError, SandboxError) as raised:
            report = replace(report, skipped=str(raised))
        finally:
            if checkout is not None:
                await asyncio.to_thread(shutil.rmtree, checkout.reference.tree.parent, ignore_errors=True)
        self._say(f"{told}: {report.skipped or 'a task'}")
        self._task_set.add(replace(report, seconds={"all": time.monotonic() - start_s}), made)
        return bool(made)

    async def _make(self, checkout: Checkout) -> tuple[Made, int]:
        options = self._options
        async with open_workers(self._provider, checkout.reference.spec, num_at_once=options.num_at_once) as workers:
            trial = await run_trial(checkout, workers, timeout_s=options.suite_timeout_s)
        statement = read_statement(checkout, trial.failing, options.issues or {})
        await asyncio.to_thread(agent_tree, checkout, trial.failing, self._tree_of(checkout))
        made = build_line(checkout, trial, statement, repo=self._repo)
        return made, len(trial.failing) + len(trial.passing)

    def _tree_of(self, checkout: Checkout) -> Path:
        return self._task_set.out / "trees" / task_id(checkout)

    async def _check(self, made: Made) -> TaskCheck:
        """The gate, with cheats on the first task of the set."""
        (task,) = as_tasks(self._task_set.out, [made])
        is_first = not self._task_set.report().num_passed
        num_cheats = self._options.num_cheats if is_first else 0
        return await check_task(task, provider=self._provider, num_repeats=NUM_GRADINGS, num_cheats=num_cheats)
