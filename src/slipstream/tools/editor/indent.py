"""Finds whole lines that are indented otherwise than the model wrote them.

Input: a file's text, the lines to replace and those that take their place, with line feeds only. Output: the same
change as it is indented in the file, or None. Invariants: all lines are moved by the same blanks; lines that are in the
file several times that way are not found; nothing else of a line may differ but blanks at its end.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.tools.editor.text import line_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Shifted:
    """`old`, which is in the file at `place`, and `new`, both indented as the file is."""

    place: int
    old: str
    new: str


def by_indent(folded: str, old: str, new: str) -> Shifted | None:
    wanted = old.split("\n")
    while wanted and not wanted[-1].strip():
        wanted.pop()
    if not wanted or not wanted[0].strip():
        return None
    lines = folded.split("\n")
    bare = _without(wanted, indent := _indent(wanted))
    found = [first for first in _starts(lines, wanted[0]) if _matches(lines[first : first + len(wanted)], bare)]
    if len(found) != 1:
        return None
    there = lines[found[0] : found[0] + len(wanted)]
    moved = _moved(new.split("\n"), indent, _indent(there))
    if moved is None:
        return None
    end = "\n" if old.endswith("\n") and found[0] + len(wanted) < len(lines) else ""
    while moved and not moved[-1].strip():
        moved.pop()
    return Shifted(
        place=line_start(folded, found[0]),
        old="\n".join(there) + end,
        new="\n".join(moved) + (end if moved else ""),
    )


def _starts(lines: list[str], first: str) -> list[int]:
    """Where a line begins that differs from `first` in blanks at its ends alone."""
    wanted = first.strip()
    return [number for number, line in enumerate(lines) if line.strip() == wanted]


def _matches(there: list[str], bare: list[str]) -> bool:
    return len(there) == len(bare) and _without(there, _indent(there)) == bare


def _indent(lines: list[str]) -> str:
    """The blanks that all lines begin with that are not blank altogether."""
    blanks = [line[: len(line) - len(line.lstrip(" \t"))] for line in lines if line.strip()]
    shortest = min(blanks, key=len, default="")
    return next(
        (shortest[:n] for n in range(len(shortest), 0, -1) if all(b.startswith(shortest[:n]) for b in blanks)), ""
    )


def _without(lines: list[str], indent: str) -> list[str]:
    return [line[len(indent) :].rstrip() if line.strip() else "" for line in lines]


def _moved(lines: list[str], written: str, there: str) -> list[str] | None:
    """The lines with the indent `there` in place of `written`; None if one of them has less than that."""
    if any(line.strip() and not line.startswith(written) for line in lines):
        return None
    return [there + line[len(written) :] if line.strip() else "" for line in lines]
