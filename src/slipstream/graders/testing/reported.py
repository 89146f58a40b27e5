"""Runs tests with our own reporter, and decides whether its report is believed.

Input: a sandbox that holds the work. Output: a ReporterOutput.
Invariants: no report raises, whatever it holds. A report is believed only if the run completed, nothing else wrote
results, the tests and pytest were not changed, and of two randomly named tests at random places among the others, the
one that must fail failed with its own random token and the one that must pass passed.
"""

from __future__ import annotations

import ast
import json
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from slipstream.graders.testing.logs import FAILED, PASSED
from slipstream.graders.testing.paths import as_regex
from slipstream.offload import WorkTooLarge, by_size
from slipstream.sandbox.base import ExecResult, Sandbox
from slipstream.types import Json

MAX_REPORT_BYTES = 32 << 20
NO_PYTHON = (126, 127)
_SHOWN_CHARS = 1_000
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPATH": "",
    "PYTEST_ADDOPTS": "",
    "PYTEST_PLUGINS": "",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """What our reporter is to run."""

    command: tuple[str, ...] = ("python3",)
    """The interpreter, then arguments for pytest."""
    tests: tuple[str, ...] = ()
    """Files or ids for pytest."""
    env: Mapping[str, str] = field(default_factory=dict)
    """`PYTHONPATH` is searched after the standard library and before installed packages."""
    folder: str = "/work"
    protect: tuple[str, ...] = ()
    """Patterns of files that must not change during the run."""
    added_modules: tuple[str, ...] = ()
    """Top-level modules that the work adds: they may not shadow others."""
    append: bool = True
    """Put folders of tests last in the search path; False for the repository's own way, by default first."""
    canaries: bool = True
    order: str = ""
    """The seed of a random order; empty for pytest's own order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReporterOutput:
    statuses: Mapping[str, str]
    """Without the canaries."""
    texts: Mapping[str, str]
    """Error messages by test."""
    problem: str = ""
    """Why the report is not believed; empty if it is."""
    cannot_run: bool = False
    """There was no Python or no pytest to run the tests with: the work is to blame unless that holds without it too."""
    seconds: float = 0.0
    timed_out: bool = False
    log: str = ""
    """What pytest and the tests printed, without the lines on the canaries."""


@cache
def program(name: str) -> str:
    """The text of a program beside this module, for any Python from 3.6 on, whatever Python this is: no annotations,
    and no f-strings, which newer Pythons write in a way that older ones cannot read."""
    tree = ast.parse(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return ast.unparse(ast.fix_missing_locations(_Plain().visit(tree)))


class _Plain(ast.NodeTransformer):
    """Takes annotations out of a program, and has `str.format` in place of f-strings."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        for argument in (*node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg):
            if argument is not None:
                argument.annotation = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.Assign | None:
        return None if node.value is None else ast.Assign(targets=[node.target], value=node.value)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | None:
        return None if node.module == "__future__" else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Call:
        values: list[ast.expr] = []
        template = ast.Constant(value=_template(node, values))
        return ast.Call(
            func=ast.Attribute(value=template, attr="format", ctx=ast.Load()),
            args=[self.visit(value) for value in values],
            keywords=[],
        )


def _template(node: ast.JoinedStr, values: list[ast.expr]) -> str:
    """What `str.format` writes like an f-string; appends the values to be filled in, in order."""
    parts: list[str] = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            values.append(part.value)
            conversion = "" if part.conversion < 0 else f"!{chr(part.conversion)}"
            spec = f":{_template(part.format_spec, values)}" if isinstance(part.format_spec, ast.JoinedStr) else ""
            parts.append(f"{{{conversion}{spec}}}")
        elif isinstance(part, ast.Constant):
            parts.append(str(part.value).replace("{", "{{").replace("}", "}}"))
    return "".join(parts)


async def run_reported(sandbox: Sandbox, test_run: TestRun, *, timeout_s: float) -> ReporterOutput:
    """Run the tests and read the report."""
    key = secrets.token_hex(16)
    canary = _canaries() if test_run.canaries else None
    config: dict[str, Json] = {
        "key": key,
        "root": test_run.folder,
        "tests": list(test_run.tests),
        "arguments": list(test_run.command[1:]),
        "paths": [path for path in test_run.env.get("PYTHONPATH", "").split(":") if path],
        "protect": [as_regex(pattern) for pattern in test_run.protect],
        "added_modules": [f"{test_run.folder}/{path}" for path in test_run.added_modules],
        "append": test_run.append,
        "canaries": canary,
        "order": test_run.order,
        "session": program("session.py"),
    }
    result = await sandbox.exec(
        [test_run.command[0], "-I", "-S", "-B", "-c", program("reporter.py")],
        stdin=json.dumps(config).encode(),
        env={**test_run.env, **_ENVIRONMENT},
        cwd=test_run.folder,
        timeout_s=timeout_s,
        max_output_bytes=MAX_REPORT_BYTES,
    )
    if result.timed_out:
        return _not_believed(f"the tests exceeded their limit of {timeout_s:g} s", timed_out=True)
    num_bytes = len(result.stdout.head) + len(result.stdout.tail) + len(result.stderr.head) + len(result.stderr.tail)
    try:
        return await by_size(_read, result, canary, num_bytes=num_bytes)
    except WorkTooLarge as raised:
        return _not_believed(f"the report cannot be read: {raised}")


def _canaries() -> dict[str, Json]:
    names = [f"{random.SystemRandom().choice('abcdefgh')}{secrets.token_hex(8)}" for _ in range(4)]
    places: list[Json] = [random.SystemRandom().random() for _ in range(2)]
    return {"module": names[0], "passes": names[1], "fails": names[2], "token": names[3], "places": places}


def _not_believed(problem: str, *, timed_out: bool = False, cannot_run: bool = False) -> ReporterOutput:
    return ReporterOutput(statuses={}, texts={}, problem=problem, timed_out=timed_out, cannot_run=cannot_run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RawReport:
    """The reporter's output, with types checked."""

    tests: Sequence[tuple[str, str, str]]
    errors: Sequence[str]
    strange: int
    ended: bool
    shadowed: Sequence[str]
    replaced: Sequence[str]
    changed: Sequence[str]
    missing: str
    seconds: float


def _parse_report(data: bytes) -> _RawReport | None:
    """None for anything but a report. The reporter is ours, but its input is not trusted."""
    try:
        sent = json.loads(data)
        tests = [(_as_text(test), _as_text(status), _as_text(text)) for test, status, text in sent["tests"]]
        strange, ended, seconds = sent["strange"], sent["ended"], sent["seconds"]
        if type(strange) is not int or type(ended) is not bool or type(seconds) is not float:
            return None
        return _RawReport(
            tests=tests,
            errors=[_as_text(one) for one in sent["errors"]],
            strange=strange,
            ended=ended,
            shadowed=[_as_text(one) for one in sent["shadowed"]],
            replaced=[_as_text(one) for one in sent.get("replaced", [])],
            changed=[_as_text(one) for one in sent["changed"]],
            missing=_as_text(sent.get("missing", "")),
            seconds=seconds,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _as_text(value: object) -> str:
    if type(value) is not str:
        raise TypeError(f"{type(value).__name__} instead of text")
    value.encode()  # a surrogate raises a ValueError
    return value


def _read(result: ExecResult, canary: Mapping[str, Json] | None) -> ReporterOutput:
    sent = result.stderr.text()[-_SHOWN_CHARS:].strip()
    if result.exit_code in NO_PYTHON:
        return _not_believed(f"there is no Python to run the tests with: {sent}", cannot_run=True)
    report = _parse_report(result.stdout.head + result.stdout.tail)
    if report is None:
        return _not_believed(f"the test runner was stopped (code {result.exit_code}): {sent}")
    if report.missing:
        return _not_believed(f"the tests cannot be run: {report.missing}: {sent}", cannot_run=True)
    statuses: dict[str, str] = {}
    texts: dict[str, str] = {}
    for test, status, text in report.tests:
        if statuses.get(test, PASSED) == PASSED:  # keep the worst of several
            statuses[test], texts[test] = status, text
    problem = _problem(report, sent)
    if not problem and (problem := _canary_problem(canary, statuses, texts)) and not statuses:
        problem = f"{problem}, nor any other: {'; '.join(report.errors[:1]) or sent}"
    module = "" if canary is None else f"test_{canary['module']}.py::"
    kept = {test: status for test, status in statuses.items() if not module or module not in test}
    if report.errors and not problem:
        texts["collection"] = "; ".join(report.errors[:3])
    return ReporterOutput(
        statuses=kept, texts=texts, problem=problem, seconds=report.seconds, log=_without(canary, result.stderr.text())
    )


def _without(canary: Mapping[str, Json] | None, log: str) -> str:
    """The log without lines on the canaries."""
    names = [] if canary is None else [str(canary[name]) for name in ("module", "passes", "fails", "token")]
    return "\n".join(line for line in log.split("\n") if not any(name in line for name in names))


def _problem(report: _RawReport, sent: str) -> str:
    if report.shadowed:
        return f"{', '.join(report.shadowed[:3])} of the work shadows another module"
    if not report.ended:
        return f"the tests did not complete: {sent}"
    if report.strange:
        return "something other than the reporter wrote results"
    if report.replaced:
        return f"the work replaced {', '.join(report.replaced[:3])} during the tests"
    if report.changed:
        return f"the work changed {', '.join(report.changed[:3])} during the tests"
    return ""


def _canary_problem(canary: Mapping[str, Json] | None, statuses: Mapping[str, str], texts: Mapping[str, str]) -> str:
    """Why the two tests of our own, run among the others, show tampering; empty if they do not."""
    if canary is None:
        return ""
    module = f"test_{canary['module']}.py::test_"
    ours = {test.partition(module)[2]: test for test in statuses if module in test}
    passes, fails = ours.get(str(canary["passes"])), ours.get(str(canary["fails"]))
    if len(ours) != 2 or passes is None or fails is None:
        return "the reporter's own tests were not reported"
    if statuses[passes] != PASSED:
        return "a test of the reporter's own that must pass did not"
    if statuses[fails] != FAILED or str(canary["token"]) not in texts[fails]:
        return "a test of the reporter's own that must fail did not"
    return ""
