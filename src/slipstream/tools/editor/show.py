"""Formats a file for a model: numbered lines, within a character limit.

Input: lines, and which of them to show. Output: text, with a bracketed line if not everything requested is shown.
Invariants: the text stays within the limit, and says how to see the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.tools.editor.outline import Entry, outline
from slipstream.tools.editor.text import shown
from slipstream.tools.line_numbers import with_number

MAX_CHARS = 14_000
"""For a view: below the limit of a tool's output, so that the middle is not cut out."""
MAX_LINE_CHARS = 1_000
MAX_WHOLE_LINES = 400
"""A longer file is folded to its outline, if its language is known."""
FOLDED = "[folded: see code with view_range"
_AROUND = 4


def numbered(lines: Sequence[str], first: int, last: int) -> list[str]:
    """The lines `first` to `last`, each with its number."""
    last = min(last, len(lines))
    return [with_number(number, _cut(lines[number - 1]), len(str(last))) for number in range(first, last + 1)]


def _cut(line: str) -> str:
    rest = len(line) - MAX_LINE_CHARS
    return f"{shown(line[:MAX_LINE_CHARS])}[... {rest} more characters]" if rest > 0 else shown(line)


def around(lines: Sequence[str], first: int, last: int) -> str:
    """The lines `first` to `last` with a few around them; the middle is left out if there are many."""
    start, end = max(1, first - _AROUND), min(len(lines), last + _AROUND)
    if end - start < 60:
        return "\n".join(_fitting(numbered(lines, start, end), MAX_CHARS // 2))
    return "\n".join(
        (
            *_fitting(numbered(lines, start, first + 8), MAX_CHARS // 4),
            f"[... lines {first + 9} to {last - 9} ...]",
            *_fitting(numbered(lines, last - 8, end), MAX_CHARS // 4),
        )
    )


def view_lines(lines: Sequence[str], first: int, last: int) -> str:
    """A range of lines, as far as it fits."""
    told = _fitting(numbered(lines, first, last), MAX_CHARS)
    end = first + len(told) - 1
    text = "\n".join(told)
    if end < last:
        return f"{text}\n[lines {first} to {end} of {len(lines)}; go on with view_range [{end + 1}, {last}]]"
    return text if (first, end) == (1, len(lines)) else f"{text}\n[lines {first} to {end} of {len(lines)}]"


def view_whole(path: str, lines: Sequence[str]) -> str:
    """The whole file if it is not too long; otherwise its outline, or its beginning."""
    if len(lines) <= MAX_WHOLE_LINES and sum(min(len(line), MAX_LINE_CHARS) + 10 for line in lines) <= MAX_CHARS:
        return view_lines(lines, 1, len(lines))
    entries = outline(path, lines)
    if len(entries) < 3:
        return view_lines(lines, 1, len(lines))
    return folded_view(path, lines, entries)


def folded_view(path: str, lines: Sequence[str], entries: Sequence[Entry]) -> str:
    told = [f"{path} has {len(lines)} lines. Its outline, with first and last lines:"]
    room = MAX_CHARS - len(told[0]) - 200
    rows = [f"{f'{entry.first}-{entry.last}':>13} {shown(entry.text)}" for entry in entries]
    fitting = _fitting(rows, room)
    told += fitting
    if len(fitting) < len(rows):
        told.append(f"[{len(rows) - len(fitting)} more from line {entries[len(fitting)].first} on]")
    told.append(f"{FOLDED}, such as [{entries[0].first}, {entries[0].last}]]")
    return "\n".join(told)


def _fitting(rows: Sequence[str], room: int) -> list[str]:
    """The first rows that fit, at least one."""
    kept: list[str] = []
    for row in rows:
        room -= len(row) + 1
        if room < 0 and kept:
            break
        kept.append(row)
    return kept
