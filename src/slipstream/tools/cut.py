"""Truncates a long text in the middle.

Input: a text and its maximum length. Output: its head and tail, with a line between them that says how much was left
out. Invariants: the result does not exceed the maximum, and the numbers in it are exact.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    text: str
    num_chars_left_out: int = 0
    num_lines_left_out: int = 0
    """Line breaks that were left out; whole lines, if both cuts are at line boundaries."""


def cut_middle(text: str, max_chars: int) -> str:
    return cut(text, max_chars).text


def cut(text: str, max_chars: int) -> Cut:
    """Keep the head and the tail, about half each, cut between lines if that costs at most half of the part.

    If not even the line about what was left out fits, only the head is kept.
    """
    if len(text) <= max_chars:
        return Cut(text=text)
    room = max_chars - len(f"\n{_left_out(len(text), len(text))}\n")
    if room < 0:
        kept = max(0, max_chars)
        return Cut(text=text[:kept], num_chars_left_out=len(text) - kept, num_lines_left_out=text.count("\n", kept))
    head_end = _line_end(text, room // 2)
    tail_start = _line_start(text, len(text) - (room - head_end))
    num_chars, num_lines = tail_start - head_end, text.count("\n", head_end, tail_start)
    head, tail = text[:head_end], text[tail_start:]
    gap = "" if not head or head.endswith("\n") else "\n"
    return Cut(
        text=f"{head}{gap}{_left_out(num_chars, num_lines)}\n{tail}",
        num_chars_left_out=num_chars,
        num_lines_left_out=num_lines,
    )


def _left_out(num_chars: int, num_lines: int) -> str:
    return f"[... {num_chars} characters, {num_lines} line{'' if num_lines == 1 else 's'} left out ...]"


def _line_end(text: str, max_chars: int) -> int:
    """Where a head of at most `max_chars` characters ends."""
    end = text.rfind("\n", 0, max_chars) + 1
    return end if 2 * end >= max_chars else max_chars


def _line_start(text: str, min_start: int) -> int:
    """Where a tail starts, at `min_start` or later; the character before it may already be a line break."""
    start = text.find("\n", min_start - 1) + 1
    return start if start and 2 * (start - min_start) <= len(text) - min_start else min_start
