"""Runs work that passed its tests against twins of them, and adjusts the verdict.

Input: a Verdict with reward 1, and a runner of the task's tests. Output: the Verdict with the component `twin`: 1 if
some changed test failed as expected, 0 if there was none.
Invariants: only tests that the reference itself distinguishes count against work, so a twin that happens to be right,
or that breaks another, costs nobody a reward. The reference is run only if work fails the twin run, and its results are
kept: a task has few twins, of which each grading draws one.
"""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from slipstream.graders.testing.twin import Twin, TwinResult, compare_runs, make_twin
from slipstream.graders.testing.work import ReadEntries, Refused
from slipstream.patches.apply import Entry
from slipstream.types import Verdict

NUM_VARIANTS = 4
"""The number of twins of a task."""
MAX_KEPT = 20_000
"""The number of reference results that are kept."""
_NUM_SHOWN = 3
_MAX_FILES = 20


class NoTwin(Exception):
    """The task's tests have no expectation that can be made wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinFiles:
    twin: Twin
    entries: Mapping[str, Entry | None]

    def with_copies(self, tests: Sequence[str]) -> list[str]:
        """The tests to run, with copies in place of their originals."""
        found: list[str] = []
        for test in tests:
            for one in self.twin.copies.get(test.partition("[")[0], (test,)):
                if one not in found:
                    found.append(one)
        return found


class LazyTwin:
    """A twin of a task, made once its test files can be read."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.made: TwinFiles | None = None

    async def make(
        self, hidden: Mapping[str, Entry | None], read_entries: ReadEntries, tests: Sequence[str]
    ) -> TwinFiles:
        """Make it from the grading's own files, or else from those of the tree. Raises NoTwin."""
        if self.made is None:
            named = {test.partition("::")[0] for test in tests if "::" in test}
            paths = sorted(path for path in {*hidden, *named} if path.endswith(".py"))[:_MAX_FILES]
            there = await read_entries(path for path in paths if path not in hidden)
            texts: dict[str, str] = {}
            for path in paths:
                entry = hidden[path] if path in hidden else there.get(path)
                if entry is not None and b"\r" not in entry.data:
                    try:
                        texts[path] = entry.data.decode()
                    except UnicodeDecodeError:
                        continue
            twin = make_twin(texts, tests, random.Random(self.seed))
            if twin is None:
                raise NoTwin
            entries = {path: Entry(data=text.encode()) for path, text in twin.files.items()}
            self.made = TwinFiles(twin=twin, entries=entries)
        return self.made


class SuiteRunner(Protocol):
    """Runs a task's tests on a patch, in a fresh sandbox."""

    @property
    def identity(self) -> str: ...
    @property
    def oracle(self) -> bytes: ...
    @property
    def expected(self) -> tuple[str, ...]: ...

    async def statuses(self, patch: bytes, twin: LazyTwin) -> Mapping[str, str]:
        """Raises Refused, or NoTwin."""
        ...


class TwinCheck:
    def __init__(self) -> None:
        self._references: dict[str, Mapping[str, str] | None] = {}

    async def check(self, verdict: Verdict, runner: SuiteRunner, patch: bytes) -> Verdict:
        """The verdict after a twin run."""
        digest = hashlib.blake2b(f"{secrets.randbelow(NUM_VARIANTS)} {runner.identity}".encode("utf-8", "replace"))
        lazy = LazyTwin(digest.hexdigest())
        refused = ""
        statuses: Mapping[str, str] = {}
        try:
            try:
                statuses = await runner.statuses(patch, lazy)
            except Refused as raised:
                refused = str(raised)
            result = _compare(lazy, statuses, runner)
            if refused or result.fooled or result.missed:
                reference = await self._reference(runner, lazy)
                if reference is None:
                    raise NoTwin
                result = _compare(lazy, statuses, runner, reference)
        except NoTwin:
            return _with_twin(verdict, 0.0)
        if refused:
            return _refused(verdict, f"the work passes the tests, but their twins end with: {refused}")
        if result.fooled:
            return _refused(verdict, f"the work also passes tests with wrong expectations: {_shown(result.fooled)}")
        if result.missed:
            return _refused(verdict, f"the work does not pass copies of tests that it passed: {_shown(result.missed)}")
        return _with_twin(verdict, float(result.num_failed > 0))

    async def _reference(self, runner: SuiteRunner, lazy: LazyTwin) -> Mapping[str, str] | None:
        """The reference's results on a twin; None if they are not available."""
        if lazy.seed not in self._references:
            try:
                statuses = await runner.statuses(runner.oracle, lazy)
            except Refused:
                found = None
            else:
                twin = _made(lazy)
                names = (*twin.true, *twin.changed)
                found = {test: status for test, status in statuses.items() if any(name in test for name in names)}
            if len(self._references) >= MAX_KEPT:
                self._references.clear()
            self._references[lazy.seed] = found or None
        return self._references[lazy.seed]


def _made(lazy: LazyTwin) -> Twin:
    if lazy.made is None:
        raise NoTwin
    return lazy.made.twin


def _compare(
    lazy: LazyTwin, statuses: Mapping[str, str], runner: SuiteRunner, reference: Mapping[str, str] | None = None
) -> TwinResult:
    return compare_runs(_made(lazy), statuses, runner.expected, reference)


def _with_twin(verdict: Verdict, value: float) -> Verdict:
    return replace(verdict, components={**verdict.components, "twin": value})


def _refused(verdict: Verdict, why: str) -> Verdict:
    detail = f"twin: {why}"[:2_000].encode("utf-8", "backslashreplace").decode()
    return replace(verdict, reward=0.0, components={**verdict.components, "twin": 0.0}, detail=detail)


def _shown(tests: Sequence[str]) -> str:
    return ", ".join(tests[:_NUM_SHOWN]) + (f" and {len(tests) - _NUM_SHOWN} more" if len(tests) > _NUM_SHOWN else "")
