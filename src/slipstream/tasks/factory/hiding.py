"""Removes hidden tests from test files. Pure; all other lines stay unchanged.

Input: the text of a test file and the ids of tests in it. Output: a shell command that removes their lines.
Invariants: the remaining file can be parsed, and contains none of the hidden tests' functions.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cut:
    """Lines `first` to `last`, counted from 1, to be replaced by `text`."""

    first: int
    last: int
    text: str = ""


def cuts_of(text: str, tests: Iterable[str]) -> list[Cut] | None:
    """The lines of tests given by pytest ids (`file.py::Class::test_name[param]`); None if the whole file must go."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    hidden = {tuple(part.partition("[")[0] for part in test.split("::")[1:]) for test in tests}
    lines = text.split("\n")
    cuts: list[Cut] = []
    _find(module.body, (), {names for names in hidden if names}, lines, cuts)
    try:
        ast.parse(without(text, cuts))
    except (SyntaxError, ValueError):
        return None
    return sorted(cuts) or None


def without(text: str, cuts: Iterable[Cut]) -> str:
    """The text without the cuts."""
    lines = text.split("\n")
    for cut in sorted(cuts, reverse=True):
        lines[cut.first - 1 : cut.last] = [cut.text] if cut.text else []
    return "\n".join(lines)


def command_of(path: str, cuts: Iterable[Cut] | None) -> str:
    """A shell command, to be run in the tree's folder, that makes the cuts; None removes the file."""
    if cuts is None:
        return f"rm -f -- {shlex.quote(path)}"
    steps = [f"{cut.first},{cut.last}" + (f"c\\{cut.text}" if cut.text else "d") for cut in cuts]
    return " ".join(["sed -i", *(f"-e {shlex.quote(step)}" for step in steps), "--", shlex.quote(path)])


def _find(
    body: list[ast.stmt], names: tuple[str, ...], hidden: set[tuple[str, ...]], lines: list[str], cuts: list[Cut]
) -> None:
    found = []
    for node in body:
        if isinstance(node, ast.ClassDef):
            _find(node.body, (*names, node.name), hidden, lines, cuts)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (*names, node.name) in hidden:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            found.append(Cut(first=first, last=node.end_lineno or node.lineno))
    if names and len(found) == len(body):  # a class needs a body
        last = found.pop()
        indent = re.match(r"[ \t]*", lines[last.first - 1])
        found.append(Cut(first=last.first, last=last.last, text=f"{indent[0] if indent else ''}pass"))
    cuts += found
