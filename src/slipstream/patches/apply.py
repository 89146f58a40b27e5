"""Makes and applies patches in git's format, without git.

Input: files as data, before and after; or a patch and a function that reads files. Output: the patch; or the files it
produces. Invariants: nothing is read or written except through the arguments; `git apply` and `apply_patch` both turn
the old files into the new ones with a patch from `make_patch`; a patch is applied completely or raises PatchError.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from slipstream.patches.diff import Block, compare
from slipstream.patches.parse import (
    FILE,
    LINK,
    MAX_BINARY_BYTES,
    PROGRAM,
    Binary,
    Hunk,
    PatchError,
    Section,
    quote,
    sections,
)
from slipstream.types import FileTree

__all__ = ["Entry", "PatchError", "apply_patch", "entries_of", "make_patch"]

CONTEXT = 3
BINARY_CHECK_BYTES = 8000
"""A file is binary if one of its first bytes, this many, is zero: git's own rule."""
LINE_BYTES = 52
MAX_TEXT_BYTES = 4 << 20
MAX_TEXT_LINES = 100_000
MAX_PATCH_LINES = 400_000
"""In all files that are diffed line by line. Beyond it, files are included whole, as git includes binary files."""
COMPARISONS_PER_LINE = 50
MIN_COMPARISONS = 100_000
"""Bounds the line comparisons to place a file's hunks, in proportion to its lines, however they repeat."""
NO_HASH = b"0" * 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file or a link, as git knows it."""

    data: bytes
    """For a link, its target."""
    mode: int = FILE
    """0o100644, 0o100755 or 0o120000."""


def entries_of(tree: FileTree) -> dict[str, Entry]:
    """The files and links of a tree. Of a file's mode, git keeps only the owner's execute bit."""
    files = {
        path: Entry(data=file.data, mode=PROGRAM if file.mode & 0o100 else FILE) for path, file in tree.files.items()
    }
    return files | {path: Entry(data=os.fsencode(target), mode=LINK) for path, target in tree.links.items()}


# ---------------------------------------------------------------- making


def make_patch(
    old: Mapping[str, Entry | None], new: Mapping[str, Entry | None], *, max_bytes: int | None = None
) -> bytes:
    """The patch that turns `old` into `new`; a missing path, or None, means no file. Empty if nothing differs.

    Raises PatchError as soon as it exceeds `max_bytes`.
    """
    made = _Pieces(max_bytes)
    for path in sorted({*old, *new}, key=os.fsencode):
        before, after = old.get(path), new.get(path)
        if before == after:
            continue
        if before is not None and after is not None and stat.S_IFMT(before.mode) != stat.S_IFMT(after.mode):
            made.add(path, before, None)
            made.add(path, None, after)
        else:
            made.add(path, before, after)
    return b"".join(made.pieces)


class _Pieces:
    """A patch under construction, within its limits."""

    def __init__(self, max_bytes: int | None) -> None:
        self.pieces: list[bytes] = []
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._lines_left = MAX_PATCH_LINES

    def add(self, path: str, old: Entry | None, new: Entry | None) -> None:
        num_lines = sum(entry.data.count(b"\n") for entry in (old, new) if entry is not None)
        is_text = num_lines <= min(MAX_TEXT_LINES, self._lines_left) and _is_text(old) and _is_text(new)
        if is_text:
            self._lines_left -= num_lines
        for piece in _section(path, old, new, is_text=is_text):
            self._num_bytes += len(piece)
            if self._max_bytes is not None and self._num_bytes > self._max_bytes:
                raise PatchError(f"the patch of the changes exceeds the limit of {self._max_bytes} bytes")
            self.pieces.append(piece)


def _is_text(entry: Entry | None) -> bool:
    return entry is None or (b"\0" not in entry.data[:BINARY_CHECK_BYTES] and len(entry.data) <= MAX_TEXT_BYTES)


def blob_hash(entry: Entry | None) -> bytes:
    """Git's hash of the contents."""
    if entry is None:
        return NO_HASH
    head = b"blob %d\0" % len(entry.data)
    return hashlib.sha1(head + entry.data, usedforsecurity=False).hexdigest().encode()


def _section(path: str, old: Entry | None, new: Entry | None, *, is_text: bool) -> Iterator[bytes]:
    name = os.fsencode(path)
    a, b = quote(b"a/" + name), quote(b"b/" + name)
    yield b"diff --git %s %s\n" % (a, b)
    if old is None and new is not None:
        yield b"new file mode %06o\n" % new.mode
    elif new is None and old is not None:
        yield b"deleted file mode %06o\n" % old.mode
    elif old is not None and new is not None and old.mode != new.mode:
        yield b"old mode %06o\nnew mode %06o\n" % (old.mode, new.mode)
    before, after = old.data if old else b"", new.data if new else b""
    if before == after and old is not None and new is not None:
        return
    same_mode = old is not None and new is not None and old.mode == new.mode
    mode = b" %06o" % old.mode if same_mode and old is not None else b""
    yield b"index %s..%s%s\n" % (blob_hash(old), blob_hash(new), mode)
    if before == after:
        return
    if not is_text:
        yield b"GIT binary patch\n"
        yield from _literal(after)
        yield from _literal(before)
        return
    yield b"--- %s\n" % (b"/dev/null" if old is None else _ended(a))
    yield b"+++ %s\n" % (b"/dev/null" if new is None else _ended(b))
    yield from _hunks(_lines(before), _lines(after))


def _ended(name: bytes) -> bytes:
    """A tab marks the end of a name with spaces."""
    return name + b"\t" if b" " in name else name


def _literal(data: bytes) -> Iterator[bytes]:
    yield b"literal %d\n" % len(data)
    packed = zlib.compress(data)
    for start in range(0, len(packed), LINE_BYTES):
        piece = packed[start : start + LINE_BYTES]
        length = len(piece)
        yield bytes([length + 64 if length <= 26 else length + 70]) + base64.b85encode(piece, pad=True) + b"\n"
    yield b"\n"


def _lines(data: bytes) -> list[bytes]:
    """Lines end with a newline and nothing else; the last may have none."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _hunks(old: list[bytes], new: list[bytes]) -> Iterator[bytes]:
    groups: list[list[Block]] = []
    for block in compare(old, new):
        if groups and block.old_start - groups[-1][-1].old_end <= 2 * CONTEXT:
            groups[-1].append(block)
        else:
            groups.append([block])
    for group in groups:
        lead = min(CONTEXT, group[0].old_start)
        trail = min(CONTEXT, len(old) - group[-1].old_end)
        old_start, old_end = group[0].old_start - lead, group[-1].old_end + trail
        new_start, new_end = group[0].new_start - lead, group[-1].new_end + trail
        yield b"@@ -%s +%s @@\n" % (_range(old_start, old_end), _range(new_start, new_end))
        place = old_start
        for block in group:
            yield from _signed(b" ", old[place : block.old_start])
            yield from _signed(b"-", old[block.old_start : block.old_end])
            yield from _signed(b"+", new[block.new_start : block.new_end])
            place = block.old_end
        yield from _signed(b" ", old[place:old_end])


def _range(start: int, end: int) -> bytes:
    if end - start == 1:
        return b"%d" % end
    return b"%d,%d" % (start + 1 if end > start else start, end - start)


def _signed(sign: bytes, lines: list[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield sign + line
        if not line.endswith(b"\n"):
            yield b"\n\\ No newline at end of file\n"


# ---------------------------------------------------------------- applying


def apply_patch(patch: bytes, read: Callable[[str], Entry | None], *, strip: int = 1) -> dict[str, Entry | None]:
    """The files that a patch creates, changes or deletes (None); `read` returns the current ones.

    A hunk is applied at its line number, or else at the nearest place where all its lines are found, never before the
    previous hunk. `strip` is the number of leading folders in each path (`a/` and `b/`). Raises PatchError, which names
    the file and the hunk.
    """
    found = list(sections(patch, strip=strip))
    leaving = {section.old_path for section in found if section.is_rename or section.is_deleted}
    gone: set[str] = set()
    made: dict[str, Entry] = {}
    for section in found:
        old, new = section.old_path, section.new_path
        if old is None:
            before = None
        elif section.is_rename or section.is_copy:
            before = read(old)
        else:
            before = made.get(old) or (None if old in gone else read(old))
        if old is not None and before is None:
            raise _wrong(section, "the file does not exist")
        if new is not None and new != old and (new in made or (new not in leaving and read(new) is not None)):
            raise _wrong(section, "the file already exists")
        after = _applied(section, before)
        if old is not None and (section.is_rename or section.is_deleted):
            gone.add(old)
            if section.is_deleted:
                made.pop(old, None)
        if new is not None:
            made[new] = after
    _check_places(made, gone, read)
    return {**dict.fromkeys(sorted(gone)), **made}


def _check_places(made: Mapping[str, Entry], gone: set[str], read: Callable[[str], Entry | None]) -> None:
    """No file may end up below another file or a link."""
    for path in made:
        above = path.rpartition("/")[0]
        while above:
            if above in made or (above not in gone and read(above) is not None):
                raise PatchError(f"{path}: {above} is not a folder")
            above = above.rpartition("/")[0]


def _wrong(section: Section, what: str) -> PatchError:
    return PatchError(f"{section.name}: {what} (line {section.line} of the patch)")


def _applied(section: Section, before: Entry | None) -> Entry:
    data = b"" if before is None else before.data
    old_mode = FILE if before is None else before.mode
    stated_mode = section.old_mode if section.old_mode is not None else FILE
    has_kind = section.old_mode is not None or section.hunks is not None or section.binary is not None
    if before is not None and has_kind and stat.S_IFMT(stated_mode) != stat.S_IFMT(old_mode):
        raise _wrong(section, f"it is {_kind(old_mode)}, but the patch changes {_kind(stated_mode)}")
    new_mode = section.new_mode if section.new_mode is not None else old_mode
    if before is not None and stat.S_IFMT(new_mode) != stat.S_IFMT(old_mode):
        raise _wrong(section, "to turn a file into a link, or a link into a file, delete it and create it again")
    if section.binary is not None:
        data = _apply_binary(section, section.binary, before)
    elif section.hunks is not None:
        data = _apply_hunks(section, section.hunks, data)
    if section.is_deleted and data:
        raise _wrong(section, "the patch deletes it, but does not remove all of its lines")
    return Entry(data=data, mode=new_mode)


def _kind(mode: int) -> str:
    return "a link" if stat.S_ISLNK(mode) else "a regular file"


def _apply_hunks(section: Section, hunks: list[Hunk], data: bytes) -> bytes:
    lines = _lines(data)
    search = _Search(lines)
    result: list[bytes] = []
    place = shift = 0
    for number, hunk in enumerate(hunks, 1):
        expected = hunk.old_start - 1 if hunk.old else hunk.old_start
        found = search.find(hunk.old, place, expected + shift)
        if found is None:
            shown = (hunk.old or [b""])[0].decode("utf-8", "replace").rstrip("\n")
            raise _wrong(
                section,
                f"hunk {number} ({hunk.header}) does not apply: its lines, starting with {shown!r}, were not found",
            )
        shift = found - expected
        result += lines[place:found]
        result += hunk.new
        place = found + len(hunk.old)
    result += lines[place:]
    if any(not line.endswith(b"\n") for line in result[:-1]):
        raise _wrong(section, "a line without a newline is not the last line")
    return b"".join(result)


class _Search:
    """Finds the lines of hunks: the rarest line of a hunk gives candidate places, where the others are compared. The
    number of comparisons is bounded, since the file and the patch may come from an agent."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self._left = max(MIN_COMPARISONS, COMPARISONS_PER_LINE * len(lines))
        self._places: dict[bytes, list[int]] | None = None
        """The places of each line, in order."""

    def find(self, wanted: list[bytes], lowest: int, expected: int) -> int | None:
        """The place of the lines nearest to `expected`, and not before `lowest`."""
        highest = len(self._lines) - len(wanted)
        if not wanted:  # nothing to compare, so its line number decides
            return expected if lowest <= expected <= highest else None
        expected = min(max(expected, lowest), max(highest, lowest))
        if self._lines[expected : expected + len(wanted)] == wanted:
            return expected
        offset, anchors = self._rarest(wanted)
        for anchor in _nearest(anchors, expected + offset):
            place = anchor - offset
            if not lowest <= place <= highest:
                self._left -= 1
            elif self._stand_at(place, wanted):
                return place
            if self._left <= 0:
                return None
        return None

    def _rarest(self, wanted: list[bytes]) -> tuple[int, list[int]]:
        """The offset of the line that is rarest in the file, and its places there."""
        if self._places is None:
            self._places = {}
            for number, line in enumerate(self._lines):
                self._places.setdefault(line, []).append(number)
        found = [self._places.get(line, []) for line in wanted]
        offset = min(range(len(wanted)), key=lambda number: len(found[number]))
        return offset, found[offset]

    def _stand_at(self, place: int, wanted: list[bytes]) -> bool:
        self._left -= len(wanted)
        return self._lines[place : place + len(wanted)] == wanted


def _nearest(places: list[int], to: int) -> Iterator[int]:
    """The places from nearest to farthest; of two equally near ones, the lower first."""
    high = bisect_left(places, to)
    low = high - 1
    while low >= 0 or high < len(places):
        if high >= len(places) or (low >= 0 and to - places[low] <= places[high] - to):
            yield places[low]
            low -= 1
        else:
            yield places[high]
            high += 1


def _apply_binary(section: Section, binary: Binary, before: Entry | None) -> bytes:
    if len(section.old_hash) != 40 or len(section.new_hash) != 40:
        raise _wrong(section, "binary data needs full hashes in the index line: use git diff --binary --full-index")
    if blob_hash(before) != section.old_hash:
        raise _wrong(section, "the binary data was made for a different file")
    data = binary.data
    if binary.is_delta:
        data = _apply_delta(section, b"" if before is None else before.data, data)
    after = None if section.is_deleted else Entry(data=data)
    if blob_hash(after) != section.new_hash:
        raise _wrong(section, "the binary data does not produce the file with the stated hash")
    return data


def _apply_delta(section: Section, base: bytes, delta: bytes) -> bytes:
    """Apply git's binary delta: copies from the old file, with new bytes between them."""
    damaged = _wrong(section, "the binary data is corrupt")
    place = 0

    def take() -> int:
        nonlocal place
        if place >= len(delta):
            raise damaged
        place += 1
        return delta[place - 1]

    def take_size() -> int:
        size = shift = 0
        while True:
            code = take()
            size |= (code & 0x7F) << shift
            shift += 7
            if code < 0x80:
                return size
            if shift > 56:
                raise damaged

    base_size, result_size = take_size(), take_size()
    if base_size != len(base) or result_size > MAX_BINARY_BYTES:
        raise damaged
    result = bytearray()
    while place < len(delta):
        code = take()
        if code & 0x80:
            offset = sum(take() << 8 * bit for bit in range(4) if code & 1 << bit)
            size = sum(take() << 8 * bit for bit in range(3) if code & 0x10 << bit) or 0x10000
            if offset + size > len(base):
                raise damaged
            result += base[offset : offset + size]
        else:
            if not code or place + code > len(delta):
                raise damaged
            result += delta[place : place + code]
            place += code
        if len(result) > result_size:
            raise damaged
    if len(result) != result_size:
        raise damaged
    return bytes(result)
