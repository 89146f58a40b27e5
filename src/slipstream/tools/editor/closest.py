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
from difflib import SequenceMatcher

from slipstream.tools.editor.text import find_places, line_at, shown, split_lines
from slipstream.tools.line_numbers import unnumbered

MAX_PLACES = 3
_MAX_LINES = 20_000
_MAX_WANTED_LINES = 60
_MAX_CANDIDATES = 300
_MAX_LINE_CHARS = 300
_MAX_NAMED = 3
_MAX_NAMED_CHARS = 80
_MIN_SIMILARITY = 0.5
_BESIDE_BEST = 0.8
"""Places below this share of the best similarity would only distract."""

_WORD = re.compile(r"\w+|[^\w\s]")
_PIECE = re.compile(r"\w+|[ ]+|\t+|\s|[^\w\s]")
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


def closest(folded: str, wanted: str, name: str = "old_str") -> list[Near]:
    """The most similar places, best first; empty if there are none. `name` is what the text is called."""
    lines = split_lines(folded)
    bare = unnumbered(wanted)
    asked = split_lines(bare[0].text if bare else wanted)
    if not any(line.strip() for line in asked):
        return []
    return _but_for_looks(lines, wanted, name) or _alike(lines[:_MAX_LINES], asked[:_MAX_WANTED_LINES], name)


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


def _but_for_looks(lines: Sequence[str], wanted: str, name: str) -> list[Near]:
    whole = "\n".join(lines)
    for bare in (wanted.strip("\n"), *(each.text.strip("\n") for each in unnumbered(wanted))):
        if found := _found(whole, bare, f"line breaks at the beginning or end of {name} are not there"):
            return found
        if _seen_as(_lower, lines, bare, ""):  # the most lenient: where it finds nothing, none does
            break
    else:
        return []
    for look, why in _LOOKS:
        if found := _seen_as(look, lines, bare, why):
            sought = bare.split("\n")
            num_blank = next(number for number, line in enumerate(sought) if line.strip())  # those are not looked for
            return [_explained(near, lines, sought[num_blank:], name) for near in found]
    return []


def _seen_as(look: Callable[[str], str], lines: Sequence[str], bare: str, why: str) -> list[Near]:
    sought = "\n".join(look(line) for line in bare.split("\n")).strip("\n")
    return _found("\n".join(look(line) for line in lines), sought, why) if sought.strip() else []


def _found(text: str, wanted: str, why: str) -> list[Near]:
    num_lines = wanted.count("\n") + 1
    firsts = dict.fromkeys(line_at(text, place) for place in find_places(text, wanted, MAX_PLACES))
    return [Near(first=first, last=first + num_lines - 1, why=why) for first in firsts]


def _explained(near: Near, lines: Sequence[str], asked: Sequence[str], name: str) -> Near:
    """With the characters that differ."""
    differing = differences(asked, lines[near.first - 1 : near.last], near.first)
    why = f"{near.why}: {name} has {', '.join(differing)}" if differing else near.why
    return Near(first=near.first, last=near.last, why=why)


# ---------------------------------------------------------------- the characters that differ


def differences(asked: Sequence[str], there: Sequence[str], first: int) -> list[str]:
    """What the lines of a text have in other characters than those of the file from line `first` on, such as "1 tab
    instead of 4 spaces in line 6"; each kind once, and few of them. What is before the text in its first line, or after
    it in its last, counts only if nothing else differs."""
    ends = list(there)
    if ends and not _indent(asked[0]):
        ends[0] = ends[0].lstrip()
    if ends and asked[-1] == asked[-1].rstrip():
        ends[-1] = ends[-1].rstrip()
    return _differences(asked, ends, first) or _differences(asked, there, first)


def _differences(asked: Sequence[str], there: Sequence[str], first: int) -> list[str]:
    found: dict[str, int] = {}
    for number, (line, other) in enumerate(zip(asked, there, strict=False)):
        for has, instead in _replaced(line[:_MAX_LINE_CHARS], other[:_MAX_LINE_CHARS]):
            found.setdefault(f"{_named(has)} instead of {_named(instead)}", first + number)
        if len(found) >= _MAX_NAMED:
            break
    return [f"{what} in line {line}" for what, line in list(found.items())[:_MAX_NAMED]]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _replaced(line: str, other: str) -> list[tuple[str, str]]:
    """The pieces of a line that differ from another: what it has, and what the other has there."""
    one, two = _PIECE.findall(line), _PIECE.findall(other)
    if len(one) == len(two):
        return [(has, instead) for has, instead in zip(one, two, strict=True) if has != instead]
    blocks = SequenceMatcher(None, one, two, autojunk=False).get_opcodes()
    return [("".join(one[a:b]), "".join(two[c:d])) for kind, a, b, c, d in blocks if kind != "equal"]


def _named(piece: str) -> str:
    """Characters as a model can tell them apart."""
    if not piece:
        return "nothing"
    if piece.isspace():
        num_tabs, num_spaces = piece.count("\t"), piece.count(" ")
        others = ((num_tabs, "tab"), (num_spaces, "space"), (len(piece) - num_tabs - num_spaces, "other blank"))
        return " and ".join(f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in others if number)
    odd = [f"U+{ord(char):04X}" for char in dict.fromkeys(piece) if not char.isascii()]
    text = piece if len(piece) <= _MAX_NAMED_CHARS else f"{piece[:_MAX_NAMED_CHARS]}..."
    quoted = f"`{shown(text)}`" if text.isprintable() else ascii(text)
    return f"{quoted} ({', '.join(odd[:_MAX_NAMED])})" if odd else quoted


# ---------------------------------------------------------------- alike, word by word


def _alike(lines: Sequence[str], asked: Sequence[str], name: str) -> list[Near]:
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
            found.append(Near(first=start + 1, last=last, why=_differing(asked, lines, start, name)))
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


def _differing(asked: Sequence[str], lines: Sequence[str], start: int, name: str) -> str:
    told = differences(asked, lines[start : start + len(asked)], start + 1)
    return f"{name} has {', '.join(told)}" if told else "it ends early"
