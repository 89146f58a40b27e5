"""Finds the places in a file most similar to a text that was not found.

Input: the folded text of a file and the text. Output: the most similar places, with the differences. Invariants: the
work is linear in the file, and only its first lines are compared word by word.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.tools.editor.text import find_places, line_at, shown, split_lines

MAX_PLACES = 3
_MAX_LINES = 20_000
_MAX_WANTED_LINES = 60
_MAX_CANDIDATES = 300
_MAX_LINE_CHARS = 300
_MIN_SIMILARITY = 0.5
_BESIDE_BEST = 0.8
"""Places below this share of the best similarity would only distract."""

_WORD = re.compile(r"\w+|[^\w\s]")
_NUMBERED = re.compile(r"[ ]*\d+\t")
_QUOTES = str.maketrans(dict.fromkeys('"`´“”„‘’‚«»‹›', "'"))
_DASHES = str.maketrans(dict.fromkeys("‐‑‒–—−", "-"))
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """Lines that are similar to the text."""

    first: int
    last: int
    why: str
    """What differs."""


def closest(folded: str, wanted: str) -> list[Near]:
    """The most similar places, best first; empty if there are none."""
    lines = split_lines(folded)
    asked = split_lines(wanted)
    if not any(line.strip() for line in asked):
        return []
    return _but_for_looks(lines, asked, wanted) or _alike(lines[:_MAX_LINES], asked[:_MAX_WANTED_LINES])


# ---------------------------------------------------------------- differences in formatting only


def _inner(line: str) -> str:
    return " ".join(line.split())


def _unquoted(line: str) -> str:
    return _inner(line).translate(_QUOTES)


def _plain(line: str) -> str:
    if line.isascii():
        return _unquoted(line)
    return _inner(_INVISIBLE.sub("", unicodedata.normalize("NFKC", _unquoted(line).translate(_DASHES))))


def _lower(line: str) -> str:
    return _plain(line).casefold()


_LOOKS: Sequence[tuple[Callable[[str], str], str]] = (
    (str.rstrip, "whitespace at the end of a line differs"),
    (str.strip, "indentation differs"),
    (_inner, "whitespace inside a line differs"),
    (_unquoted, "quotes differ"),
    (_plain, "characters differ that look alike"),
    (_lower, "upper and lower case differ"),
)
"""From what differs least to what differs most; each sees through all that those before it do."""


def _but_for_looks(lines: Sequence[str], asked: Sequence[str], wanted: str) -> list[Near]:
    whole = "\n".join(lines)
    bare = wanted.strip("\n")
    if found := _found(whole, bare, "line breaks at its beginning or end are not there"):
        return found
    if all(_NUMBERED.match(line) for line in asked if line.strip()):
        without = "\n".join(_NUMBERED.sub("", line, count=1) for line in asked)
        if found := _found(whole, without, "old_str has the line numbers of a view, which are not in the file"):
            return found
    if not _seen_as(_lower, lines, bare, ""):  # the most lenient: where it finds nothing, none does
        return []
    for look, why in _LOOKS:
        if found := _seen_as(look, lines, bare, why):
            sought = bare.split("\n")
            num_blank = next(number for number, line in enumerate(sought) if line.strip())  # those are not looked for
            return [_explained(near, lines, sought[num_blank:]) for near in found]
    return []


def _seen_as(look: Callable[[str], str], lines: Sequence[str], bare: str, why: str) -> list[Near]:
    sought = "\n".join(look(line) for line in bare.split("\n")).strip("\n")
    return _found("\n".join(look(line) for line in lines), sought, why) if sought.strip() else []


def _found(text: str, wanted: str, why: str) -> list[Near]:
    num_lines = wanted.count("\n") + 1
    firsts = dict.fromkeys(line_at(text, place) for place in find_places(text, wanted, MAX_PLACES))
    return [Near(first=first, last=first + num_lines - 1, why=why) for first in firsts]


def _explained(near: Near, lines: Sequence[str], asked: Sequence[str]) -> Near:
    """With the first pair of lines that shows an indentation of another kind or size."""
    if near.why != "indentation differs":
        return near
    for number, (line, there) in enumerate(zip(asked, lines[near.first - 1 : near.last], strict=False)):
        if line.strip() and _indent(line) != _indent(there) and line.strip() == there.strip():
            why = f"line {near.first + number} begins with {_named(_indent(there))}, in old_str with "
            return Near(first=near.first, last=near.last, why=f"{near.why}: {why}{_named(_indent(line))}")
    return near


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _named(indent: str) -> str:
    if not indent:
        return "nothing"
    num_tabs, num_spaces = indent.count("\t"), indent.count(" ")
    parts = [
        f"{number} {noun}{'' if number == 1 else 's'}"
        for number, noun in ((num_tabs, "tab"), (num_spaces, "space"), (len(indent) - num_tabs - num_spaces, "other"))
        if number
    ]
    return " and ".join(parts)


# ---------------------------------------------------------------- alike, word by word


def _alike(lines: Sequence[str], asked: Sequence[str]) -> list[Near]:
    """Windows of the file whose lines have most words in common with the requested ones."""
    words = [Counter(_WORD.findall(line[:_MAX_LINE_CHARS])) for line in asked]
    starts: set[int] = set()
    for place in sorted(range(len(words)), key=lambda place: -_weight(words[place]))[:3]:
        rare = sorted(words[place], key=len, reverse=True)[:3]
        having = [number for number, line in enumerate(lines) if any(word in line for word in rare)]
        scored = sorted(having[:_MAX_CANDIDATES], key=lambda number: -_likeness(words[place], lines[number]))
        starts.update(max(0, number - place) for number in scored[:10])
    scores = {start: _window(words, lines, start) for start in sorted(starts)}
    least = max(_MIN_SIMILARITY, _BESIDE_BEST * max(scores.values(), default=0.0))
    found: list[Near] = []
    for start in sorted(scores, key=lambda start: (-scores[start], start)):
        last = min(len(lines), start + len(asked))
        apart = all(last < near.first or start + 1 > near.last for near in found)
        if scores[start] >= least and apart and len(found) < MAX_PLACES:
            found.append(Near(first=start + 1, last=last, why=_differing(asked, lines, start)))
    return found


def _weight(words: Counter[str]) -> int:
    """Long words say more."""
    return sum(len(word) * number for word, number in words.items())


def _likeness(words: Counter[str], line: str) -> float:
    """1 for the same words, 0 for none in common."""
    there = Counter(_WORD.findall(line[:_MAX_LINE_CHARS]))
    total = _weight(words) + _weight(there)
    return 2 * _weight(words & there) / total if total else 1.0


def _window(words: Sequence[Counter[str]], lines: Sequence[str], start: int) -> float:
    weights = [1 + _weight(each) for each in words]
    likes = [
        _likeness(each, lines[start + number]) if start + number < len(lines) else 0.0
        for number, each in enumerate(words)
    ]
    return sum(like * weight for like, weight in zip(likes, weights, strict=True)) / sum(weights)


def _differing(asked: Sequence[str], lines: Sequence[str], start: int) -> str:
    pairs = list(zip(asked, lines[start : start + len(asked)], strict=False))
    differ = [number for number, (line, there) in enumerate(pairs) if line.strip() != there.strip()]
    if not differ:
        return "it ends early"
    first = differ[0]
    return f"line {start + first + 1} differs from {shown(asked[first].strip()[:120])!r} in old_str"
