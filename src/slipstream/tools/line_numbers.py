"""Line numbers as every tool shows them, `12| code`, and how to take them out of what a model copied.

Invariant: `unnumbered` takes out what `with_number` put there, and nothing from text without numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORMS = (
    re.compile(r"[ ]*(\d{1,7})\|(?: |$)"),
    re.compile(r"[ ]*(\d{1,7})\|"),
    re.compile(r"[ ]*(\d{1,7})\t"),
    re.compile(r"[ ]*(\d{1,7})[:-]"),
)
"""Ours, ours without its blank, and those of `cat -n` and of `grep -n`, which has `-` beside lines around a match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unnumbered:
    text: str
    """Without the numbers."""
    first: int
    """The number of its first line."""


def with_number(number: int, line: str, width: int = 0) -> str:
    return f"{number:>{width}}| {line}"


def unnumbered(text: str) -> list[Unnumbered]:
    """The text without its line numbers, in each way that it can be read; empty unless every line that is not blank
    has a number, and the numbers count up by one."""
    lines = text.split("\n")
    found: dict[str, Unnumbered] = {}
    for form in _FORMS:
        heads = [form.match(line) for line in lines]
        numbers = [int(head[1]) - at for at, head in enumerate(heads) if head is not None]
        is_whole = all(head is not None or not line.strip() for head, line in zip(heads, lines, strict=True))
        if is_whole and len(set(numbers)) == 1:
            bare = "\n".join(line[head.end() :] if head else line for head, line in zip(heads, lines, strict=True))
            found.setdefault(bare, Unnumbered(text=bare, first=numbers[0]))
    return list(found.values())
