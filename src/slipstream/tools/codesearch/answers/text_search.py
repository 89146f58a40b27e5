"""Finds text in files: by substring or phrase here, by regular expression in a parsing process with a deadline.

Input: files with their Facts. Output: the lines that match, by file, and the files that were not searched. Invariants:
a regular expression costs at most its deadline; nothing is searched twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.errors import ToolError
from slipstream.tools.codesearch.parsing.facts import FileFacts
from slipstream.tools.codesearch.parsing.parsers import Job, Lost, Parsers, Reply
from slipstream.types import Json

MAX_LINES = 200
FILE_TIMEOUT_S = 1.0
REGEX_TIMEOUT_S = 5.0
MAX_PATTERN_CHARS = 1000
MAX_PHRASE_WORDS = 60
STRING_PREFIX = re.compile(rb"(?<![\w])[bfru]{1,2}(?=[\"'])", re.IGNORECASE)
_NEWLINES = re.compile(b"\r\n?")
_BETWEEN = rb"(?:\\[nrt])?[^\w]{1,200}(?:[bfruBFRU]{1,2}(?=[\"'])[^\w]{1,10})?"
"""What may stand between two words of a string or a comment that goes over lines: blanks, quotes, comment signs."""


class Match(NamedTuple):
    path: str
    facts: FileFacts
    lines: tuple[int, ...]
    """At most MAX_LINES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    files: tuple[Match, ...] = ()
    not_searched: tuple[tuple[str, str], ...] = ()
    """(path, why)."""
    is_other_case: bool = False
    """There was no exact match, so case was ignored."""


def find_text(items: Sequence[tuple[str, FileFacts]], text: str) -> Matches:
    """The lines with a text, or with its words in a row, whatever is between them: so a string or a comment is found
    too that goes over several lines, or that is written in pieces. Case counts, unless nothing is found with it."""
    needle = text.replace("\r\n", "\n").encode()
    words = [word.encode() for word in re.findall(r"\w+", text)]
    for ignore_case in (False, True):
        pattern = phrase_pattern(text, ignore_case=ignore_case)
        if ignore_case:
            needle, words = needle.lower(), [word.lower() for word in words]
        found: list[Match] = []
        for path, facts in items:
            data = facts.text.lower() if ignore_case else facts.text
            lines = _lines_of(data, needle)
            if pattern is not None and all(word in data for word in words):
                lines = tuple(sorted({*lines, *_phrase_lines(data, pattern)}))[:MAX_LINES]
            if lines:
                found.append(Match(path, facts, lines))
        if found:
            return Matches(files=tuple(found), is_other_case=ignore_case)
    return Matches()


def phrase_pattern(text: str, *, ignore_case: bool) -> re.Pattern[bytes] | None:
    """None for a text of one word, or of very many."""
    row = [re.escape(word.encode()) for word in re.findall(r"\w+", text)]
    if not 2 <= len(row) <= MAX_PHRASE_WORDS:
        return None
    return re.compile(rb"(?<!\w)" + _BETWEEN.join(row) + rb"(?!\w)", re.IGNORECASE if ignore_case else 0)


def _phrase_lines(text: bytes, pattern: re.Pattern[bytes]) -> tuple[int, ...]:
    text = _NEWLINES.sub(b"\n", text)
    lines: dict[int, None] = {}
    for found in pattern.finditer(text):
        lines[1 + text.count(b"\n", 0, found.start())] = None
        if len(lines) >= MAX_LINES:
            break
    return tuple(lines)


def _lines_of(text: bytes, needle: bytes) -> tuple[int, ...]:
    if b"\r" in text:
        text = _NEWLINES.sub(b"\n", text)
    at = text.find(needle)
    lines: list[int] = []
    line, seen = 1, 0
    while at >= 0 and len(lines) < MAX_LINES:
        line += text.count(b"\n", seen, at)
        seen = at
        lines.append(line)
        after = text.find(b"\n", at)
        if after < 0:
            break
        at = text.find(needle, after + 1 if b"\n" not in needle else at + 1)
    return tuple(dict.fromkeys(lines))


def find_regex(parsers: Parsers, items: Sequence[tuple[str, FileFacts]], pattern: str) -> Matches:
    """Raises ToolError for a pattern that is invalid, or that takes too long to compile."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ToolError(f"search: the pattern has more than {MAX_PATTERN_CHARS} characters: make it shorter")
    header: dict[str, Json] = {"pattern": pattern, "max_lines": MAX_LINES}
    literal = _literal(parsers, header)
    needle = literal.encode()
    items = [(path, facts) for path, facts in items if needle in facts.text]
    by_path = dict(items)
    jobs = (Job(key=path, header={**header, "op": "match"}, data=facts.text) for path, facts in items)
    found: list[Match] = []
    lost: list[tuple[str, str]] = []
    width = 1 + len(items) // 200
    replies = parsers.run(jobs, job_timeout_s=FILE_TIMEOUT_S, timeout_s=REGEX_TIMEOUT_S, width=width)
    for job, reply in replies:
        if isinstance(reply, Lost):
            lost.append((job.key, reply.reason))
        elif lines := _checked_lines(reply):
            found.append(Match(job.key, by_path[job.key], lines))
    return Matches(files=tuple(sorted(found, key=lambda match: match.path)), not_searched=tuple(sorted(lost)))


def _literal(parsers: Parsers, header: dict[str, Json]) -> str:
    """A text that every match contains. The pattern is first compiled here, in the parsing process."""
    job = Job(key="", header={**header, "op": "literal"})
    for _, reply in parsers.run([job], job_timeout_s=FILE_TIMEOUT_S):
        if isinstance(reply, Lost):
            raise ToolError("search: the regular expression is too costly: make it simpler")
        if isinstance(error := reply.header.get("error"), str):
            raise ToolError(f'search: "{header["pattern"]}" is not a regular expression: {error[:200]}')
        if isinstance(literal := reply.header.get("literal"), str):
            return literal
    return ""


def _checked_lines(reply: Reply) -> tuple[int, ...]:
    lines = reply.header.get("lines")
    if not isinstance(lines, list):
        return ()
    return tuple(line for line in lines[:MAX_LINES] if isinstance(line, int) and line > 0)
