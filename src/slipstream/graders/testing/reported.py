"""Tests run by our own reporter: how it is started, and how far its report is believed.

Input: a sandbox that holds the work. Output: a Report.
Invariants: no report raises, whatever it holds. A report is only believed if the run came to its end, nothing else
spoke in its place, nobody changed the tests or replaced parts of pytest, and of two randomly named tests in a random
place, run among the others, the one that must fail failed with its own random words and the one that must pass passed.
"""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    """`PYTHONPATH` is searched after the standard library and before what is installed."""
    folder: str = "/work"
    protect: tuple[str, ...] = ()
    """Patterns of files that must be the same after the run."""
    added_modules: tuple[str, ...] = ()
    """Modules that the work adds and that can be imported by their bare names: they may not hide others."""
    canaries: bool = True
    order: str = ""
    """The seed of a random order; empty for the order in which pytest finds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReporterOutput:
    statuses: Mapping[str, str]
    """Without the canaries."""
    texts: Mapping[str, str]
    """What went wrong, by test."""
    problem: str = ""
    """Why the report is not believed; empty if it is."""
    cannot_run: bool = False
    """There was no Python or no pytest to run the tests with: the work's doing, unless it is so without the work."""
    seconds: float = 0.0
    timed_out: bool = False


def program(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


async def run_reported(sandbox: Sandbox, asked: TestRun, *, timeout_s: float) -> ReporterOutput:
    """Run tests and say how they came out."""
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
        "order": asked.order,
        "session": program("session.py"),
    }
    result = await sandbox.exec(
        [asked.command[0], "-I", "-S", "-B", "-c", program("reporter.py")],
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


def _unbelieved(problem: str, *, timed_out: bool = False, cannot_run: bool = False) -> ReporterOutput:
    return ReporterOutput(statuses={}, texts={}, problem=problem, timed_out=timed_out, cannot_run=cannot_run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What the reporter wrote, each value of the type that it must have."""

    tests: Sequence[tuple[str, str, str]]
    errors: Sequence[str]
    strange: int
    ended: bool
    shadowed: Sequence[str]
    replaced: Sequence[str]
    changed: Sequence[str]
    missing: str
    seconds: float


def _told(data: bytes) -> _Told | None:
    """None for anything but a report. The reporter is ours, but what it was told is not."""
    try:
        said = json.loads(data)
        tests = [(_text(test), _text(status), _text(text)) for test, status, text in said["tests"]]
        strange, ended, seconds = said["strange"], said["ended"], said["seconds"]
        if type(strange) is not int or type(ended) is not bool or type(seconds) is not float:
            return None
        return _Told(
            tests=tests,
            errors=[_text(one) for one in said["errors"]],
            strange=strange,
            ended=ended,
            shadowed=[_text(one) for one in said["shadowed"]],
            replaced=[_text(one) for one in said.get("replaced", [])],
            changed=[_text(one) for one in said["changed"]],
            missing=_text(said.get("missing", "")),
            seconds=seconds,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _text(value: object) -> str:
    if type(value) is not str:
        raise TypeError(f"{type(value).__name__} in place of a text")
    value.encode()  # a surrogate is no text, and raises a ValueError
    return value


def _read(result: ExecResult, canary: Mapping[str, Json] | None) -> ReporterOutput:
    said = result.stderr.text()[-_SHOWN_CHARS:].strip()
    if result.exit_code in NO_PYTHON:
        return _unbelieved(f"there is no Python to run the tests with: {said}", cannot_run=True)
    told = _told(result.stdout.head + result.stdout.tail)
    if told is None:
        return _unbelieved(f"the test runner was stopped (code {result.exit_code}): {said}")
    if told.missing:
        return _unbelieved(f"the tests cannot be run: {told.missing}: {said}", cannot_run=True)
    statuses: dict[str, str] = {}
    texts: dict[str, str] = {}
    for test, status, text in told.tests:
        if statuses.get(test, PASSED) == PASSED:  # the worst of several
            statuses[test], texts[test] = status, text
    problem = _problem(told, said) or _canary_problem(canary, statuses, texts)
    module = "" if canary is None else f"test_{canary['module']}.py::"
    kept = {test: status for test, status in statuses.items() if not module or module not in test}
    if told.errors and not problem:
        texts["collection"] = "; ".join(told.errors[:3])
    return ReporterOutput(statuses=kept, texts=texts, problem=problem, seconds=told.seconds)


def _problem(told: _Told, said: str) -> str:
    if told.shadowed:
        return f"the work puts {', '.join(told.shadowed[:3])} in the place of another module"
    if not told.ended:
        return f"the tests did not come to their end: {said}"
    if told.strange:
        return "something else than the reporter wrote results"
    if told.replaced:
        return f"the work replaced {', '.join(told.replaced[:3])} while it was tested"
    if told.changed:
        return f"the work changed {', '.join(told.changed[:3])} while it was tested"
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
