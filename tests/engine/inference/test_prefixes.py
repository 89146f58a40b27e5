"""The prefix index against a linear search."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from slipstream.engine.inference.prefixes import PIECE_TOKENS, Prefixes
from slipstream.engine.inference.slots import common_prefix

tokens = st.lists(st.integers(0, 1), max_size=60)
near = st.builds(lambda num, rest: [0] * num + rest, st.integers(0, 50), tokens)


def boundary(num: int) -> int:
    """The last one at or before so many tokens."""
    return num // PIECE_TOKENS * PIECE_TOKENS if num >= PIECE_TOKENS else 1 << num.bit_length() >> 1


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["", "v2"]), near), max_size=12), near, st.integers(0, 5))
def test_those_that_share_most_are_told_and_no_others(
    put: list[tuple[int, str, list[int]]], prompt: list[int], dropped: int
) -> None:
    prefixes, there = Prefixes(), {}
    for slot, salt, ids in put:
        prefixes.put(slot, salt, array("i", ids))
        there[slot] = salt, ids
    prefixes.drop(dropped)
    there.pop(dropped, None)
    shared = {
        slot: boundary(common_prefix(array("i", ids), array("i", prompt), len(prompt))) if salt == "" else 0
        for slot, (salt, ids) in there.items()
    }
    most = max(shared.values(), default=0)
    assert set(prefixes.nearest("", array("i", prompt))) == {slot for slot in shared if most and shared[slot] == most}
