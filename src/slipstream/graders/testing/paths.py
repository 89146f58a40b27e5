"""Path patterns.

`*` and `?` match within one name, `**` spans folders, `folder/**` is the folder and everything in it. A pattern without
a slash matches names in any folder: `conftest.py` is every conftest.py, `/conftest.py` only the top folder's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable


def as_regex(pattern: str) -> str:
    """The pattern as a regular expression for the whole path."""
    if "/" not in pattern:
        pattern = f"**/{pattern}"
    pattern = pattern.removeprefix("/")
    tail = ""
    if pattern.endswith("/**"):
        pattern, tail = pattern[:-3], "(?:/.*)?"
    pieces = []
    for piece in re.split(r"(\*\*/|\*\*|\*|\?)", pattern):
        match piece:
            case "**/":
                pieces.append("(?:.*/)?")
            case "**":
                pieces.append(".*")
            case "*":
                pieces.append("[^/]*")
            case "?":
                pieces.append("[^/]")
            case _:
                pieces.append(re.escape(piece))
    return "".join(pieces) + tail


def any_of(patterns: Iterable[str], *, ignore_case: bool = False) -> Callable[[str], bool]:
    """A function that says whether a path matches any of the patterns."""
    joined = "|".join(f"(?:{as_regex(pattern)})" for pattern in patterns)
    if not joined:
        return lambda path: False
    compiled = re.compile(joined, re.DOTALL | (re.IGNORECASE if ignore_case else 0))
    return lambda path: compiled.fullmatch(path) is not None
