"""Finds what a commit's tests tell: which fail before the fix and pass with it, and which pass with and without it.

Input: a Checkout. Output: a Trial.
Invariants: each test that is named had the same result in three runs with the fix and in three without it, one of each
in another order; no test is named whose id holds a time, an address or a path, since it would have another elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.tasks.commits.checkout import Checkout
from slipstream.tasks.factory.package.layout import TEST_FILE
from slipstream.tasks.factory.package.runner import Answer, Workers, last_line
from slipstream.tasks.factory.package.sources import Skipped
from slipstream.tasks.factory.package.suite import Function, functions_of

NUM_RUNS = 3
TEST_TIMEOUT_S = 15.0
"""A test that takes longer counts as hung."""
MAX_OTHERS = 3
"""Test files that the commit leaves as they are and that run too, since they mention what it changes."""
MAX_FAILING, MAX_PASSING = 60, 60
MAX_GRADED_S = 4.0
"""CPU time of the tests that a task is graded with."""
SLOWEST_TEST_S = 2.0
_UNSTABLE = re.compile(
    r"0x[0-9a-f]{5,}|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|(?<!\d)1[6-9]\d{8}(?!\d)|/tmp/|/work\b|/home/|/var/", re.IGNORECASE
)
"""Addresses, days, times, seconds since 1970, and absolute paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    failing: tuple[str, ...]
    """FAIL_TO_PASS."""
    passing: tuple[str, ...]
    """PASS_TO_PASS."""
    seconds: float
    """CPU time of these tests with the fix, at most."""
    num_unstable: int
    """Tests that were left out since their results or their ids differ between runs."""


async def run_trial(checkout: Checkout, workers: Workers, *, timeout_s: float) -> Trial:
    """Raises Skipped if no test tells the fix from its parent."""
    paths = [path for path in sorted(checkout.tests) if checkout.tests[path] is not None and _is_tests(path)]
    paths += _others(checkout, paths)
    shared = {"paths": paths, "timeout_s": timeout_s, "test_timeout_s": TEST_TIMEOUT_S}
    (first,) = await _run([{**shared, "id": 0}], workers, timeout_s)
    shared["left_out"] = [test for test, outcome in first["outcomes"].items() if outcome == "hung"]
    without_fix = {**shared, "files": checkout.broken}
    (before,) = await _run([{**without_fix, "id": 0, "number": 1}], workers, timeout_s)
    _read([first], [before])  # most commits that give no task are known by now
    jobs: list[Answer] = []
    for number in range(1, NUM_RUNS):
        order = number if number > 1 else None
        jobs.append({**shared, "id": 2 * number, "order": order})
        jobs.append({**without_fix, "id": 2 * number + 1, "order": order, "number": number + 1})
    answers = [first, before, *await _run(jobs, workers, timeout_s)]
    return _read(answers[::2], answers[1::2])


async def _run(jobs: Sequence[Answer], workers: Workers, timeout_s: float) -> list[Answer]:
    answers = await workers.run("suite", jobs, timeout_s=len(jobs) * timeout_s + 30.0)
    if any(answer.get("timed_out") for answer in answers):
        raise Skipped(f"its tests take more than {timeout_s:g} s")
    if error := next((answer["error"] for answer in answers if "error" in answer), ""):
        raise Skipped(f"its tests cannot be run: {error}")
    return answers


def _is_tests(path: str) -> bool:
    return TEST_FILE.fullmatch(path.rpartition("/")[2]) is not None


def _others(checkout: Checkout, known: Sequence[str]) -> list[str]:
    """Test files that mention a changed module or function, those with most mentions first."""
    package = checkout.reference
    names: set[str] = set()
    for path in checkout.fix:
        names.add(path.rpartition("/")[2].removesuffix(".py"))
        if checkout.fix[path] is not None:
            names |= {function.name.rpartition(".")[2] for function in _changed_functions(checkout, path)}
    names = {name for name in names if len(name) > 3 and not name.startswith("__")}
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(names)))})(?!\w)") if names else None
    counted = [
        (-len(pattern.findall(package.text(path))), path)
        for path in package.layout.tests
        if pattern is not None and path not in known
    ]
    return [path for count, path in sorted(counted) if count][:MAX_OTHERS]


def _changed_functions(checkout: Checkout, path: str) -> list[Function]:
    old, new = checkout.old_source[path], checkout.fix[path]
    before = set() if old is None else set(old.data.decode().split("\n"))
    text = "" if new is None else new.data.decode()
    changed = [number for number, line in enumerate(text.split("\n"), 1) if line.strip() and line not in before]
    return [
        function
        for function in functions_of(path, text)
        if any(function.first_line <= number <= function.last_line for number in changed)
    ]


def _read(fixed: Sequence[Answer], broken: Sequence[Answer]) -> Trial:
    def always(answers: Sequence[Answer], *, passes: bool) -> set[str]:
        """Of all tests of the fixed runs, those that pass in each run, or in none."""
        return {
            test for test in tried if all((answer["outcomes"].get(test) == "passed") is passes for answer in answers)
        }

    tried = {test for answer in fixed for test in answer["outcomes"]}
    skipped = {test for answer in broken for test, outcome in answer["outcomes"].items() if outcome == "skipped"}
    stable = {test for test in always(fixed, passes=True) if not is_unstable(test)}
    failing, passing = stable & (always(broken, passes=False) - skipped), stable & always(broken, passes=True)
    if not failing:
        broken_file = next((answer["broken"][0] for answer in fixed if answer["broken"]), None)
        why = f"; {broken_file[0]}: {last_line(broken_file[1])}" if broken_file else ""
        raise Skipped(f"none of its tests fails before it and always passes with it{why}")
    seconds = {test: max(answer["seconds"].get(test, 0.0) for answer in fixed) for test in stable}
    chosen = _limited(sorted(failing), seconds, MAX_FAILING, MAX_GRADED_S)
    if not chosen:
        raise Skipped(f"its failing tests take more than {SLOWEST_TEST_S:g} s each")
    files = {test.partition("::")[0] for test in failing}
    ranked = sorted(passing, key=lambda test: (test.partition("::")[0] not in files, seconds[test] > 0.1, test))
    left_s = MAX_GRADED_S - sum(seconds[test] for test in chosen)
    kept = _limited(ranked, seconds, MAX_PASSING, left_s)
    seen = {test for answer in fixed for test, outcome in answer["outcomes"].items() if outcome == "passed"}
    return Trial(
        failing=tuple(sorted(chosen)),
        passing=tuple(sorted(kept)),
        seconds=sum(seconds[test] for test in (*chosen, *kept)),
        num_unstable=len(seen - failing - passing),
    )


def is_unstable(test: str) -> bool:
    """Whether the parameters in an id hold what differs from run to run, or from machine to machine."""
    return _UNSTABLE.search(test.partition("[")[2]) is not None


def _limited(tests: Sequence[str], seconds: dict[str, float], num: int, left_s: float) -> list[str]:
    chosen: list[str] = []
    for test in tests:
        if len(chosen) < num and seconds[test] <= min(SLOWEST_TEST_S, left_s):
            chosen.append(test)
            left_s -= seconds[test]
    return chosen
