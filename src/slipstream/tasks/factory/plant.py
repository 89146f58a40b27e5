"""Plants bugs that tests catch: mutants of a package, each run against the tests that touch the changed functions.

Input: a Package, its Suite, sandboxes over its tree, and a seed. Output: Bugs that some steady tests catch while the
others still pass. Invariants: the same sources and seed give the same bugs in the same order, whatever runs at the same
time; a mutant that hangs, breaks a test file, or fails too large a share of the suite is dropped.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest

from slipstream.tasks.factory.lint import findings
from slipstream.tasks.factory.mistakes import Edit, Mistake
from slipstream.tasks.factory.mutate import apply, edits_of
from slipstream.tasks.factory.package.fetch import Package
from slipstream.tasks.factory.package.runner import Answer, Workers
from slipstream.tasks.factory.package.suite import Function, Suite

AT_A_TIME = 8
"""The number of mutants that one sandbox runs in a row."""
MAX_TESTS = 120
"""The maximum number of tests that a mutant is run against."""
MAX_PER_FUNCTION = 4
TRIES_PER_FUNCTION = 10
MAX_BROKEN_SHARE = 0.2
MIN_BROKEN = 12
MULTI_SITE_SHARE = 0.15
HANGS = "the tests hang"
MAX_HUNG = 2
"""After this many mutants that hang, no more are tried of a function: each costs a whole time limit."""
SLOWEST_S = 4.0
"""The maximum time of one mutant's tests together, when they pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A package with one or several mistakes."""

    edits: Mapping[Function, tuple[Edit, ...]]

    @property
    def functions(self) -> tuple[Function, ...]:
        return tuple(self.edits)

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        return tuple(edit.mistake for edits in self.edits.values() for edit in edits)

    def files(self, package: Package) -> dict[str, str]:
        """The changed files with their new content."""
        by_path: dict[str, list[Edit]] = {}
        for function, edits in self.edits.items():
            by_path.setdefault(function.path, []).extend(edits)
        return {path: apply(package.text(path), edits) for path, edits in by_path.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    mutant: Mutant
    failing: tuple[str, ...]
    """Steady tests that fail with the mutant."""
    passing: tuple[str, ...]
    """Steady tests that touch its functions and pass."""
    failures: Mapping[str, Answer] = field(default_factory=dict)
    """Details of the failures, made by `sandbox_program.describe`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    bugs: tuple[Bug, ...]
    num_tried: int
    dropped: Mapping[str, int]
    """Mutants that were dropped, by reason."""


async def plant(package: Package, suite: Suite, workers: Workers, *, seed: int, num: int) -> Planted:
    """Plant `num` bugs, some of them with two mistakes."""
    num_single = num - round(num * MULTI_SITE_SHARE)
    run = _Search(package, suite, workers, random.Random(f"{seed} {package.label}"))
    await run.until(num_single, run.singles())
    await run.until(num, run.pairs())
    return Planted(bugs=tuple(run.bugs[:num]), num_tried=run.num_tried, dropped=dict(run.dropped))


class _Search:
    def __init__(self, package: Package, suite: Suite, workers: Workers, rng: random.Random) -> None:
        self._package = package
        self._suite = suite
        self._workers = workers
        self._rng = rng
        self.bugs: list[Bug] = []
        self.num_tried = 0
        self.dropped: Counter[str] = Counter()
        self._num_of: Counter[Function] = Counter()
        self._num_hung: Counter[Function] = Counter()
        self._findings: dict[str, Counter[str]] = {}

    def singles(self) -> Iterator[Mutant]:
        """Mutants with one mistake each, visiting every function once before any a second time."""
        functions = [one for one in self._suite.touched if not one.name.endswith(("__repr__", "__del__"))]
        self._rng.shuffle(functions)
        columns = [self._of_function(function, self._rng.getrandbits(64)) for function in functions]
        for row in zip_longest(*columns):
            for mutant in row:
                if mutant is not None and self._has_room(mutant.functions[0]):
                    yield mutant

    def _of_function(self, function: Function, seed: int) -> Iterator[Mutant]:
        """Looked for when they are asked for: a module of thousands of lines takes long to lint."""
        text = self._package.text(function.path)
        edits = _shuffled(edits_of(text, function.body_line, function.last_line), random.Random(seed))
        sound = (edit for edit in edits if not self._is_linted(function.path, text, edit))
        for edit in islice(sound, TRIES_PER_FUNCTION):
            yield Mutant(edits={function: (edit,)})

    def _is_linted(self, path: str, text: str, edit: Edit) -> bool:
        """Whether a linter would find the mistake."""
        if path not in self._findings:
            self._findings[path] = findings(text)
        is_found = bool(findings(apply(text, [edit])) - self._findings[path])
        self.dropped["a linter would find it"] += is_found
        return is_found

    def _has_room(self, function: Function) -> bool:
        return self._num_of[function] < MAX_PER_FUNCTION and self._num_hung[function] < MAX_HUNG

    def pairs(self) -> Iterator[Mutant]:
        """Mutants with two mistakes that were each caught alone: if possible in the same file."""
        single = list(self.bugs)
        seen: set[frozenset[int]] = set()
        for _ in range(20 * len(single)):
            first, second = self._rng.sample(single, 2) if len(single) > 1 else (None, None)
            if first is None or second is None:
                return
            near = [one for one in single if one.mutant.functions[0].path == first.mutant.functions[0].path]
            if self._rng.random() < 0.7 and len(near) > 1:
                second = self._rng.choice(near)
            pair = frozenset((id(first), id(second)))
            combined = _combined(first.mutant, second.mutant)
            if len(pair) == 2 and pair not in seen and combined is not None:
                seen.add(pair)
                yield combined

    async def until(self, num: int, mutants: Iterator[Mutant]) -> None:
        """Run mutants in rounds until there are `num` bugs. A round's size does not depend on timing."""
        while len(self.bugs) < num:
            size = min(4 * AT_A_TIME, 4 + (num - len(self.bugs)) * 5 // 4)
            round_of = list(islice(mutants, size))
            if not round_of:
                return
            jobs = [self._job(number, mutant) for number, mutant in enumerate(round_of)]
            timeout_s = sum(float(job["timeout_s"]) for job in jobs) + 60.0
            place = 0
            async for answer in self._workers.run_all(
                "mutants", jobs, at_a_time=max(1, min(AT_A_TIME, size // 4)), timeout_s=timeout_s
            ):
                if len(self.bugs) < num:
                    self._add_result(round_of[place], jobs[place], answer)
                place += 1

    def _job(self, number: int, mutant: Mutant) -> Answer:
        tests = sorted({test for function in mutant.functions for test in self._suite.touched[function]})
        if len(tests) > MAX_TESTS:
            tests = sorted(random.Random(f"{mutant.functions[0]}").sample(tests, MAX_TESTS))
        seconds = self._suite.seconds
        while sum(seconds[test] for test in tests) > SLOWEST_S:
            tests.remove(max(tests, key=lambda test: seconds[test]))
        return {
            "id": number,
            "number": self.num_tried + number + 1,
            "files": mutant.files(self._package),
            "tests": tests,
            "paths": sorted({test.partition("::")[0] for test in tests}),
            "cpu_s": 2 + int(5 * sum(seconds[test] for test in tests)),
            "timeout_s": 20.0 + 20 * sum(seconds[test] for test in tests),
            "details": True,
            "max_failures": self._max_failures(),
        }

    def _max_failures(self) -> int:
        return max(MIN_BROKEN, int(MAX_BROKEN_SHARE * len(self._suite.seconds)))

    def _add_result(self, mutant: Mutant, job: Answer, answer: Answer) -> None:
        self.num_tried += 1
        outcomes: Mapping[str, str] = answer.get("outcomes") or {}
        failing = tuple(test for test in job["tests"] if outcomes.get(test) == "failed")
        passing = tuple(test for test in job["tests"] if outcomes.get(test) == "passed")
        reason = self._drop_reason(mutant, job, answer, failing, passing)
        if reason:
            self.dropped[reason] += 1
            if reason == HANGS:
                self._num_hung.update(mutant.functions)
            return
        for function in mutant.functions:
            self._num_of[function] += 1
        self.bugs.append(Bug(mutant=mutant, failing=failing, passing=passing, failures=answer.get("failures") or {}))

    def _drop_reason(
        self, mutant: Mutant, job: Answer, answer: Answer, failing: Sequence[str], passing: Sequence[str]
    ) -> str:
        if answer.get("timed_out"):
            return HANGS
        failures: Mapping[str, Answer] = answer.get("failures") or {}
        if any(failure["exception"] == "MemoryError" for failure in failures.values()):
            return HANGS
        if "error" in answer or answer.get("broken"):
            return "a test file cannot be loaded"
        if len(failing) > self._max_failures():
            return "too many tests fail"
        if not failing:
            return "no test catches it"
        if len(failing) + len(passing) < len(job["tests"]):
            return "tests are missing"
        if len(mutant.functions) == 1 and self._num_of[mutant.functions[0]] >= MAX_PER_FUNCTION:
            return "the function has enough bugs"
        return ""


def _shuffled(edits: Sequence[Edit], rng: random.Random) -> list[Edit]:
    """Shuffle so that every kind of mistake comes once before any comes twice."""
    kinds: dict[Mistake, list[Edit]] = {}
    for edit in edits:
        kinds.setdefault(edit.mistake, []).append(edit)
    columns = [rng.sample(same, len(same)) for same in kinds.values()]
    rng.shuffle(columns)
    return [edit for row in zip_longest(*columns) for edit in row if edit is not None]


def _combined(first: Mutant, second: Mutant) -> Mutant | None:
    (one, ones), (other, others) = next(iter(first.edits.items())), next(iter(second.edits.items()))
    if one.path == other.path:
        a, b = sorted((ones[0], others[0]))
        if a.end >= b.start:
            return None
    if one == other:
        return Mutant(edits={one: tuple(sorted((*ones, *others)))})
    if one.path == other.path and (one.first_line <= other.first_line <= one.last_line):
        return None
    return Mutant(edits=dict(sorted({one: ones, other: others}.items())))
