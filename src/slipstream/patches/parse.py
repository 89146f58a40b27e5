"""Parses patches as git and `diff -u` write them.

Input: bytes. Output: one `Section` per file. Invariants: anything unknown is an error that names the line, and nothing
is skipped; every path is relative, normalized, and outside of `.git`; every mode is that of a file, an executable or a
link.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from slipstream.bounded import TooLarge, inflate
from slipstream.errors import SlipstreamError

FILE, PROGRAM, LINK = 0o100644, 0o100755, 0o120000
MODES = {b"100644": FILE, b"100755": PROGRAM, b"120000": LINK}
MAX_BINARY_BYTES = 256 << 20

_ESCAPES = {
    0x07: b"\\a",
    0x08: b"\\b",
    0x09: b"\\t",
    0x0A: b"\\n",
    0x0B: b"\\v",
    0x0C: b"\\f",
    0x0D: b"\\r",
    0x22: b'\\"',
    0x5C: b"\\\\",
}
_UNESCAPES = {escape[1:]: bytes([code]) for code, escape in _ESCAPES.items()}
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: .*|)")
_INDEX = re.compile(rb"([0-9a-f]{4,64})\.\.([0-9a-f]{4,64})(?: (\d+))?")
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)? ([+-]\d{4})")


class PatchError(SlipstreamError):
    """A patch that is malformed, names a forbidden path, or does not apply to the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    header: str
    old_start: int
    old: list[bytes]
    """The lines to find, each with its newline if it has one."""
    new: list[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    is_delta: bool
    size: int
    data: bytes


@dataclass(slots=True, kw_only=True)
class Section:
    """The part of a patch about one file. Filled in while parsing."""

    line: int
    old_path: str | None = None
    """None if the file is new."""
    new_path: str | None = None
    """None if the file is deleted."""
    old_mode: int | None = None
    new_mode: int | None = None
    is_new: bool = False
    is_deleted: bool = False
    is_rename: bool = False
    is_copy: bool = False
    old_hash: bytes = b""
    new_hash: bytes = b""
    hunks: list[Hunk] | None = None
    binary: Binary | None = None

    @property
    def name(self) -> str:
        return self.new_path or self.old_path or ""


# ---------------------------------------------------------------- names


def quote(name: bytes) -> bytes:
    """A name as git writes it: quoted and escaped if it has any special byte."""
    if all(0x20 <= code < 0x7F and code not in b'"\\' for code in name):
        return name
    escaped = (_ESCAPES.get(code) or (bytes([code]) if 0x20 <= code < 0x7F else b"\\%03o" % code) for code in name)
    return b'"' + b"".join(escaped) + b'"'


def unquote(quoted: bytes) -> bytes:
    """Unescape the text between quotes."""

    def plain(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        if escape in _UNESCAPES:
            return _UNESCAPES[escape]
        if len(escape) == 3 and int(escape, 8) < 256:
            return bytes([int(escape, 8)])
        raise PatchError(f"the name {_text(quoted)} has an invalid escape")

    return re.sub(rb"\\([0-7]{3}|.)", plain, quoted, flags=re.DOTALL)


def checked(name: bytes, strip: int) -> str:
    """A path without its first `strip` folders, if a patch may touch it."""
    if name.startswith(b"/"):
        raise PatchError(f"the path {_text(name)} is absolute: it must be relative to the patched folder")
    parts = name.split(b"/")[strip:]
    if not parts:
        raise PatchError(f"the path {_text(name)} has no leading folder, such as a/ or b/")
    for part in parts:
        if part in (b"", b".", b"..") or b"\0" in part or len(part) > 255:
            raise PatchError(f"the path {_text(name)} is not normalized: it may not contain ., .. or an empty name")
        if part.lower() in (b".git", b"git~1"):
            raise PatchError(f"the path {_text(name)} is inside .git, which a patch may not touch")
    return b"/".join(parts).decode("utf-8", "surrogateescape")


def _text(data: bytes) -> str:
    return repr(data[:200].decode("utf-8", "replace"))


# ---------------------------------------------------------------- lines


class _Lines:
    """Reads the lines of a patch in order."""

    def __init__(self, patch: bytes) -> None:
        self._lines = patch.split(b"\n")
        if self._lines[-1] == b"":
            self._lines.pop()
        self._next = 0

    @property
    def number(self) -> int:
        return self._next + 1

    def peek(self) -> bytes | None:
        return self._lines[self._next] if self._next < len(self._lines) else None

    def take(self) -> bytes:
        line = self.peek()
        if line is None:
            raise self.wrong("the patch ends early")
        self._next += 1
        return line

    def take_after(self, start: bytes) -> bytes | None:
        """The rest of the next line, if it starts with `start`."""
        line = self.peek()
        if line is None or not line.startswith(start):
            return None
        self._next += 1
        return line[len(start) :]

    def wrong(self, what: str) -> PatchError:
        return PatchError(f"line {self.number} of the patch: {what}")


def sections(patch: bytes, *, strip: int = 1) -> Iterator[Section]:
    """Parse a patch. Raises PatchError."""
    lines = _Lines(patch)
    while (line := lines.peek()) is not None:
        if line == b"" or line.startswith((b"Index: ", b"======")):
            lines.take()
        elif line.startswith(b"diff --git "):
            yield _git_section(lines, strip)
        elif line.startswith(b"diff "):
            lines.take()
        elif line.startswith(b"--- "):
            section = Section(line=lines.number)
            _read_names(lines, section, strip, is_git=False)
            yield section
        else:
            raise lines.wrong(f"{_text(line)} starts neither a file section nor a hunk")


def _git_section(lines: _Lines, strip: int) -> Section:
    section = Section(line=lines.number)
    header = lines.take()[len(b"diff --git ") :]
    _read_extended(lines, section)
    if not (section.is_rename or section.is_copy):
        name = _name_of_both(header, strip)
        if name is not None:
            section.old_path = section.new_path = name
    line = lines.peek() or b""
    if line.startswith(b"--- "):
        _read_names(lines, section, strip, is_git=True)
    elif line == b"GIT binary patch":
        lines.take()
        section.binary = _read_binary(lines)
        if (lines.peek() or b"").startswith((b"literal ", b"delta ")):
            _read_binary(lines)  # the reverse direction
    elif line.startswith(b"Binary files "):
        raise lines.wrong("a binary file without its data: create the patch with git diff --binary")
    if section.name == "":
        raise PatchError(f"line {section.line} of the patch: {_text(header)} does not name a single file")
    if section.is_new:
        section.old_path = None
    if section.is_deleted:
        section.new_path = None
    return section


def _name_of_both(header: bytes, strip: int) -> str | None:
    """NAME in `a/NAME b/NAME`; None if the two names differ."""
    match = _QUOTED.match(header)
    if match is not None:
        old, rest = unquote(match[1]), header[match.end() + 1 :]
        names = [(old, unquote(rest[1:-1]) if _QUOTED.fullmatch(rest) else rest)]
    elif header.endswith(b'"') and b' "' in header:
        old, _, rest = header.partition(b' "')
        names = [(old, unquote(rest[:-1]))]
    else:
        spaces = [index for index, code in enumerate(header) if code == 0x20]
        names = [(header[:index], header[index + 1 :]) for index in spaces]
    for old, new in names:
        if old.split(b"/")[strip:] == new.split(b"/")[strip:] != []:
            return checked(new, strip)
    return None


def _read_extended(lines: _Lines, section: Section) -> None:
    while True:
        if (mode := lines.take_after(b"old mode ")) is not None:
            section.old_mode = _mode(lines, mode)
        elif (mode := lines.take_after(b"new mode ")) is not None:
            section.new_mode = _mode(lines, mode)
        elif (mode := lines.take_after(b"new file mode ")) is not None:
            section.new_mode, section.is_new = _mode(lines, mode), True
        elif (mode := lines.take_after(b"deleted file mode ")) is not None:
            section.old_mode, section.is_deleted = _mode(lines, mode), True
        elif (name := lines.take_after(b"rename from ")) is not None:
            section.old_path, section.is_rename = _plain_name(name), True
        elif (name := lines.take_after(b"rename to ")) is not None:
            section.new_path, section.is_rename = _plain_name(name), True
        elif (name := lines.take_after(b"copy from ")) is not None:
            section.old_path, section.is_copy = _plain_name(name), True
        elif (name := lines.take_after(b"copy to ")) is not None:
            section.new_path, section.is_copy = _plain_name(name), True
        elif (index := lines.take_after(b"index ")) is not None:
            match = _INDEX.fullmatch(index)
            if match is None:
                raise lines.wrong(f"{_text(index)} is not a pair of file hashes")
            section.old_hash, section.new_hash = match[1], match[2]
            if match[3] is not None:
                section.old_mode = _mode(lines, match[3])
        elif lines.take_after(b"similarity index ") is None and lines.take_after(b"dissimilarity index ") is None:
            break
    halves = (section.old_path is None, section.new_path is None)
    if (section.is_rename or section.is_copy) and (any(halves) or section.is_rename == section.is_copy):
        raise lines.wrong("a rename or copy needs both names")
    if section.is_new and section.is_deleted:
        raise lines.wrong("a file is both created and deleted")


def _mode(lines: _Lines, mode: bytes) -> int:
    if mode == b"160000":
        raise lines.wrong("submodules are not supported")
    if mode not in MODES:
        raise lines.wrong(f"the mode {_text(mode)} is not one of 100644, 100755 and 120000")
    return MODES[mode]


def _plain_name(name: bytes) -> str:
    match = _QUOTED.fullmatch(name)
    return checked(unquote(match[1]) if match else name, 0)


def _read_names(lines: _Lines, section: Section, strip: int, *, is_git: bool) -> None:
    """Read the lines `---` and `+++`, and the hunks after them."""
    names = []
    for start in (b"--- ", b"+++ "):
        line = lines.take_after(start)
        if line is None:
            raise lines.wrong(f"a line that starts with {start.decode()!r} is missing")
        match = _QUOTED.match(line)
        name = unquote(match[1]) if match else line.partition(b"\t")[0]
        stamp = line[match.end() :] if match else line.partition(b"\t")[2]
        is_none = name == b"/dev/null" or (not is_git and _is_epoch(stamp))
        names.append((None if name == b"/dev/null" else checked(name, strip), is_none))
    (old, old_none), (new, new_none) = names
    if old is None and new is None:
        raise lines.wrong("both names are /dev/null")
    if is_git:
        _check_names(lines, section, old, new)
    section.hunks = []
    while (lines.peek() or b"").startswith(b"@@ "):
        section.hunks.append(_read_hunk(lines))
    if not section.hunks:
        raise lines.wrong("a hunk is missing")
    if not is_git:
        first = section.hunks[0]
        section.is_new = old_none and not first.old
        section.is_deleted = new_none and not first.new
        if (old is None and not section.is_new) or (new is None and not section.is_deleted):
            raise lines.wrong("the hunk contradicts /dev/null")
        section.old_path = None if section.is_new else (new or old)
        section.new_path = None if section.is_deleted else (new or old)


def _check_names(lines: _Lines, section: Section, old: str | None, new: str | None) -> None:
    """In git's format the two names must repeat those of the lines above them."""
    if section.old_path is None and section.new_path is None:
        section.old_path, section.new_path = old or new, new or old
    if (old is None) != section.is_new or (new is None) != section.is_deleted:
        raise lines.wrong("/dev/null contradicts the lines above")
    if (old is not None and old != section.old_path) or (new is not None and new != section.new_path):
        raise lines.wrong("the names differ from those in the lines above")


def _is_epoch(stamp: bytes) -> bool:
    """Whether the timestamp is the one with which `diff -N` marks a missing file."""
    match = _STAMP.fullmatch(stamp.strip())
    if match is None:
        return False
    try:
        return datetime.strptime(f"{match[1].decode()} {match[2].decode()}", "%Y-%m-%d %H:%M:%S %z").timestamp() == 0
    except ValueError:
        return False


def _read_hunk(lines: _Lines) -> Hunk:
    line = lines.take()
    match = _HUNK.fullmatch(line)
    if match is None:
        raise lines.wrong(f"{_text(line)} is not a hunk header")
    num_old, num_new = (1 if match[group] is None else int(match[group]) for group in (2, 4))
    old: list[bytes] = []
    new: list[bytes] = []
    while len(old) < num_old or len(new) < num_new:
        body = lines.take()
        sign, content = body[:1] or b" ", body[1:] + b"\n"
        if sign not in (b" ", b"-", b"+"):
            raise lines.wrong(f"the hunk {_text(line)} has fewer lines than its header says")
        sides = [side for side, signs in ((old, b" -"), (new, b" +")) if sign in signs]
        if (lines.peek() or b"").startswith(b"\\ "):
            lines.take()
            content = content[:-1]
        for side in sides:
            side.append(content)
    if len(old) > num_old or len(new) > num_new:
        raise lines.wrong(f"the hunk {_text(line)} has more lines than its header says")
    header = line[: line.index(b"@@", 2) + 2].decode("ascii")
    return Hunk(header=header, old_start=int(match[1]), old=old, new=new)


def _read_binary(lines: _Lines) -> Binary:
    head = lines.take()
    kind, _, size = head.partition(b" ")
    if kind not in (b"literal", b"delta") or not size.isdigit() or len(size) > 12:
        raise lines.wrong(f"{_text(head)} is not a binary data header")
    packed = bytearray()
    while line := lines.take():
        code = line[0]
        length = code - 64 if 65 <= code <= 90 else code - 70 if 97 <= code <= 122 else 0
        try:
            piece = base64.b85decode(line[1:])
        except (ValueError, binascii.Error):
            piece = b""
        if not length or len(line) != 1 + (length + 3) // 4 * 5 or len(piece) < length:
            raise lines.wrong("not a line of binary data")
        packed += piece[:length]
    if int(size) > MAX_BINARY_BYTES:
        raise lines.wrong(f"binary data of more than {MAX_BINARY_BYTES} bytes")
    try:
        data = inflate(bytes(packed), int(size), "the binary data")
    except (zlib.error, TooLarge):
        data = b""
    if len(data) != int(size):
        raise lines.wrong("the binary data is corrupt")
    return Binary(is_delta=kind == b"delta", size=int(size), data=data)
