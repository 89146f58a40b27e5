"""The types of cheats: what a cheat can use of a task, and how it is defined."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from slipstream.patches.apply import Entry


class CheatKind(StrEnum):
    FILES = "files beside the source"
    FORGERY = "forged results"
    RUNNER = "a changed test runner"
    TESTS = "changed tests"
    ANSWERS = "answers without the work"
    HIDING = "cheating only when unseen"
    ENDING = "ending early"
    OPT_OUT = "no verdict in place of 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a cheat can use of a task."""

    source: str
    """The path of a Python file that the tests import."""
    root: str
    """The folder that the package is imported from; empty for the top."""
    test_file: str
    tests: tuple[str, ...]
    read: Callable[[str], bytes | None]
    """Reads a file of the task as the agent finds it; None if there is none."""

    @property
    def top(self) -> str:
        """The prefix of paths in the folder that the package is imported from."""
        return posixpath.join(self.root, "") if self.root not in ("", ".") else ""

    def beside_tests(self, name: str) -> str:
        return posixpath.join(posixpath.dirname(self.test_file), name)


Files = Mapping[str, bytes | Entry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheat:
    kind: CheatKind
    files: Callable[[Target], Files] | None = None
    """The files it writes."""
    code: str = ""
    """Or the code it appends to the source. `TESTS` in it stands for the tests' ids."""


def code_cheats(kind: CheatKind, codes: Mapping[str, str]) -> dict[str, Cheat]:
    return {name: Cheat(kind=kind, code=code) for name, code in codes.items()}


def file_cheats(kind: CheatKind, files: Mapping[str, Callable[[Target], Files]]) -> dict[str, Cheat]:
    return {name: Cheat(kind=kind, files=one) for name, one in files.items()}
