"""What one pass through the model computes: rows of tokens, and which of them attend together. Standard library only.

A pass has one row per token. First come the single tokens of sequences that are being sampled, in the order of their
slots; then pieces of prompts. Rows of neighbouring slots whose lengths are alike share one attention call (a Span): a
call costs about as much as reading 128 cached tokens, so shorter rows are padded up to that much and no more. On a GPU
a call costs more than all the reading: there the rows of any slots share one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CALL_TOKENS = 128
"""What one attention call costs, in cached tokens that could have been read instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The tokens of one slot that are computed in this pass: they stand at positions `start`, `start + 1`, ..."""

    slot: int
    start: int
    ids: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Rows that attend together: row `first_row + i` is of slot `first_slot + i` and sees `lengths[i]` tokens."""

    first_row: int
    first_slot: int
    lengths: tuple[int, ...]
    slots: tuple[int, ...] | None = None
    """Of each row, where they are no neighbours: their cache is gathered first."""

    @property
    def ragged(self) -> bool:
        return min(self.lengths) != max(self.lengths)


def spans_of(pieces: Sequence[Piece], *, alone: bool) -> list[Span]:
    """Group single-token pieces, which are sorted by slot. `alone`: each by itself, so that no row sees another's
    length."""
    spans: list[Span] = []
    first = 0
    longest = total = 0
    for row, piece in enumerate(pieces):
        length = piece.end
        if row > first:
            num = row - first + 1
            added = num * max(longest, length) - (total + length) - ((num - 1) * longest - total)
            if alone or piece.slot != pieces[row - 1].slot + 1 or added > CALL_TOKENS:
                spans.append(_span(pieces, first, row))
                first, longest, total = row, 0, 0
        longest, total = max(longest, length), total + length
    if pieces:
        spans.append(_span(pieces, first, len(pieces)))
    return spans


def one_span(pieces: Sequence[Piece]) -> list[Span]:
    """All single-token pieces, whatever their slots and lengths."""
    if not pieces:
        return []
    slots = tuple(piece.slot for piece in pieces)
    return [Span(first_row=0, first_slot=slots[0], lengths=tuple(piece.end for piece in pieces), slots=slots)]


def _span(pieces: Sequence[Piece], first: int, end: int) -> Span:
    return Span(first_row=first, first_slot=pieces[first].slot, lengths=tuple(piece.end for piece in pieces[first:end]))
