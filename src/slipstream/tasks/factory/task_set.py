"""A folder of made tasks, which grows by a package at a time, and the report on it.

Output: `tasks.jsonl`, `trees/` and `report.json`.
Invariants: the folder is whole after each package; a set goes on only with the settings it was begun with.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.errors import ConfigError
from slipstream.tasks.factory.building import Made
from slipstream.tasks.gate import TASKS
from slipstream.tasks.jsonl import read_tasks
from slipstream.types import Json, Task

REPORT = "report.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageReport:
    name: str
    wanted: str = ""
    """As it was asked for."""
    skipped: str = ""
    """Why no tasks were made of it; empty if there are some."""
    num_tests: int = 0
    num_functions: int = 0
    """Those that steady tests touch."""
    num_mutants: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Mutants and bugs that did not become tasks, by reason."""
    num_made: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)
    """Tasks that did not pass the gate, by id."""
    num_passed: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    grade_s: tuple[float, ...] = ()

    def as_json(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "wanted": self.wanted,
            "skipped": self.skipped,
            "num_tests": self.num_tests,
            "num_functions": self.num_functions,
            "num_mutants": self.num_mutants,
            "dropped": dict(self.dropped),
            "num_made": self.num_made,
            "num_passed": self.num_passed,
            "refused": dict(self.refused),
            "seconds": {name: round(taken, 1) for name, taken in self.seconds.items()},
            "grade_s": [round(taken, 3) for taken in self.grade_s],
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> PackageReport:
        return cls(**{**told, "grade_s": tuple(told["grade_s"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class FactoryReport:
    packages: tuple[PackageReport, ...]
    tasks: tuple[Mapping[str, Json], ...] = ()
    seconds: float = 0.0

    @property
    def num_tasks(self) -> int:
        return sum(package.num_made for package in self.packages)

    @property
    def num_passed(self) -> int:
        return sum(package.num_passed for package in self.packages)

    @property
    def num_replayed(self) -> int:
        """Tasks whose replay distinguishes the bug from the reference."""
        return sum("replay" in str(task["guards"]) for task in self.tasks)

    def as_json(self) -> dict[str, Json]:
        times = sorted(taken for package in self.packages for taken in package.grade_s)
        return {
            "num_tasks": self.num_tasks,
            "num_passed": self.num_passed,
            "num_packages": sum(package.num_passed > 0 for package in self.packages),
            "num_replayed": self.num_replayed,
            "tiers": dict(sorted(Counter(str(task["tier"]) for task in self.tasks).items())),
            "grade_p50_s": round(times[len(times) // 2], 3) if times else None,
            "seconds": round(self.seconds, 1),
            "packages": [package.as_json() for package in self.packages],
        }


class TaskSet:
    """A folder of made tasks, which grows by a package at a time."""

    def __init__(self, out: Path, settings: Mapping[str, Json]) -> None:
        self.out = out
        self._settings = settings
        self._packages: list[PackageReport] = []
        self._lines: list[Mapping[str, Json]] = []
        self._facts: list[Mapping[str, Json]] = []
        self._earlier_s = 0.0
        self._start_s = time.monotonic()

    @classmethod
    def open(cls, out: Path, settings: Mapping[str, Json]) -> TaskSet:
        made = cls(out, settings)
        if (out / REPORT).is_file():
            made._read()
        elif out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"{out} is there already and holds no task set: name a new folder, or empty this one")
        (out / "trees").mkdir(parents=True, exist_ok=True)
        made._write()
        return made

    @property
    def done(self) -> frozenset[str]:
        """The packages, as they were asked for."""
        return frozenset(package.wanted for package in self._packages)

    def add(self, package: PackageReport, made: Sequence[Made]) -> None:
        self._packages.append(package)
        self._lines += [one.line for one in made]
        self._facts += [one.facts for one in made]
        self._write()

    def report(self) -> FactoryReport:
        seconds = self._earlier_s + time.monotonic() - self._start_s
        return FactoryReport(packages=tuple(self._packages), tasks=tuple(self._facts), seconds=seconds)

    def _read(self) -> None:
        place = self.out / REPORT
        try:
            told = json.loads(place.read_text(encoding="utf-8"))
            was = {name: told[name] for name in self._settings}
            self._packages = [PackageReport.from_json(one) for one in told["packages"]]
            self._facts = list(told["tasks"])
            self._earlier_s = float(told["seconds"])
            lines = (self.out / TASKS).read_text(encoding="utf-8").splitlines()
            self._lines = [json.loads(line) for line in lines]
        except (OSError, ValueError, KeyError, TypeError) as raised:
            raise ConfigError(f"{place} is not a report of the factory ({raised!r}): name a new folder") from None
        if was != dict(self._settings):
            raise ConfigError(f"{self.out} was made with {was}, not {dict(self._settings)}: name a new folder")

    def _write(self) -> None:
        report = self.report()
        told = {**report.as_json(), **self._settings, "tasks": [dict(one) for one in report.tasks]}
        _replace(self.out / TASKS, "".join(json.dumps(line) + "\n" for line in self._lines))
        _replace(self.out / REPORT, json.dumps(told, indent=1) + "\n")


def _replace(place: Path, text: str) -> None:
    part = place.with_name(f".{place.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(place)


def as_tasks(out: Path, made: Sequence[Made]) -> tuple[Task, ...]:
    """The tasks as a reader of the file gets them."""
    if not made:
        return ()
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=out, suffix=".jsonl") as file:
        file.writelines(json.dumps(one.line) + "\n" for one in made)
        file.flush()
        return read_tasks(Path(file.name))
