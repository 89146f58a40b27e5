"""Decodes a text file to characters, and encodes changes back to bytes.

Input: the bytes of a file, then a replacement for some characters. Output: the bytes of the changed file. Invariants:
`splice` keeps every byte outside the characters it replaces. A byte that is invalid in the file's encoding is
represented by a lone surrogate and written back as that byte.

Lines end with a line feed, a carriage return, or both. Searches use `folded`, in which every line ends with a line
feed; `raw` turns its offsets into offsets of the text.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_CODING_LINE = re.compile(rb"[ \t\f]*#[^\r\n]*?coding[:=][ \t]*([-\w.]+)")
_LINE_END = re.compile(r"\r\n|\r")
_ODD = re.compile("[\udc80-\udcff]")

_DECLARABLE = frozenset(
    codecs.lookup(name).name
    for name in (
        *(f"iso8859-{number}" for number in (*range(1, 12), *range(13, 17))),
        *(f"cp{number}" for number in (437, 850, 852, 866, *range(1250, 1259), 932, 936, 949)),
        *("koi8-r", "koi8-u", "mac-roman", "gb2312", "gbk", "gb18030", "big5", "euc-kr", "euc-jp", "shift_jis"),
    )
)
"""The encodings that a coding line may name: those without state. Python has codecs that compress, escape or keep
state; with those, text that is split and joined again would not be the same."""

_MAX_ODD_SHARE = 0.3


class NotText(Exception):
    """The bytes are not editable text."""


@dataclass(frozen=True)
class TextFile:
    """The text of a file without its byte order mark. Not slotted: it caches its folded form."""

    data: bytes
    text: str
    encoding: str
    errors: str
    bom: bytes = b""

    @cached_property
    def folded(self) -> str:
        """The text with every line ending as a line feed."""
        return _LINE_END.sub("\n", self.text) if "\r" in self.text else self.text

    @cached_property
    def _pairs(self) -> list[int]:
        """The offsets in `folded` where a line feed stands for two characters."""
        return [found.start() - number for number, found in enumerate(re.finditer("\r\n", self.text))]

    @property
    def has_undecodable(self) -> bool:
        return self.errors == "surrogateescape" and _ODD.search(self.text) is not None

    def raw(self, place: int) -> int:
        """The offset in `text` of an offset in `folded`."""
        return place + bisect_left(self._pairs, place)

    def encode(self, piece: str) -> bytes:
        """Raises UnicodeEncodeError for a character that the encoding does not have."""
        return piece.encode(self.encoding, self.errors)

    def splice(self, start: int, end: int, new: str) -> bytes:
        """The file with `new` in place of the characters from `start` to `end` of the text."""
        first = len(self.bom) + len(self.encode(self.text[:start]))
        last = first + len(self.encode(self.text[start:end]))
        return self.data[:first] + self.encode(new) + self.data[last:]

    def with_endings(self, new: str, start: int, end: int) -> str:
        """`new`, whose lines end with line feeds, with the line endings to write from `start` to `end` of `folded`.

        Each new line ends like the line it replaces; further ones end like the last of those, or like their neighbours.
        A carriage return that would end up before another line's line feed gets its own.
        """
        old: list[str] = []
        place = self.folded.find("\n", start, end)
        while place >= 0:
            old.append(self._ending(place))
            place = self.folded.find("\n", place + 1, end)
        last = old[-1] if old else self._near(start, end)
        pieces = new.split("\n")
        endings = [old[number] if number < len(old) else last for number in range(len(pieces) - 1)]
        written = "".join(piece + ending for piece, ending in zip(pieces, (*endings, ""), strict=True))
        first, last_place = self.raw(start), self.raw(end)
        after = self.text[last_place : last_place + 1]
        if self.text[:first].endswith("\r") and (written or after).startswith("\n"):
            written = "\n" + written
        return written + "\n" if written.endswith("\r") and after == "\n" else written

    def _ending(self, place: int) -> str:
        """The ending, in the text, of the line whose line feed is at `place` of `folded`."""
        start = self.raw(place)
        return self.text[start : self.raw(place + 1)]

    def _near(self, start: int, end: int) -> str:
        before = self.folded.rfind("\n", 0, start)
        if before >= 0:
            return self._ending(before)
        after = self.folded.find("\n", end)
        return self._ending(after) if after >= 0 else "\n"


def decode(data: bytes) -> TextFile:
    """Raises NotText for what looks binary."""
    if data.startswith(codecs.BOM_UTF8):
        found = _decoded(data, "utf-8", "surrogateescape", codecs.BOM_UTF8)
    elif utf16 := _UTF16.get(data[:2]):
        found = _decoded(data, utf16, "surrogatepass", data[:2])
    else:
        found = _decoded(data, _declared(data) or "utf-8", "surrogateescape", b"")
        if found is None:
            found = _decoded(data, "utf-8", "surrogateescape", b"")
    if found is None or "\0" in found.text:
        raise NotText("it is binary")
    if found.errors == "surrogateescape" and len(_ODD.findall(found.text)) > _MAX_ODD_SHARE * len(found.text):
        raise NotText("it is binary, or in an encoding that no coding line declares")
    return found


def _decoded(data: bytes, encoding: str, errors: str, bom: bytes) -> TextFile | None:
    """None if encoding the text would not give the same bytes."""
    body = data[len(bom) :]
    try:
        text = body.decode(encoding, errors)
        same = text.encode(encoding, errors) == body
    except UnicodeError:
        return None
    return TextFile(data=data, text=text, encoding=encoding, errors=errors, bom=bom) if same else None


def _declared(data: bytes) -> str | None:
    """The encoding named by a coding line among the first two lines."""
    for line in re.split(rb"\r\n|\n|\r", data[:1000], maxsplit=2)[:2]:
        if found := _CODING_LINE.match(line):
            try:
                name = codecs.lookup(found[1].decode("ascii", "replace")).name
            except LookupError:
                return None
            return name if name in _DECLARABLE else None
        if line.strip() and not line.lstrip().startswith(b"#"):
            return None
    return None


# ---------------------------------------------------------------- places and changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """`new` in place of the characters from `start` to `end` of a file's text."""

    start: int
    end: int
    new: str


def find_places(text: str, wanted: str, max_places: int) -> list[int]:
    """The offsets of `wanted` in `text`, overlapping ones included; at most `max_places`."""
    found: list[int] = []
    place = text.find(wanted)
    while place >= 0 and len(found) < max_places:
        found.append(place)
        place = text.find(wanted, place + 1)
    return found


def replacement(file: TextFile, place: int, old: str, new: str) -> Change:
    """The change that replaces `old`, at `place` of `folded`, with `new`; both with line feeds only.

    Their common prefix and suffix are not touched, so they keep their line endings.
    """
    head, tail = common_ends(old, new)
    start, end = place + head, place + len(old) - tail
    written = file.with_endings(new[head : len(new) - tail], start, end)
    return Change(start=file.raw(start), end=file.raw(end), new=written)


def insertion(file: TextFile, after_line: int, new: str) -> Change:
    """The change that inserts `new` as whole lines after a line (0: before the first).

    A line break is added if `new` does not end with one, except at the end of a file that has none either.
    """
    place = line_start(file.folded, after_line)
    if place == len(file.folded) and file.folded and not file.folded.endswith("\n"):
        new = "\n" + new
    elif not new.endswith("\n"):
        new += "\n"
    at = file.raw(place)
    return Change(start=at, end=at, new=file.with_endings(new, place, place))


def common_ends(one: str, other: str) -> tuple[int, int]:
    """The lengths of the common prefix of two texts, and of the common suffix beyond it."""
    max_common = min(len(one), len(other))
    head = _num_common(one, other, max_common)
    return head, _num_common(one[head:][::-1], other[head:][::-1], max_common - head)


def _num_common(one: str, other: str, max_common: int) -> int:
    """Binary search, since comparing slices is fast."""
    low, high = 0, max_common
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def fold(text: str) -> str:
    return _LINE_END.sub("\n", text)


def split_lines(folded: str) -> list[str]:
    """The lines of a folded text, without line endings. An empty text has none."""
    lines = folded.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def line_start(folded: str, after_line: int) -> int:
    """The offset of the line after line `after_line`, or the end of the text."""
    place = 0
    for _ in range(after_line):
        place = folded.find("\n", place) + 1
        if not place:
            return len(folded)
    return place


def line_at(folded: str, place: int) -> int:
    """The number, from 1, of the line that contains this offset."""
    return folded.count("\n", 0, place) + 1


def shown(line: str) -> str:
    """A line as a model can read it, with invalid bytes as hex escapes."""
    return _ODD.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", line)
