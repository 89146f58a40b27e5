"""What a model may ask for in one term, told apart by its form.

`QuerySet.filter` a symbol; `query.py` or `db/**/query.py` files; `query.py:120` or `query.py:120-160` lines;
`query.py:QuerySet.filter` a symbol of a file; anything else is text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from slipstream.tools.codesearch.languages import SUFFIXES

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
"""Suffixes that no name of code ends with."""
_LINES = re.compile(r"(?P<path>[^:\s]+):(?:L|#L)?(?P<first>\d{1,7})(?:[-,:](?:L)?(?P<last>\d{1,7}))?")
_ENTITY = re.compile(r"(?P<path>[^:\s]+\.\w+)::?(?P<name>[^\W\d][\w.:]*)")
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


@lru_cache(maxsize=256)
def path_filter(pattern: str) -> re.Pattern[str]:
    """What paths a pattern means. `**` crosses folders and so does `*` in a pattern without a slash; a name or a path
    without `*` is that file, that folder, or one whose path ends with it."""
    pattern = pattern.strip().removeprefix("./").strip("/")
    if not pattern or pattern in (".", "**", "*"):
        return re.compile("")
    if not re.search(r"[*?\[]", pattern):
        return re.compile(rf"(?:.*/)?{re.escape(pattern)}(?:/.*)?\Z")
    return re.compile(rf"(?:.*/)?{_glob(pattern)}(?:/.*)?\Z")


def _glob(pattern: str) -> str:
    out = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if pattern.startswith("**/", at):
            out.append("(?:[^/]+/)*")
            at += 3
            continue
        if pattern.startswith("**", at):
            out.append(".*")
            at += 2
            continue
        if char == "*":
            out.append("[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif char == "[" and (end := pattern.find("]", at + 2)) > 0:
            inside = pattern[at + 1 : end].replace("\\", r"\\").replace("[", r"\[")
            out.append(f"[{'^' + inside[1:] if inside[0] in '!^' else inside}]")
            at = end
        else:
            out.append(re.escape(char))
        at += 1
    return "".join(out)
