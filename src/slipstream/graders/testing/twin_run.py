"""The twin run of work that passed its tests: what it is run on, and what its outcome means for the verdict.

Input: a Verdict with reward 1, and a bench that runs a task's tests over a patch in a fresh sandbox.
Output: the Verdict, with the component `twin`: 1 if some wrong test was told from right ones, 0 if there was none to
tell. Invariants: only tests that the reference itself tells apart count against work, so a twin that happens to be
right, or that breaks another, costs nobody a reward. The reference is run only where work does not do as it must, and
its results are kept: a task has few twins, of which each grading draws one.
"""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from slipstream.graders.testing.twin import Twin, TwinResult, judge, make_twin
from slipstream.graders.testing.work import Look, Refused
from slipstream.patches.apply import Entry
from slipstream.types import Verdict

NUM_VARIANTS = 4
"""Twins that a task has."""
MAX_KEPT = 20_000
"""Results of references that are kept."""
_NUM_SHOWN = 3
_MAX_FILES = 20


class NoTwin(Exception):
    """The task's tests have no expectation that can be made wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinFiles:
    twin: Twin
    entries: Mapping[str, Entry | None]

    def tests_in_place_of(self, asked: Sequence[str]) -> list[str]:
        """What pytest is asked to run: copies in place of the tests that they are copies of."""
        found: list[str] = []
        for test in asked:
            for one in self.twin.copies.get(test.partition("[")[0], (test,)):
                if one not in found:
                    found.append(one)
        return found


class Twinned:
    """One twin of a task, made when its test files can first be read."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.made: TwinFiles | None = None

    async def make(self, hidden: Mapping[str, Entry | None], look: Look, tests: Sequence[str]) -> TwinFiles:
        """From the grading's own files, else from those of the tree. Raises NoTwin."""
        if self.made is None:
            named = {test.partition("::")[0] for test in tests if "::" in test}
            paths = sorted(path for path in {*hidden, *named} if path.endswith(".py"))[:_MAX_FILES]
            there = await look(path for path in paths if path not in hidden)
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


class Bench(Protocol):
    """Runs a task's tests."""

    @property
    def identity(self) -> str: ...
    @property
    def oracle(self) -> bytes: ...
    @property
    def expected(self) -> tuple[str, ...]: ...

    async def statuses(self, patch: bytes, twinned: Twinned) -> Mapping[str, str]:
        """Raises Refused, or NoTwin."""
        ...


class TwinRuns:
    def __init__(self) -> None:
        self._references: dict[str, Mapping[str, str] | None] = {}

    async def checked(self, verdict: Verdict, bench: Bench, patch: bytes) -> Verdict:
        """The verdict that stands after a twin run."""
        digest = hashlib.blake2b(f"{secrets.randbelow(NUM_VARIANTS)} {bench.identity}".encode("utf-8", "replace"))
        twinned = Twinned(digest.hexdigest())
        refused = ""
        statuses: Mapping[str, str] = {}
        try:
            try:
                statuses = await bench.statuses(patch, twinned)
            except Refused as raised:
                refused = str(raised)
            result = _judged(twinned, statuses, bench)
            if refused or result.fooled or result.missed:
                reference = await self._reference(bench, twinned)
                if reference is None:
                    raise NoTwin
                result = _judged(twinned, statuses, bench, reference)
        except NoTwin:
            return _with(verdict, told=0.0)
        if refused:
            return _refused(verdict, f"it passes the tests, but twins of them end with: {refused}")
        if result.fooled:
            return _refused(verdict, f"it also passes tests whose expectations are wrong: {_shown(result.fooled)}")
        if result.missed:
            return _refused(verdict, f"it does not pass copies of the tests that it passed: {_shown(result.missed)}")
        return _with(verdict, told=float(result.num_failed > 0))

    async def _reference(self, bench: Bench, twinned: Twinned) -> Mapping[str, str] | None:
        """What the reference makes of a twin; None if that cannot be run with it."""
        if twinned.seed not in self._references:
            try:
                statuses = await bench.statuses(bench.oracle, twinned)
            except Refused:
                found = None
            else:
                twin = _made(twinned)
                names = (*twin.true, *twin.changed)
                found = {test: status for test, status in statuses.items() if any(name in test for name in names)}
            if len(self._references) >= MAX_KEPT:
                self._references.clear()
            self._references[twinned.seed] = found or None
        return self._references[twinned.seed]


def _made(twinned: Twinned) -> Twin:
    if twinned.made is None:
        raise NoTwin
    return twinned.made.twin


def _judged(
    twinned: Twinned, statuses: Mapping[str, str], bench: Bench, reference: Mapping[str, str] | None = None
) -> TwinResult:
    return judge(_made(twinned), statuses, bench.expected, reference)


def _with(verdict: Verdict, *, told: float) -> Verdict:
    return replace(verdict, components={**verdict.components, "twin": told})


def _refused(verdict: Verdict, why: str) -> Verdict:
    detail = f"twin: {why}"[:2_000].encode("utf-8", "backslashreplace").decode()
    return replace(verdict, reward=0.0, components={**verdict.components, "twin": 0.0}, detail=detail)


def _shown(tests: Sequence[str]) -> str:
    return ", ".join(tests[:_NUM_SHOWN]) + (f" and {len(tests) - _NUM_SHOWN} more" if len(tests) > _NUM_SHOWN else "")
