"""Grouping rows into attention calls: every row once, adjacent slots only, little padding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipstream.engine.inference.plan import CALL_TOKENS, Piece, one_span, spans_of


def singles(lengths: dict[int, int]) -> list[Piece]:
    return [Piece(slot=slot, start=length - 1, ids=(0,)) for slot, length in sorted(lengths.items())]


def test_alike_neighbours_share_a_call() -> None:
    spans = spans_of(singles({0: 100, 1: 101, 2: 99, 5: 100, 6: 2000}), separate=False)
    assert [(span.first_row, span.first_slot, span.lengths) for span in spans] == [
        (0, 0, (100, 101, 99)),
        (3, 5, (100,)),
        (4, 6, (2000,)),
    ]
    assert [span.ragged for span in spans] == [True, False, False]


def test_where_calls_are_dear_all_share_one() -> None:
    (span,) = one_span(singles({0: 100, 5: 7, 6: 2000}))
    assert (span.first_row, span.slots, span.lengths, span.ragged) == (0, (0, 5, 6), (100, 7, 2000), True)
    assert one_span([]) == []


def test_alone_means_alone() -> None:
    assert [span.lengths for span in spans_of(singles({0: 5, 1: 5}), separate=True)] == [(5,), (5,)]


@given(st.dictionaries(st.integers(0, 40), st.integers(1, 3000)))
def test_every_row_is_in_one_span_and_padding_costs_less_than_the_calls_it_saves(lengths: dict[int, int]) -> None:
    pieces = singles(lengths)
    spans = spans_of(pieces, separate=False)
    told = [
        (span.first_row + at, span.first_slot + at, length) for span in spans for at, length in enumerate(span.lengths)
    ]
    assert told == [(row, piece.slot, piece.end) for row, piece in enumerate(pieces)]
    for span in spans:
        padded = sum(max(span.lengths) - length for length in span.lengths)
        assert padded <= CALL_TOKENS * (len(span.lengths) - 1)
