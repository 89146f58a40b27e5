"""Documents and their passages in one SQLite file.

Input: a folder of text, Markdown and HTML files, or a JSONL file with `docid` and `text`. Output: documents in an order
that is always the same, stored with the passages they are searched by.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.tools.web.readable import readable

TEXT_SUFFIXES = (".txt", ".md", ".markdown", ".html", ".htm")
ID_KEYS, TEXT_KEYS = ("docid", "id", "_id"), ("text", "contents")
PASSAGE_CHARS = 800
"""About what the encoder reads of a passage."""
_BREAKS = re.compile(r"\n\s*\n|(?<=[.!?])\s+|\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    docid: str
    text: str
    title: str = ""


def read_documents(source: Path) -> Iterator[Document]:
    """The documents of a source, in the same order every time. Raises ConfigError at the first that cannot be read."""
    if source.is_dir():
        paths = [path for path in sorted(source.rglob("*")) if path.suffix.lower() in TEXT_SUFFIXES]
        for path in paths:
            yield _from_file(path, path.relative_to(source).as_posix())
        if not paths:
            raise ConfigError(f"{source} holds no file that ends in {', '.join(TEXT_SUFFIXES)}: name another folder")
        return
    if source.suffix.lower() not in (".jsonl", ".ndjson"):
        raise ConfigError(f"{source} is neither a folder nor a .jsonl file: name one with documents")
    yield from _from_lines(source)


def fingerprint(source: Path) -> str:
    """Changes if a file of the source does, as far as names, sizes and times say."""
    paths = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    try:
        stats = [(str(path.relative_to(source)), path.stat()) for path in paths]
    except OSError as raised:
        raise ConfigError(f"{source} cannot be read ({raised.strerror}): name a folder or a .jsonl file") from raised
    listed = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def _from_file(path: Path, docid: str) -> Document:
    try:
        data = path.read_bytes()
    except OSError as raised:
        raise ConfigError(f"{path} cannot be read ({raised.strerror}): fix it, or leave it out") from raised
    if path.suffix.lower() in (".html", ".htm"):
        page = readable(data, charset="utf-8")
        return Document(docid=docid, text=page.text, title=page.title)
    text = data.decode("utf-8", "replace")
    heading = re.match(r"\s*#\s+(.+)", text)
    return Document(docid=docid, text=text, title=heading[1].strip() if heading else "")


def _from_lines(path: Path) -> Iterator[Document]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as raised:
                raise ConfigError(f"{path}, line {number} is not JSON ({raised}): fix that line") from raised
            if not isinstance(row, dict):
                raise ConfigError(f'{path}, line {number} is no object: write {{"docid": ..., "text": ...}}')
            docid = next((str(row[key]) for key in ID_KEYS if key in row), "")
            text = next((row[key] for key in TEXT_KEYS if key in row), None)
            if not docid or not isinstance(text, str):
                raise ConfigError(f'{path}, line {number} has no "docid" or no "text": give both')
            yield Document(docid=docid, text=text, title=str(row.get("title") or ""))


def passages_of(text: str, *, max_chars: int = PASSAGE_CHARS) -> list[tuple[int, int]]:
    """Where the passages of a text begin and end: at paragraphs if possible, else sentences, else words."""
    found: list[tuple[int, int]] = []
    start = 0
    while start < len(text):
        stop = len(text) if len(text) - start <= max_chars else _break(text, start, start + max_chars)
        if text[start:stop].strip():
            found.append((start, stop))
        start = stop
    return found


def _break(text: str, start: int, last: int) -> int:
    """The best place to end a passage, in its second half."""
    kinds: dict[int, int] = {}
    for match in _BREAKS.finditer(text, start + (last - start) // 2, last):
        kind = 2 if match[0].count("\n") > 1 else 1 if text[match.start() - 1] in ".!?" else 0
        kinds[kind] = match.end()
    return kinds[max(kinds)] if kinds else last


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    docid: str
    title: str
    text: str


class Corpus:
    """The documents of an index. One connection for each thread that reads."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        uri = f"file:{path.resolve().as_posix().replace('?', '%3f').replace('#', '%23')}"
        mode = "rwc" if writable else "ro&immutable=1"
        self._file = sqlite3.connect(f"{uri}?mode={mode}", uri=True, check_same_thread=False)
        if writable:
            self._file.executescript(
                "CREATE TABLE IF NOT EXISTS documents (number INTEGER PRIMARY KEY, docid TEXT NOT NULL UNIQUE,"
                " title TEXT NOT NULL, text TEXT NOT NULL);"
                "CREATE TABLE IF NOT EXISTS passages (number INTEGER PRIMARY KEY, document INTEGER NOT NULL,"
                " start INTEGER NOT NULL, stop INTEGER NOT NULL)"
            )

    @property
    def num_documents(self) -> int:
        return self._count("documents")

    @property
    def num_passages(self) -> int:
        return self._count("passages")

    def add(self, documents: Sequence[Document]) -> None:
        """Add documents, all or none of them."""
        with self._file:
            document, passage = self.num_documents, self.num_passages
            for each in documents:
                row = (document, each.docid, each.title, each.text)
                try:
                    self._file.execute("INSERT INTO documents VALUES (?, ?, ?, ?)", row)
                except sqlite3.IntegrityError:
                    raise ConfigError(f'two documents have the docid "{each.docid}": give each its own') from None
                for start, stop in passages_of(each.text):
                    self._file.execute("INSERT INTO passages VALUES (?, ?, ?, ?)", (passage, document, start, stop))
                    passage += 1
                document += 1

    def passages(self, start: int, stop: int) -> list[Passage]:
        """Those with numbers from `start` up to but not including `stop`."""
        return [
            self._passage(row)
            for row in self._file.execute(f"{_SELECT} >= ? AND passages.number < ? {_ORDER}", (start, stop))
        ]

    def passage(self, number: int) -> Passage:
        return self._passage(self._file.execute(f"{_SELECT} = ?", (number,)).fetchone())

    def text(self, docid: str) -> str | None:
        row = self._file.execute("SELECT text FROM documents WHERE docid = ?", (docid,)).fetchone()
        return None if row is None else str(row[0])

    def close(self) -> None:
        self._file.close()

    def _count(self, table: str) -> int:
        (number,) = self._file.execute(f"SELECT COALESCE(MAX(number) + 1, 0) FROM {table}").fetchone()
        return int(number)

    @staticmethod
    def _passage(row: tuple[str, str, str]) -> Passage:
        return Passage(docid=row[0], title=row[1], text=row[2])


_SELECT = (
    "SELECT docid, title, substr(text, start + 1, stop - start) FROM passages JOIN documents"
    " ON documents.number = passages.document WHERE passages.number"
)
_ORDER = "ORDER BY passages.number"
