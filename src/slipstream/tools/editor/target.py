"""The change that a call of an edit tool means: finds the text to replace, or says what it is closest to.

Input: the bytes of a file and the arguments of a call. Output: an Edited, or a ToolError for the model. Invariants: a
text is replaced only if it is in the file exactly once, or once where its own line numbers say, or once if all its
lines are indented by as much more or less; line numbers that were copied from a view are not written into the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.errors import ToolError
from slipstream.tools.editor.closest import Near, closest
from slipstream.tools.editor.indent import by_indent
from slipstream.tools.editor.show import numbered
from slipstream.tools.editor.text import (
    Change,
    NotText,
    TextFile,
    decode,
    find_places,
    fold,
    insertion,
    line_at,
    replacement,
    split_lines,
)
from slipstream.tools.line_numbers import Unnumbered, unnumbered

NOT_FOUND = "was not found in"
"""In the answer when the text is missing; hints look for it."""
CLOSEST = "Closest:"
"""Before the lines that are similar; hints look for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditWords:
    """How a tool calls its arguments, and how much it says."""

    prefix: str = "edit: "
    old: str = "old_str"
    new: str = "new_str"
    max_chars: int = 14_000
    max_row_chars: int = 1_000
    max_places: int = 10
    """That are named if the text is in the file several times."""
    max_lines: int = 30
    """Of each similar place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """A file after an edit."""

    data: bytes
    folded: str
    start: int
    """Where the new text is in `folded`."""
    end: int
    notes: tuple[str, ...] = ()


def replaced(path: str, data: bytes, old: str, new: str, words: EditWords) -> Edited:
    """The file with `new` in place of `old`. Raises ToolError."""
    if not old:
        raise ToolError(f"{words.prefix}{words.old} is empty: give the text to replace")
    if old == new:
        raise ToolError(f"{words.prefix}{words.old} and {words.new} are the same: nothing would change")
    file = text_of(path, data, words.prefix)
    if "\r" in old + new:  # then line endings are meant literally
        found = find_places(file.text, old, words.max_places + 1)
        if len(found) == 1:
            return _spliced(path, file, Change(start=found[0], end=found[0] + len(old), new=new), words)
        if found:
            raise _ambiguous(path, file, [fold(file.text[:spot]).count("\n") + 1 for spot in found], words)
        old, new = fold(old), fold(new)
    places = find_places(file.folded, old, words.max_places + 1)
    notes: list[str] = []
    if not places and (meant := _by_numbers(file.folded, old, words.max_places + 1)):
        old, places = meant
        notes.append(words.old)
    if not places and (shifted := by_indent(file.folded, fold(old), fold(new))):
        return _spliced(path, file, replacement(file, shifted.place, shifted.old, shifted.new), words, shifted=True)
    if not places:
        raise _miss(path, file, old, new, words)
    if len(places) > 1:
        raise _ambiguous(path, file, [line_at(file.folded, spot) for spot in places], words)
    first = line_at(file.folded, places[0])
    bare = _written_bare(new, first, first + old.count("\n") + 1, is_certain=bool(notes))
    if bare != new:
        notes.append(words.new)
    change = replacement(file, places[0], old, bare)
    return _spliced(path, file, change, words, notes)


def inserted(path: str, data: bytes, after_line: int, new: str, words: EditWords) -> Edited:
    """The file with `new` as whole lines after a line. Raises ToolError."""
    file = text_of(path, data, words.prefix)
    num_lines = len(split_lines(file.folded))
    if after_line > num_lines:
        raise ToolError(
            f"{words.prefix}insert_line {after_line} is beyond the end: {path} has {num_lines} "
            f"line{'' if num_lines == 1 else 's'}, so give 0 to {num_lines}"
        )
    new = fold(new)
    bare = _written_bare(new, max(1, after_line), after_line + 1, is_certain=False)
    return _spliced(path, file, insertion(file, after_line, bare), words, [words.new] if bare != new else ())


def text_of(path: str, data: bytes, prefix: str) -> TextFile:
    """The text of a file. Raises ToolError for a binary one."""
    try:
        return decode(data)
    except NotText as why:
        raise ToolError(
            f"{prefix}{path} is no text ({why}, {len(data)} byte{'' if len(data) == 1 else 's'}): "
            "look at it with bash, such as file or xxd"
        ) from None


# ---------------------------------------------------------------- line numbers


def _by_numbers(folded: str, old: str, max_places: int) -> tuple[str, list[int]] | None:
    """What `old` is without the line numbers of a view, and its places: only the one at its own number, if there is
    such a one."""
    for each in unnumbered(old):
        places = find_places(folded, each.text, max_places) if each.text.strip() else []
        if places:
            return each.text, [spot for spot in places if line_at(folded, spot) == each.first] or places
    return None


def _written_bare(new: str, first: int, last: int, *, is_certain: bool) -> str:
    """`new` without the line numbers of a view. Numbers that do not begin where it is written are part of the text,
    unless the text that it replaces had some too."""
    found: list[Unnumbered] = unnumbered(new)
    return next((each.text for each in found if is_certain or first <= each.first <= last), new)


# ---------------------------------------------------------------- changes


def _spliced(
    path: str, file: TextFile, change: Change, words: EditWords, numbered_: Sequence[str] = (), *, shifted: bool = False
) -> Edited:
    try:
        after = file.splice(change.start, change.end, change.new)
    except UnicodeEncodeError as unfit:
        character = unfit.object[unfit.start]
        raise ToolError(
            f"{words.prefix}{path} is in {file.encoding}, which has no {character!r} (U+{ord(character):04X}): "
            "write it in another way"
        ) from None
    if after == file.data:
        raise ToolError(f"{words.prefix}nothing would change: the file already has this text there")
    head, new = fold(file.text[: change.start]), fold(change.new)
    folded = head + new + fold(file.text[change.end :])
    notes = [f"[without the line numbers in {' and '.join(numbered_)}]"] if numbered_ else []
    if shifted:
        notes.append(f"[{words.new} was indented as the file is]")
    return Edited(data=after, folded=folded, start=len(head), end=len(head) + len(new), notes=tuple(notes))


# ---------------------------------------------------------------- what to say if it is not there once


def _ambiguous(path: str, file: TextFile, at_lines: Sequence[int], words: EditWords) -> ToolError:
    lines = split_lines(file.folded)
    more = len(at_lines) > words.max_places
    number = f"more than {words.max_places}" if more else str(len(at_lines))
    shown = dict.fromkeys(at_lines[: words.max_places])
    rows = [row[: words.max_row_chars] for line in shown for row in numbered(lines, line, line)]
    return ToolError(
        f"{words.prefix}{words.old} is in {path} {number} times, so nothing was changed. It begins in these lines:\n"
        + "\n".join(rows)
        + f"\nGive more of the lines around the one that is meant, so that {words.old} is there once."
    )


def _miss(path: str, file: TextFile, old: str, new: str, words: EditWords) -> ToolError:
    told = f"{words.prefix}{words.old} {NOT_FOUND} {path}, so nothing was changed."
    lines = split_lines(file.folded)
    if near := closest(file.folded, old, words.old):
        parts = [f"{told} {CLOSEST}"]
        for each in near:
            part = _near_text(lines, each, words)
            if len(parts) > 1 and sum(map(len, parts)) + len(part) > words.max_chars:
                break
            parts.append(part)
        return ToolError("\n".join(parts)[: words.max_chars])
    if new.strip() and new in file.folded:
        line = line_at(file.folded, file.folded.find(new))
        return ToolError(f"{told} But {words.new} is there already, at line {line}.")
    return ToolError(
        f"{told} Nothing in its {len(lines)} lines is similar: view the file, or look for a word of it with grep -n."
    )


def _near_text(lines: list[str], near: Near, words: EditWords) -> str:
    last = min(near.last, near.first + words.max_lines - 1)
    span = f"line {near.first}" if near.first == near.last else f"lines {near.first} to {near.last}"
    rows = [row[: words.max_row_chars] for row in numbered(lines, near.first, last)]
    return "\n".join((f"{span} ({near.why}):", *rows))
