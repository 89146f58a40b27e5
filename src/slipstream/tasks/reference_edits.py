"""What a task's reference solution changes, as replacements of text: what a tool-using teacher has to do.

Input: a task whose grading has a reference patch (`oracle`). Output: a ReferenceEdit for each place.
Invariants: the old text of an edit is exactly once in its file, so an edit cannot land anywhere else. A patch that
cannot be told this way is a ConfigError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.patches.parse import PatchError, sections
from slipstream.tasks.gate import oracle_of
from slipstream.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceEdit:
    """One place to fix: text that is once in the file, and what it must be. A new file has no old text."""

    path: str
    line: int
    old: str
    new: str


def reference_edits(task: Task) -> list[ReferenceEdit]:
    """What the reference solution changes, in the order of its patch. Raises ConfigError if a place is ambiguous."""
    try:
        return _edits(task)
    except (PatchError, UnicodeEncodeError) as raised:
        raise ConfigError(str(raised)) from raised


def _edits(task: Task) -> list[ReferenceEdit]:
    fixes: list[ReferenceEdit] = []
    for section in sections(oracle_of(task).encode("utf-8", "surrogateescape")):
        path = section.new_path
        if path is None or section.old_path not in (path, None) or section.hunks is None:
            raise ConfigError(f"the oracle of {task.id} renames or deletes {section.old_path}, or it is no text")
        text = _text_of(task, path)
        for hunk in section.hunks:
            old, new, skipped = _decoded(hunk.old), _decoded(hunk.new), 0
            if text is not None and old in text:
                old, new, skipped = _shortest(old, new, text)
            is_new = section.old_path is None
            if is_new == bool(old) or (text is not None and text.count(old) > 1):
                raise ConfigError(f"the oracle of {task.id} cannot be expressed as a replacement in {path}")
            fixes.append(ReferenceEdit(path=path, line=hunk.old_start + skipped, old=old, new=new))
    return fixes


def _decoded(lines: Sequence[bytes]) -> str:
    return b"".join(lines).decode("utf-8", "surrogateescape")


def _text_of(task: Task, path: str) -> str | None:
    """A file of the task as the agent finds it; None if it is in an image."""
    if task.sandbox is None:
        return None
    if path in task.sandbox.files:
        return task.sandbox.files[path].data.decode("utf-8", "surrogateescape")
    place = Path(task.sandbox.tree, path)
    is_there = bool(task.sandbox.tree) and place.is_file()
    return place.read_bytes().decode("utf-8", "surrogateescape") if is_there else None


def _shortest(old: str, new: str, text: str | None) -> tuple[str, str, int]:
    """Both sides without the lines that they share at the ends, as far as the old one is still once in the text."""
    before, after = old.split("\n"), new.split("\n")
    lead = 0
    while True:
        for end in (True, False):
            cut_old, cut_new = (before[:-1], after[:-1]) if end else (before[1:], after[1:])
            shares = before and after and (before[-1] == after[-1] if end else before[0] == after[0])
            joined = "\n".join(cut_old)
            if shares and joined.strip() and (text is None or text.count(joined) == 1):
                before, after, lead = cut_old, cut_new, lead + (not end)
                break
        else:
            return "\n".join(before), "\n".join(after), lead
