"""The prefix index against a linear search."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from slipstream.engine.inference.prefixes import PIECE_TOKENS, Prefixes, block_end, num_blocks
from slipstream.engine.inference.slots import SlotTable, common_prefix

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
        prefixes.put(slot, prefixes.keys(salt, array("i", ids)))
        there[slot] = salt, ids
    prefixes.drop(dropped)
    there.pop(dropped, None)
    shared = {
        slot: boundary(common_prefix(array("i", ids), array("i", prompt), len(prompt))) if salt == "" else 0
        for slot, (salt, ids) in there.items()
    }
    most = max(shared.values(), default=0)
    nearest = set(prefixes.nearest(prefixes.keys("", array("i", prompt))))
    assert nearest == {slot for slot in shared if most and shared[slot] == most}


def test_blocks_end_after_doubling_lengths_and_then_after_every_piece() -> None:
    assert [block_end(num) for num in range(9)] == [0, 1, 2, 4, 8, 16, 32, 48, 64]
    assert all(block_end(num_blocks(num)) == boundary(num) for num in range(200))


@given(near, near)
def test_keys_that_continue_known_ones_are_those_of_the_whole(before: list[int], more: list[int]) -> None:
    prefixes, whole = Prefixes(), array("i", [*before, *more])
    known = prefixes.keys("v1", array("i", before))
    assert prefixes.keys("v1", whole, known=known) == prefixes.keys("v1", whole)


def test_a_long_conversation_is_hashed_once_and_not_at_every_turn() -> None:
    table, prompt = SlotTable(4), array("i", range(16_000))
    for turn in range(20):
        placed = table.place(prompt, session="agent", salt="")
        assert placed is not None and placed.num_reused == (len(prompt) - 40 if turn else 0)
        placed.slot.tokens.extend(range(turn, turn + 20))
        placed.slot.num_computed = len(placed.slot.tokens)
        table.release(placed.slot)
        prompt = placed.slot.tokens + array("i", range(turn, turn + 40))
    assert table.num_hashed == num_blocks(len(prompt) - 40)
