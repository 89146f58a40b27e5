"""Finds a package's steady tests: those that pass every time, how long they take, and which functions they touch.

Invariants: a test is in the Suite only if it passed in every run, one of them in another order; a function is in it
only if a steady test entered it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.aio import task_group
from slipstream.tasks.factory.package.fetch import Package
from slipstream.tasks.factory.package.runner import Answer, Workers, last_line
from slipstream.tasks.factory.package.sources import Skipped

MIN_TESTS = 5
TEST_TIMEOUT_S = 30.0
"""A test that takes longer counts as hung, and the others run without it."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Function:
    """A function of the package's own source."""

    path: str
    name: str
    """The qualified name: `Class.method`."""
    first_line: int
    """The line of its first decorator, if it has any, or else of its `def`."""
    last_line: int
    body_line: int
    """The line of its `def`."""

    @property
    def num_lines(self) -> int:
        return self.last_line - self.body_line + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    seconds: Mapping[str, float]
    """Each steady test's longest CPU time."""
    touched: Mapping[Function, tuple[str, ...]]
    """The steady tests that enter each function, sorted."""
    num_unsteady: int
    """Tests that passed in some runs but not in all."""
    num_broken: int
    """Tests and test files that passed in no run."""

    @property
    def tests(self) -> tuple[str, ...]:
        return tuple(sorted(self.seconds))


def functions_of(path: str, text: str) -> list[Function]:
    """The functions of a file, inner ones after the enclosing one."""
    found: list[Function] = []

    def visit(node: ast.AST, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue  # most of a tree, and no function is defined in one
            inner = names
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = (*names, child.name)
                first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                found.append(
                    Function(
                        path=path,
                        name=".".join(inner),
                        first_line=first,
                        last_line=child.end_lineno or child.lineno,
                        body_line=child.lineno,
                    )
                )
            elif isinstance(child, ast.ClassDef):
                inner = (*names, child.name)
            visit(child, inner)

    try:
        visit(ast.parse(text), ())
    except (SyntaxError, ValueError):
        return []
    return found


async def find_suite(
    package: Package,
    workers: Workers,
    *,
    timeout_s: float = 240.0,
    num_runs: int = 3,
    slowest_test_s: float = 2.0,
    test_timeout_s: float = TEST_TIMEOUT_S,
) -> Suite:
    """Run the tests `num_runs` times. Raises Skipped if too few of them work, or they take too long."""
    layout = package.layout
    shared = {"paths": list(layout.tests), "timeout_s": timeout_s, "test_timeout_s": test_timeout_s}
    jobs: list[Answer] = [{**shared, "id": 0, "traced": list(layout.sources)}]
    jobs += [{**shared, "id": number, "order": number if number > 1 else None} for number in range(1, num_runs)]
    async with task_group() as group:
        running = [group.create_task(workers.run("suite", [job], timeout_s=timeout_s + 30.0)) for job in jobs]
    answers = [task.result()[0] for task in running]
    if any(answer.get("timed_out") for answer in answers):
        raise Skipped(f"its tests take more than {timeout_s:g} s: raise the limit, or leave the package out")
    if error := next((answer["error"] for answer in answers if "error" in answer), ""):
        raise Skipped(f"its tests cannot be run: {error}")
    return _suite(package, answers, slowest_test_s)


def _suite(package: Package, answers: Sequence[Answer], slowest_test_s: float) -> Suite:
    passed = [{test for test, outcome in answer["outcomes"].items() if outcome == "passed"} for answer in answers]
    steady = set.intersection(*passed)
    seconds = {test: max(answer["seconds"].get(test, 0.0) for answer in answers) for test in steady}
    seconds = {test: taken for test, taken in seconds.items() if taken <= slowest_test_s}
    tried = {test for answer in answers for test in answer["outcomes"]}
    broken = answers[0]["broken"]
    if len(seconds) < MIN_TESTS:
        raise Skipped(_too_few(len(seconds), len(tried), broken))
    return Suite(
        seconds=seconds,
        touched=_touched(package, answers[0]["touched"], set(seconds)),
        num_unsteady=len(set.union(*passed) - steady),
        num_broken=len(tried - set.union(*passed)) + len(broken),
    )


def _too_few(num_steady: int, num_tried: int, broken: Sequence[tuple[str, str]]) -> str:
    why = f"; {broken[0][0]}: {last_line(broken[0][1]).removeprefix('E').strip()}" if broken else ""
    if not num_tried:
        return f"none of its tests can be loaded in a sandbox without a network{why}"
    return f"only {num_steady} of its {num_tried} tests always pass without a network; {MIN_TESTS} are needed{why}"


def _touched(
    package: Package, entered: Mapping[str, Sequence[Sequence[object]]], steady: set[str]
) -> dict[Function, tuple[str, ...]]:
    """By function, the steady tests that entered it. Lambdas and comprehensions count for the enclosing function."""
    functions = {path: functions_of(path, package.text(path)) for path in package.layout.sources}
    found: dict[Function, set[str]] = {}
    for test, places in entered.items():
        if test not in steady:
            continue
        for path, line in places:
            around = [one for one in functions.get(str(path), []) if one.first_line <= int(str(line)) <= one.last_line]
            if around:
                found.setdefault(around[-1], set()).add(test)
    return {function: tuple(sorted(found[function])) for function in sorted(found)}
