"""Tests run by our own reporter: how it is started, and how far its report is believed.

Enters: a sandbox that holds the work. Leaves: a Report.
Always holds: a report is only believed if the run came to its end, nothing else spoke in its place, nobody changed the
tests or replaced parts of pytest, and of two randomly named tests in a random place, run among the others, the one that
must fail failed with its own random words and the one that must pass passed.
"""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.errors import GraderError
from slipstream.graders.testing.logs import FAILED, PASSED
from slipstream.graders.testing.paths import as_regex
from slipstream.offload import WorkTooLarge, by_size
from slipstream.sandbox.base import ExecResult, Sandbox
from slipstream.types import Json

MAX_REPORT_BYTES = 64 << 20
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
    """`PYTHONPATH` is searched after the standard library and before what is installed."""
    folder: str = "/work"
    protect: tuple[str, ...] = ()
    """Patterns of files that must be the same after the run."""
    added_modules: tuple[str, ...] = ()
    """Modules that the work adds and that can be imported by their bare names: they may not hide others."""
    canaries: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    statuses: Mapping[str, str]
    """Without the canaries."""
    texts: Mapping[str, str]
    """What went wrong, by test."""
    problem: str = ""
    """Why the report is not believed; empty if it is."""
    seconds: float = 0.0
    timed_out: bool = False


def program() -> str:
    return Path(__file__).with_name("reporter.py").read_text(encoding="utf-8")


async def run_reported(sandbox: Sandbox, asked: TestRun, *, timeout_s: float) -> Report:
    """Run tests and say how they came out. Raises GraderError if there is no Python or no pytest to run them with."""
    key = secrets.token_hex(16)
    canary = _canaries() if asked.canaries else None
    config: dict[str, Json] = {
        "key": key,
        "root": asked.folder,
        "tests": list(asked.tests),
        "arguments": list(asked.command[1:]),
        "paths": [path for path in asked.env.get("PYTHONPATH", "").split(":") if path],
        "protect": [as_regex(pattern) for pattern in asked.protect],
        "added_modules": [f"{asked.folder}/{path}" for path in asked.added_modules],
        "canaries": canary,
    }
    result = await sandbox.exec(
        [asked.command[0], "-s", "-B", "-c", program()],
        stdin=json.dumps(config).encode(),
        env={**asked.env, **_ENVIRONMENT},
        cwd=asked.folder,
        timeout_s=timeout_s,
        max_output_bytes=MAX_REPORT_BYTES,
    )
    if result.timed_out:
        return _unbelieved(f"the tests passed their limit of {timeout_s:g} s", timed_out=True)
    num_bytes = len(result.stdout.head) + len(result.stdout.tail) + len(result.stderr.head) + len(result.stderr.tail)
    try:
        return await by_size(_read, result, canary, num_bytes=num_bytes)
    except WorkTooLarge as raised:
        return _unbelieved(f"the report cannot be read: {raised}")


def _canaries() -> dict[str, Json]:
    names = [f"{random.SystemRandom().choice('abcdefgh')}{secrets.token_hex(8)}" for _ in range(4)]
    places: list[Json] = [random.SystemRandom().random() for _ in range(2)]
    return {"module": names[0], "passes": names[1], "fails": names[2], "token": names[3], "places": places}


def _unbelieved(problem: str, *, timed_out: bool = False) -> Report:
    return Report(statuses={}, texts={}, problem=problem, timed_out=timed_out)


def _read(result: ExecResult, canary: Mapping[str, Json] | None) -> Report:
    said = result.stderr.text()[-_SHOWN_CHARS:].strip()
    if result.exit_code in (126, 127):
        raise GraderError(f"there is no Python to run the tests with: {said}")
    try:
        report = json.loads(result.stdout.head + result.stdout.tail)
    except ValueError:
        return _unbelieved(f"the test runner was stopped (code {result.exit_code}): {said}")
    if "missing" in report:
        raise GraderError(f"the tests cannot be run: {report['missing']}")
    statuses: dict[str, str] = {}
    texts: dict[str, str] = {}
    for test, status, text in report["tests"]:
        if statuses.get(test, PASSED) == PASSED:  # the worst of several
            statuses[test], texts[test] = status, text
    problem = _problem(report, said) or _canary_problem(canary, statuses, texts)
    module = "" if canary is None else f"test_{canary['module']}.py::"
    kept = {test: status for test, status in statuses.items() if not module or module not in test}
    if report["errors"] and not problem:
        texts["collection"] = "; ".join(map(str, report["errors"][:3]))
    return Report(statuses=kept, texts=texts, problem=problem, seconds=report.get("seconds", 0.0))


def _problem(report: Mapping[str, list[str]], said: str) -> str:
    if report["shadowed"]:
        return f"the work puts {', '.join(report['shadowed'])} in the place of another module"
    if not report["ended"]:
        return f"the tests did not come to their end: {said}"
    if report["strange"]:
        return "something else than the reporter wrote results"
    if report["replaced"]:
        return f"the work replaced {', '.join(report['replaced'][:3])} while it was tested"
    if report["changed"]:
        return f"the work changed {', '.join(report['changed'][:3])} while it was tested"
    return ""


def _canary_problem(canary: Mapping[str, Json] | None, statuses: Mapping[str, str], texts: Mapping[str, str]) -> str:
    """Two tests of our own were run among the others; each must have come out as it must."""
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
