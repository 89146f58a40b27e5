"""The layout of one forward pass: rows of tokens, and which rows share an attention call. Standard library only.

A pass has one row per token: first the single tokens of sequences being sampled, in slot order, then pieces of prompts.
Rows of adjacent slots with similar lengths share one attention call (a Span): a call costs about as much as reading 128
cached tokens, so shorter rows are padded by at most that much. On a GPU a call costs more than all the reading, so
there all rows share one, whatever their slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CALL_TOKENS = 128
"""The cost of one attention call, in cached tokens that could be read in the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The tokens of one slot that are computed in this pass, at positions `start`, `start + 1`, ..."""

    slot: int
    start: int
    ids: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Rows of one attention call: row `first_row + i` belongs to slot `first_slot + i` and sees `lengths[i]` tokens."""

    first_row: int
    first_slot: int
    lengths: tuple[int, ...]
    slots: tuple[int, ...] | None = None
    """The slot of each row if they are not adjacent: their cache is gathered first."""

    @property
    def ragged(self) -> bool:
        return min(self.lengths) != max(self.lengths)


def spans_of(pieces: Sequence[Piece], *, separate: bool) -> list[Span]:
    """Group single-token pieces, which are sorted by slot. With `separate` each is a span of its own, so that no row
    depends on another's length."""
    spans: list[Span] = []
    first = 0
    longest = total = 0
    for row, piece in enumerate(pieces):
        length = piece.end
        if row > first:
            num = row - first + 1
            added = num * max(longest, length) - (total + length) - ((num - 1) * longest - total)
            if separate or piece.slot != pieces[row - 1].slot + 1 or added > CALL_TOKENS:
                spans.append(_span(pieces, first, row))
                first, longest, total = row, 0, 0
        longest, total = max(longest, length), total + length
    if pieces:
        spans.append(_span(pieces, first, len(pieces)))
    return spans


def one_span(pieces: Sequence[Piece]) -> list[Span]:
    """All single-token pieces as one span, whatever their slots and lengths."""
    if not pieces:
        return []
    slots = tuple(piece.slot for piece in pieces)
    return [Span(first_row=0, first_slot=slots[0], lengths=tuple(piece.end for piece in pieces), slots=slots)]


def _span(pieces: Sequence[Piece], first: int, end: int) -> Span:
    return Span(first_row=first, first_slot=pieces[first].slot, lengths=tuple(piece.end for piece in pieces[first:end]))
