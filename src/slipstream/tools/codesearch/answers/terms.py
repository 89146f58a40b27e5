"""Parses a search term; its form says what it asks for.

`QuerySet.filter` a symbol; `query.py` or `db/**/query.py` files; `query.py:120` or `query.py:120-160` lines;
`query.py:QuerySet.filter` a symbol of a file; anything else is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from typing import TypeAlias

from slipstream.errors import ToolError
from slipstream.tools.codesearch.parsing.languages import SUFFIXES

TEXT_SUFFIXES = frozenset(
    [
        "cfg",
        "conf",
        "css",
        "csv",
        "env",
        "gradle",
        "html",
        "htm",
        "in",
        "ini",
        "json",
        "less",
        "lock",
        "md",
        "mk",
        "proto",
        "po",
        "properties",
        "rst",
        "scss",
        "sh",
        "sql",
        "svg",
        "toml",
        "tpl",
        "txt",
        "vue",
        "xml",
        "yaml",
        "yml",
    ]
)
FILES_ALONE = frozenset(
    ("py", "pyi", "js", "jsx", "ts", "tsx", "rs", "java", "cpp", "md", "rst", "txt", "toml", "yaml")
)
"""Suffixes of files, with which no symbol ends."""
_LINES = re.compile(r"(?P<path>[^:\s]+):(?:L|#L)?(?P<first>\d{1,7})(?:[-,:](?:L)?(?P<last>\d{1,7}))?")
_ENTITY = re.compile(r"(?P<path>[^:\s]+\.\w+)::?(?P<name>[^\W\d][\w.:]*)")
_GLUED = re.compile(r"(?<=[^/*])\*{2,}|\*{2,}(?=[^/*])")
_MAX_GLUED = 3
_ANY = re.compile(".*", re.DOTALL)
MAX_COMPARED_NAMES = 4_000
MAX_COMPARED_CHARS = 100
MAX_COMPARED = 3_000_000
"""Limit of comparisons of a name with a part of a pattern in one query; long ones count more."""
_SYMBOL = re.compile(r"[^\W\d]\w*(?:(?:\.|::|#)[^\W\d]\w*)*(?:\(\))?")


class Form(StrEnum):
    SYMBOL = "symbol"
    FILES = "files"
    LINES = "lines"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    form: Form
    text: str
    parts: tuple[str, ...] = ()
    """Of a symbol, or of what may be one if there is no such file: `app.conf`."""
    pattern: str = ""
    """The file or files: a path, the end of a path, or a glob."""
    first: int = 0
    last: int = 0


def read_term(text: str) -> Term:
    text = text.strip()
    if lines := _LINES.fullmatch(text):
        first = int(lines["first"])
        last = int(lines["last"] or first)
        return Term(form=Form.LINES, text=text, pattern=lines["path"], first=min(first, last), last=max(first, last))
    if (entity := _ENTITY.fullmatch(text)) and looks_like_file(entity["path"]):
        return Term(form=Form.SYMBOL, text=text, pattern=entity["path"], parts=_parts(entity["name"]))
    if looks_like_file(text):
        return Term(form=Form.FILES, text=text, pattern=text, parts=_parts(text) if _may_be_symbol(text) else ())
    stripped = re.sub(r"^(?:async\s+def|def|class|function|func|fn|struct|interface|enum|trait)\s+", "", text)
    if _SYMBOL.fullmatch(stripped):
        return Term(form=Form.SYMBOL, text=text, parts=_parts(stripped))
    return Term(form=Form.TEXT, text=text)


def looks_like_file(text: str) -> bool:
    if re.search(r"\s", text):
        return False
    suffix = text.rpartition(".")[2].lower()
    known = "." in text and (suffix in SUFFIXES or suffix in TEXT_SUFFIXES)
    is_glob = "*" in text and ("/" in text or "." in text) and not re.search(r"[()\\|^$+]", text)
    return is_glob or (known and re.fullmatch(r"[\w.@+\-/*?\[\]]+", text) is not None)


def _may_be_symbol(text: str) -> bool:
    """`response.json` may be a name; `models.py` is a file."""
    return _SYMBOL.fullmatch(text) is not None and text.rpartition(".")[2] not in FILES_ALONE


def _parts(name: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"\.|::|#", name.removesuffix("()")) if part)


# ---------------------------------------------------------------- names


def close_names(name: str, known: Iterable[str], *, limit: int, cutoff: float) -> list[str]:
    """Known names that are similar to this one, best first. If there are very many, only those with the same first or
    last letters are compared, and no long ones."""
    if len(name) > MAX_COMPARED_CHARS:
        return []
    size = len(name)
    lengths = {other for other in range(MAX_COMPARED_CHARS) if 2 * min(other, size) >= cutoff * (other + size)}
    candidates = [other for other in known if len(other) in lengths]
    if len(candidates) > MAX_COMPARED_NAMES:
        ends = (name[:2].lower(), name[-2:].lower())
        candidates = [other for other in candidates if other[:2].lower() == ends[0] or other[-2:].lower() == ends[1]]
    return get_close_matches(name, sorted(candidates)[:MAX_COMPARED_NAMES], n=limit, cutoff=cutoff)


# ---------------------------------------------------------------- paths


class PathFilter:
    """The paths that a pattern means, for one query. `**` crosses folders and so does `*` in a pattern without a slash;
    a name or a path without `*` is that file, that folder, or one whose path ends with it. Brackets are a set of
    characters or just brackets: `app/[slug]/page.tsx` is a path too. Every text is a pattern.

    Matching a path takes as many comparisons as the product of the two lengths in names; more than MAX_COMPARED of them
    in one query raise ToolError.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._meanings = _meanings(pattern.strip().removeprefix("./").strip("/"))
        self._num_left = MAX_COMPARED

    def match(self, path: str) -> bool:
        names = path.split("/")
        return any(self._means(runs, names) for runs in self._meanings)

    def _means(self, runs: Runs, names: list[str]) -> bool:
        """Whether the runs occur in order. Taking the leftmost match of each is enough: what follows may be anywhere
        below, so a later match would be no better."""
        place = 0
        for run in runs:
            last = len(names) - len(run)
            while place <= last and not self._stands_at(run, names, place):
                place += 1
            if place > last:
                return False
            place += len(run)
        return True

    def _stands_at(self, run: Run, names: list[str], place: int) -> bool:
        for wanted, name in zip(run, names[place : place + len(run)], strict=True):
            self._num_left -= 1 if isinstance(wanted, str) else 1 + (len(name) * len(wanted.pattern) >> 8)
            if not (wanted == name if isinstance(wanted, str) else wanted.fullmatch(name)):
                if self._num_left < 0:
                    raise ToolError(f'search: path="{self._pattern[:80]}" is too costly for so many files: simplify it')
                return False
        return True


Run: TypeAlias = tuple[str | re.Pattern[str], ...]
"""Names, or patterns of names, of consecutive path components."""
Runs: TypeAlias = tuple[Run, ...]
"""The runs between the `**` of a pattern."""


@lru_cache(maxsize=256)
def _meanings(pattern: str) -> tuple[Runs, ...]:
    if not pattern or pattern in (".", "**", "*"):
        return ((),)
    return tuple(map(_runs, _unglued(pattern)))


def _unglued(pattern: str) -> list[str]:
    """The same with every `**` alone between slashes: `a**b` is `a*b` or `a*/**/*b`. From the fourth on it is `*`."""
    meanings = [pattern]
    for _ in range(_MAX_GLUED):
        either = (_GLUED.sub(meant, meaning, count=1) for meaning in meanings for meant in ("*", "*/**/*"))
        meanings = list(dict.fromkeys(either))
    return [_GLUED.sub("*", meaning) for meaning in meanings]


def _runs(pattern: str) -> Runs:
    runs: list[list[str | re.Pattern[str]]] = [[]]
    names = [name for name in pattern.split("/") if name]
    for number, name in enumerate(names, 1):
        if len(name) == 1 or name.strip("*"):
            runs[-1].append(re.compile(_name(name), re.DOTALL) if re.search(r"[*?\[]", name) else name)
        elif number == len(names):
            runs[-1].append(_ANY)  # something must be below
        elif runs[-1]:
            runs.append([])
    return tuple(tuple(run) for run in runs if run)


def _name(glob: str) -> str:
    """A regular expression for one name of a path. The text between two `*` takes its leftmost match, as above."""
    pieces = [""]
    at = 0
    while at < len(glob):
        char = glob[at]
        if char == "*":
            pieces.append("")
        elif char == "?":
            pieces[-1] += "[^/]"
        elif char == "[" and (end := glob.find("]", at + 2)) > 0:
            pieces[-1] += _set(glob[at : end + 1])
            at = end
        else:
            pieces[-1] += re.escape(char)
        at += 1
    first, *others = pieces
    if not others:
        return first
    between = "".join(f"(?>[^/]*?{piece})" for piece in others[:-1] if piece)
    return f"{first}{between}[^/]*{others[-1]}"


def _set(brackets: str) -> str:
    """One of the characters in brackets, or the literal brackets; only those if they are not a set."""
    literally = re.escape(brackets)
    inside = re.sub(r"([\\\[&~|])", r"\\\1", brackets[1:-1]).replace("--", r"-\-")
    one_of = f"(?!/)[{'^' + inside[1:] if inside[0] in '!^' else inside}]"
    try:
        re.compile(one_of)
    except re.error:
        return literally
    return f"(?:{literally}|{one_of})"
