"""Builds a line of a task file from a bug and its statement. Pure, except that it reads the tree.

Invariants: the oracle and the ids of the hidden tests are only in the grading; the same bug gives the same line.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from slipstream.patches.apply import Entry, make_patch
from slipstream.tasks.factory.difficulty import Difficulty, Tier
from slipstream.tasks.factory.hiding import command_of, cuts_of
from slipstream.tasks.factory.package.fetch import CONFIGURATION, Package
from slipstream.tasks.factory.package.layout import test_folder
from slipstream.tasks.factory.package.runner import DEPS, WORKDIR, environment
from slipstream.tasks.factory.package.suite import Suite
from slipstream.tasks.factory.plant import Bug
from slipstream.tasks.factory.replay.make import Replay
from slipstream.tasks.factory.statement import Statement, chosen
from slipstream.types import Json

COMMAND = ("python3", "-q", "-o", "addopts=", "-W", "ignore::pytest.PytestWarning")
MAX_FILES = 3
"""The maximum number of test files that a task is graded with."""
MAX_FAILING, MAX_PASSING = 20, 30
NUM_OTHERS = 5
"""Additional tests of the same files that do not touch the bug."""
MAX_GRADED_S = 1.0
"""CPU time of the passing tests that a task is graded with."""
TOOLS = ("bash", "edit", "search", "finish")
TINY_TOOLS = tuple(f"slipstream.tasks.factory.tools:{name}" for name in ("bash", "replace", "finish"))
MIN_TIMEOUT_S = 30
OPENINGS = (
    "A user reports:",
    "Somebody has opened this issue:",
    "This was reported by a user:",
    "From the issue tracker:",
    "A colleague who uses it writes:",
)
CLOSINGS = (
    "Find the cause in the package's source and fix it there.",
    "Please find out why, and correct the package's source.",
    "The package's source has a bug that causes this: fix it.",
    "Change the package's source so that this works as described.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A task, ready to be written."""

    line: Mapping[str, Json]
    facts: Mapping[str, Json]
    """Its entry in the report."""

    failing: tuple[str, ...]
    """The tests that it is graded with, here and in `passing`."""
    passing: tuple[str, ...]
    changed: Mapping[str, str]
    """The files with the bug."""

    @property
    def id(self) -> str:
        return str(self.line["id"])

    def guarded_by(self, guard: str) -> Made:
        """The same task with one more guard."""
        return replace(self, facts={**self.facts, "guards": [*self.guards, guard]})

    @property
    def guards(self) -> tuple[str, ...]:
        """The additional checks of work that passed its tests; without any, the tests alone decide."""
        guards = self.facts["guards"]
        return tuple(map(str, guards)) if isinstance(guards, list) else ()

    def with_replay(self, replay: Replay) -> Made:
        grading = self.line["grading"]
        assert isinstance(grading, dict)
        guards: list[Json] = [*self.guards, *(["replay"] if replay.is_telling else [])]
        return replace(
            self,
            line={**self.line, "grading": {**grading, "replay": replay.as_json()}},
            facts={**self.facts, "replay": replay.facts(), "guards": guards},
        )


def build(
    package: Package, suite: Suite, bug: Bug, statement: Statement, difficulty: Difficulty, *, number: int
) -> Made | None:
    """None if a changed file is not UTF-8."""
    changed = bug.mutant.files(package)
    original = {path: package.text(path) for path in changed}
    try:
        oracle = make_patch(_entries(changed), _entries(original)).decode()
    except UnicodeError:
        return None
    failing, passing = _graded(suite, bug)
    task_id = f"{package.label}-{number:04d}-{difficulty.tier}"
    is_tiny = difficulty.tier is Tier.TINY
    line: dict[str, Json] = {
        "id": task_id,
        "instruction": instruction(package, statement),
        "tools": list(TINY_TOOLS if is_tiny else TOOLS),
        "limits": (
            {"turns": 12, "context_tokens": 4_096, "tool_seconds": 120.0}
            if is_tiny
            else {"turns": 50, "context_tokens": 32_768, "tool_seconds": 600.0}
        ),
        "sandbox": {
            "workdir": WORKDIR,
            "tree": f"trees/{package.tree.name}",
            "files": dict(changed),
            "setup": _hide(package, bug),
            "env": dict(environment(package.layout.root)),
            "limits": {"memory_mb": 1024, "processes": 128, "disk_mb": 128, "file_mb": 64},
        },
        "patch_of": WORKDIR,
        "grading": {
            "kind": "tests",
            "command": list(COMMAND),
            "parser": "report",
            "fail_to_pass": [*failing],
            "pass_to_pass": [*passing],
            "tests": [*sorted({test.partition("[")[0] for test in (*failing, *passing)})],
            "drop": [*protected(package)],
            "sandbox_setup": [],
            "env": dict(environment(package.layout.root)),
            "timeout_s": _timeout_s(suite, (*failing, *passing)),
            "oracle": oracle,
        },
    }
    return Made(
        line=line,
        facts=_facts(task_id, package, bug, statement, difficulty),
        failing=failing,
        passing=passing,
        changed=changed,
    )


def instruction(package: Package, statement: Statement) -> str:
    layout = package.layout
    opening, closing = (chosen(some, statement.symptom + statement.snippet) for some in (OPENINGS, CLOSINGS))
    parts = [f"{WORKDIR} holds the source of the Python package {layout.name} {layout.version}. {opening}"]
    if statement.snippet:
        parts += ["When I run this", textwrap.indent(statement.snippet, "    "), f"it fails. {statement.symptom}"]
    else:
        parts.append(statement.symptom)
    parts.append(f"{closing} Leave tests and configuration as they are: changes to them do not count.")
    return "\n\n".join(parts)


def issue_in(instruction: str) -> str:
    """What the user reports: an instruction without its first paragraph and its last, which are ours."""
    return "\n\n".join(instruction.split("\n\n")[1:-1]) or instruction


def protected(package: Package) -> list[str]:
    """Patterns of files that the work may not change: tests, their configuration, installed packages."""
    patterns: set[str] = {f"{DEPS}/**", *CONFIGURATION}
    for test in package.layout.tests:
        folder = test_folder(test)
        patterns.add(test if folder is None else f"{folder}/**")
    return sorted(patterns)


def _entries(files: Mapping[str, str]) -> dict[str, Entry | None]:
    return {path: Entry(data=text.encode()) for path, text in files.items()}


def _graded(suite: Suite, bug: Bug) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The failing and passing tests that a task is graded with: from few files, the quick ones first."""
    num_of = Counter(test.partition("::")[0] for test in bug.failing)
    files = {file for file, _ in sorted(num_of.items(), key=lambda one: (-one[1], one[0]))[:MAX_FILES]}
    seconds = suite.seconds
    failing = sorted(
        (test for test in bug.failing if _file(test) in files), key=lambda test: (seconds[test] > 0.2, test)
    )
    touching = {*bug.failing, *bug.passing}
    others = [test for test in suite.tests if _file(test) in files and test not in touching]
    passing = sorted(
        (test for test in bug.passing if _file(test) in files), key=lambda test: (seconds[test] > 0.1, test)
    )
    passing += others[:: max(1, len(others) // NUM_OTHERS)][:NUM_OTHERS]
    chosen: list[str] = []
    left_s = MAX_GRADED_S
    for test in passing:
        if len(chosen) < MAX_PASSING and seconds[test] <= left_s:
            chosen.append(test)
            left_s -= seconds[test]
    return tuple(sorted(failing[:MAX_FAILING])), tuple(sorted(chosen))


def _file(test: str) -> str:
    return test.partition("::")[0]


def _hide(package: Package, bug: Bug) -> list[Json]:
    """Commands that remove the failing tests from the agent's tree."""
    by_file: dict[str, list[str]] = {}
    for test in bug.failing:
        by_file.setdefault(_file(test), []).append(test)
    return [command_of(file, cuts_of(package.text(file), tests)) for file, tests in sorted(by_file.items())]


def _timeout_s(suite: Suite, tests: tuple[str, ...]) -> int:
    """A generous multiple of the tests' time without the bug, rounded so that it seldom differs between runs."""
    needed = 20 * sum(suite.seconds[test] for test in tests)
    return MIN_TIMEOUT_S * (1 + int(needed / MIN_TIMEOUT_S))


def _facts(task_id: str, package: Package, bug: Bug, statement: Statement, difficulty: Difficulty) -> dict[str, Json]:
    return {
        "id": task_id,
        "package": package.label,
        "tier": str(difficulty.tier),
        "difficulty": difficulty.score,
        "locality": difficulty.locality,
        "visibility": difficulty.visibility,
        "testing": difficulty.testing,
        "mistakes": [str(mistake) for mistake in bug.mutant.mistakes],
        "functions": [f"{function.path}:{function.name}" for function in bug.mutant.functions],
        "num_failing": len(bug.failing),
        "shows_program": bool(statement.snippet),
        "guards": [],
    }
