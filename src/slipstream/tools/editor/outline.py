"""The outline of a long code file: its classes, functions and so on, with their lines.

Input: the name of a file and its lines. Output: the entries of its outline, in order; none for an unknown language.
Invariants: lines are matched with patterns and never parsed, so files with syntax errors have an outline too, and the
work is linear in the text. Nothing inside a Python string is an entry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

MAX_TEXT_CHARS = 120

_PYTHON = r"(?:async[ \t]+)?def[ \t]+\w|class[ \t]+\w"
_SCRIPT = (
    r"(?:export[ \t]+)?(?:default[ \t]+)?(?:declare[ \t]+)?(?:abstract[ \t]+)?"
    r"(?:(?:async[ \t]+)?function\b|(?:class|interface|enum|namespace)[ \t]+\w|type[ \t]+\w+[^=\n]*="
    r"|(?:const|let|var)[ \t]+\w+[ \t]*=[ \t]*(?:async[ \t]*)?(?:function\b|\([^()\n]*\)[ \t]*=>|\w+[ \t]*=>))"
    r"|(?:(?:public|private|protected|static|async|get|set|readonly)[ \t]+)*(?!if\b|for\b|while\b|switch\b|catch\b)"
    r"[\w$#]+[ \t]*\([^()\n;]*\)[ \t]*(?::[^{\n;]*)?\{[ \t]*$"
)
_GO = r"func\b|type[ \t]+\w"
_RUST = (
    r"(?:pub(?:\([^()\n]*\))?[ \t]+)?(?:(?:default|const|async|unsafe|extern[ \t]+\"[^\"\n]*\")[ \t]+)*"
    r"(?:fn|struct|enum|trait|impl|mod|union|macro_rules!)\b"
)
_BRACED = (
    r"(?:[\w@]+[ \t]+)*(?:class|interface|enum|record|struct|union|namespace)[ \t]+\w"
    r"|(?!(?:return|else|new|throw|if|for|while|switch|case|do)\b)"
    r"(?:[\w<>\[\],.:~?@]+[ \t*&]+)+[\w:~<>]+[ \t]*\([^;{}]*(?:\{[^{}]*)?$"
)
_PATTERNS = {
    suffix: re.compile(rf"([ \t]*)(?:{pattern})")
    for suffixes, pattern in (
        ((".py", ".pyi", ".pyx"), _PYTHON),
        ((".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts"), _SCRIPT),
        ((".go",), _GO),
        ((".rs",), _RUST),
        ((".java", ".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".cs", ".kt"), _BRACED),
        ((".rb",), r"(?:def|class|module)[ \t]+\w"),
    )
    for suffix in suffixes
}
_MAX_MATCHED_CHARS = 400
"""Per line: a longer line is no definition, and this bounds the matching."""

_QUOTE_OR_COMMENT = re.compile(r"\"\"\"|'''|\"|'|#|\\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    first: int
    last: int
    text: str
    """Its first line, with indentation."""


def outline(path: str, lines: Sequence[str]) -> list[Entry]:
    suffix = PurePosixPath(path).suffix.lower()
    pattern = _PATTERNS.get(suffix)
    if pattern is None:
        return []
    in_string = _string_lines(lines) if suffix.startswith(".py") else frozenset[int]()
    heads: list[tuple[int, int]] = []
    for number, line in enumerate(lines, start=1):
        if number not in in_string and (found := pattern.match(line[:_MAX_MATCHED_CHARS])):
            heads.append((number, _width(found[1])))
    ends = _ends(lines, heads, in_string)
    return [
        Entry(first=number, last=ends[number], text=lines[number - 1].rstrip()[:MAX_TEXT_CHARS]) for number, _ in heads
    ]


def _width(indent: str) -> int:
    return len(indent.expandtabs(8))


def _ends(lines: Sequence[str], heads: Sequence[tuple[int, int]], in_string: frozenset[int]) -> dict[int, int]:
    """The last line of each: the one before the next line that is not indented deeper; closing brackets belong to
    it."""
    widths = dict(heads)
    ends: dict[int, int] = {}
    open_: list[tuple[int, int]] = []
    last_full = 0
    for number, line in enumerate(lines, start=1):
        bare = line.strip()
        if not bare:
            continue
        if number not in in_string:
            width = _width(line[: len(line) - len(line.lstrip())])
            if bare.startswith(("#", "//")):
                if open_ and width <= open_[-1][1]:
                    continue  # it may belong to the next entry
            else:
                closes = bare[0] in ")]}" or bare == "end"
                while open_ and (width < open_[-1][1] or (width == open_[-1][1] and not closes and bare != "{")):
                    ends[open_.pop()[0]] = last_full
                if number in widths:
                    open_.append((number, widths[number]))
        last_full = number
    ends.update((number, last_full) for number, _ in open_)
    return ends


def _string_lines(lines: Sequence[str]) -> frozenset[int]:
    """The lines of a Python file that start inside a multi-line string."""
    inside: list[int] = []
    quote = ""
    for number, line in enumerate(lines, start=1):
        if quote:
            inside.append(number)
        place = 0
        while found := _QUOTE_OR_COMMENT.search(line, place):
            mark, place = found[0], found.end()
            if quote:
                quote = "" if mark == quote else quote
            elif mark == "#":
                break
            elif not mark.startswith("\\"):
                quote = mark
        if len(quote) == 1 and not line.endswith("\\"):
            quote = ""
    return frozenset(inside)
