"""Comparing lines: whatever the two sides are, the blocks turn one into the other."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.patches import diff
from slipstream.patches.diff import Block, compare

lines = st.lists(st.sampled_from("abcdef"), max_size=12)


def rebuilt(old: Sequence[str], new: Sequence[str], blocks: list[Block]) -> list[str]:
    result: list[str] = []
    place = 0
    for block in blocks:
        assert list(old[place : block.old_start]) == list(new[len(result) : block.new_start])
        assert block.old_start < block.old_end or block.new_start < block.new_end
        result += old[place : block.old_start]
        result += new[block.new_start : block.new_end]
        place = block.old_end
    return result + list(old[place:])


@given(lines, lines)
@settings(max_examples=500, deadline=None)
def test_the_blocks_turn_the_old_into_the_new(old: list[str], new: list[str]) -> None:
    assert rebuilt(old, new, compare(old, new)) == new


@given(lines, lines)
@settings(max_examples=200, deadline=None)
def test_equal_sides_have_no_blocks_and_a_side_alone_is_one(old: list[str], new: list[str]) -> None:
    assert compare(old, old) == []
    assert compare([], new) == ([Block(0, 0, 0, len(new))] if new else [])
    assert compare(old, []) == ([Block(0, len(old), 0, 0)] if old else [])


def test_a_few_edits_are_found_as_such_among_lines_that_repeat() -> None:
    old = [("", "}", "return", "pass")[number * number % 7 % 4] for number in range(20_000)]
    new = list(old)
    new[100] = new[7000] = new[19_000] = "other"
    blocks = compare(old, new)
    assert rebuilt(old, new, blocks) == new
    assert sum(block.new_end - block.new_start for block in blocks) == 3


def test_work_without_end_is_cut_short() -> None:
    old = [str(number * number % 11) for number in range(40_000)]
    new = [str(number * number % 13) for number in range(40_000)]
    comparison = diff._Comparison([int(line) for line in old], [int(line) for line in new])
    blocks = list(comparison.blocks())
    assert rebuilt(old, new, compare(old, new)) == new
    assert len(blocks) >= 1
    assert comparison._steps > -len(old)
