"""The rules by which test results decide whether a task is solved. Pure.

- strict: every expected test was reported and passed. For tasks of our own.
- swebench: every test of fail_to_pass passed or failed as marked (xfail); those of pass_to_pass too, or were skipped. A
  test that is not reported did not pass. An id that the data set truncates inside its brackets stands for all tests
  that begin like it, if they agree. A command that failed although its log shows no failure is not believed. For
  SWE-bench and SWE-Gym.
- swesmith: no expected test failed. A test that is not reported counts as passed, but only if the runner completed and
  reported some test of fail_to_pass.
- r2egym: the statuses are exactly the expected ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from slipstream.graders.testing.logs import ERROR, FAILED, PASSED, SKIPPED, XFAIL

_NUM_SHOWN = 5


class Rules(StrEnum):
    STRICT = "strict"
    SWEBENCH = "swebench"
    SWESMITH = "swesmith"
    R2EGYM = "r2egym"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    statuses: Mapping[str, str] | None = None
    """All statuses, for the rules `r2egym`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """The outcome of a test run."""

    statuses: Mapping[str, str]
    exit_code: int | None = 0
    to_its_end: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultComparison:
    solved: bool
    shares: Mapping[str, float]
    """The share of expected results that were met, by kind."""
    detail: str


def compare(rules: Rules, expected: Expected, ran: SuiteResult) -> ResultComparison:
    match rules:
        case Rules.STRICT:
            return _both(expected, ran, {PASSED}, {PASSED})
        case Rules.SWEBENCH:
            if ran.exit_code != 0 and ran.statuses and not {FAILED, ERROR} & set(ran.statuses.values()):
                return _disbelieved(f"the test command ended with {ran.exit_code} but its log shows no failure")
            whole = SuiteResult(statuses=_with_cut_names(expected, ran.statuses))
            return _both(expected, whole, {PASSED, XFAIL}, {PASSED, XFAIL, SKIPPED})
        case Rules.SWESMITH:
            named = [test for test in expected.fail_to_pass if test in ran.statuses]
            if not ran.to_its_end or (expected.fail_to_pass and not named):
                return _disbelieved("the test runner did not complete")
            silent = dict.fromkeys((*expected.fail_to_pass, *expected.pass_to_pass), PASSED)
            ok = {PASSED, XFAIL, SKIPPED}
            return _both(expected, SuiteResult(statuses=silent | dict(ran.statuses)), ok, ok)
        case Rules.R2EGYM:
            return _all_alike(expected.statuses or {}, ran.statuses)


def _disbelieved(why: str) -> ResultComparison:
    return ResultComparison(solved=False, shares={"fail_to_pass": 0.0, "pass_to_pass": 0.0}, detail=why)


def _both(expected: Expected, ran: SuiteResult, fixed: set[str], kept: set[str]) -> ResultComparison:
    bad_f2p = [test for test in expected.fail_to_pass if ran.statuses.get(test) not in fixed]
    bad_p2p = [test for test in expected.pass_to_pass if ran.statuses.get(test) not in kept]
    return ResultComparison(
        solved=not bad_f2p and not bad_p2p,
        shares={
            "fail_to_pass": _share(bad_f2p, expected.fail_to_pass),
            "pass_to_pass": _share(bad_p2p, expected.pass_to_pass),
        },
        detail=_shown([*bad_f2p, *bad_p2p], ran.statuses),
    )


def _share(bad: list[str], of: tuple[str, ...]) -> float:
    return 1.0 - len(bad) / len(of) if of else 1.0


def _shown(bad: list[str], statuses: Mapping[str, str]) -> str:
    named = [f"{test}: {statuses.get(test, 'not reported')}" for test in bad[:_NUM_SHOWN]]
    more = [f"and {len(bad) - _NUM_SHOWN} more"] if len(bad) > _NUM_SHOWN else []
    return "; ".join(named + more)


def _with_cut_names(expected: Expected, statuses: Mapping[str, str]) -> dict[str, str]:
    """The statuses, and those of names that the data set truncates inside their brackets."""
    found = dict(statuses)
    for test in (*expected.fail_to_pass, *expected.pass_to_pass):
        if test in statuses or test.count("[") <= test.count("]"):
            continue
        begun = [status for name, status in statuses.items() if name.startswith(test)]
        if begun and len({status in (PASSED, XFAIL) for status in begun}) == 1:
            found[test] = begun[0]
    return found


def _all_alike(wanted: Mapping[str, str], got: Mapping[str, str]) -> ResultComparison:
    ours, theirs = _without_messages(got), _without_messages(wanted)
    bad = sorted(test for test in {*ours, *theirs} if ours.get(test) != theirs.get(test))
    return ResultComparison(
        solved=not bad,
        shares={"as_expected": _share(bad, tuple({*ours, *theirs}))},
        detail=_shown(bad, ours),
    )


def _without_messages(statuses: Mapping[str, str]) -> dict[str, str]:
    return {name.split(" - ")[0]: statuses[name] for name in sorted(statuses)}


def files_of(tests: Iterable[str]) -> tuple[str, ...]:
    """The files of tests with pytest ids."""
    return tuple(sorted({test.partition("::")[0] for test in tests}))
