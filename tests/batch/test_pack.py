"""Packing: nothing lost, nothing over the budget, and the same packs every time."""

from array import array
from dataclasses import replace

import pytest
from batch_trees import groups, rollout, steady, turn
from hypothesis import given
from hypothesis import strategies as st

from slipstream.batch.advantages import leave_one_out
from slipstream.batch.merge import merge
from slipstream.batch.pack import Pack, balance, pack, pack_rows
from slipstream.batch.rows import make_batch
from slipstream.errors import ConfigError
from slipstream.types import Group, Row, Sample, token_ids

BUDGET = 100
all_lengths = st.lists(st.integers(0, BUDGET), max_size=60)


def row(*tokens: tuple[list[int], list[int]], advantage: float = 1.0, in_loss: bool = True) -> Row:
    """A row of turns, each given as what is added and what is sampled."""
    length, found = 0, []
    for index, (added, sampled) in enumerate(tokens):
        found.append(turn(index, added, sampled, parent=index - 1 if index else None, kept=length, version=index))
        length += len(added) + len(sampled)
    (sample,) = merge(rollout(*found)).samples
    return Row(sample=sample, advantage=advantage, in_loss=in_loss)


def test_the_longest_go_first_each_to_the_first_bin_with_room() -> None:
    assert pack([3, 7, 5, 5, 2], 10) == [[0, 1], [2, 3], [4]]
    assert pack([], 10) == []
    assert pack([10, 10], 10) == [[0], [1]]


def test_a_length_over_the_budget_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        ConfigError, match="row 1 has 11 tokens and the budget is 10: make the batch with max_tokens=10"
    ):
        pack([3, 11], 10)
    with pytest.raises(ConfigError, match="budget=0"):
        pack([], 0)


def test_shards_get_about_the_same() -> None:
    assert balance([8, 7, 6, 5, 4], 2) == [[0, 3, 4], [1, 2]]
    assert balance([5], 3) == [[0], [], []]
    with pytest.raises(ConfigError, match="num_shards=0"):
        balance([5], 0)


def test_a_pack_holds_its_rows_one_after_another() -> None:
    rows = [
        row(([1, 2], [10, 11]), ([3], [12]), advantage=0.5),
        row(([4], [13]), advantage=-2.0),
        row(([5], [14, 15]), advantage=3.0, in_loss=False),
    ]
    assert pack_rows(rows, 11) == [
        Pack(
            ids=token_ids([1, 2, 10, 11, 3, 12, 4, 13, 5, 14, 15]),
            mask=array("b", [0, 0, 1, 1, 0, 1, 0, 1, 0, 0, 0]),
            logprobs=array("f", [0, 0, -0.10, -0.11, 0, -0.12, 0, -0.13, 0, -0.14, -0.15]),
            versions=array("i", [-1, -1, 0, 0, -1, 1, -1, 0, -1, 0, 0]),
            advantages=array("f", [0, 0, 0.5, 0.5, 0, 0.5, 0, -2, 0, 0, 0]),
            positions=array("i", [0, 1, 2, 3, 4, 5, 0, 1, 0, 1, 2]),
            starts=array("i", [0, 6, 8, 11]),
            rows=(0, 1, 2),
        )
    ]


def test_the_first_token_of_a_row_is_never_a_target() -> None:
    """A prompt of no tokens does not occur, but if it did the row before it would be trained to predict this one."""
    (packed,) = pack_rows([row(([1], [10])), row(([], [11, 12]), advantage=2.0)], 4)
    assert packed.mask.tolist() == [0, 1, 0, 1]
    assert packed.starts.tolist() == [0, 2, 4]
    assert packed.rows == (0, 1)
    assert packed.advantages.tolist() == [0, 1, 0, 2]


def test_a_pack_whose_lengths_differ_is_refused() -> None:
    (packed,) = pack_rows([row(([1], [10]))], 4)
    with pytest.raises(ValueError, match="per-token lengths differ"):
        replace(packed, mask=array("b", [1]))
    with pytest.raises(ValueError, match="starts"):
        replace(packed, starts=array("i", [0, 1]))
    with pytest.raises(ValueError, match="starts"):
        replace(packed, rows=(0, 1))


@steady
@given(all_lengths)
def test_every_place_is_in_one_bin_and_no_bin_over_the_budget(lengths: list[int]) -> None:
    bins = pack(lengths, BUDGET)
    assert sorted(place for each in bins for place in each) == list(range(len(lengths)))
    assert all(sum(lengths[place] for place in each) <= BUDGET for each in bins)
    assert all(each == sorted(each) for each in bins)
    assert bins == pack(list(lengths), BUDGET)


@steady
@given(all_lengths)
def test_no_more_bins_are_opened_than_twice_what_the_tokens_fill(lengths: list[int]) -> None:
    bins = pack(lengths, BUDGET)
    fewest = -(-sum(lengths) // BUDGET)
    assert fewest <= len(bins) <= max(2 * fewest, min(1, len(lengths)))


@steady
@given(all_lengths)
def test_a_bin_is_opened_only_for_what_fits_no_earlier_one(lengths: list[int]) -> None:
    bins = pack(lengths, BUDGET)
    for number, each in enumerate(bins):
        longest = max(lengths[place] for place in each)
        for earlier in bins[:number]:
            longer = [lengths[place] for place in earlier if lengths[place] >= longest]
            assert sum(longer) + longest > BUDGET


@steady
@given(all_lengths, st.integers(1, 8))
def test_shards_differ_by_one_length_at_most_and_lose_nothing(lengths: list[int], num_shards: int) -> None:
    shards = balance(lengths, num_shards)
    assert len(shards) == num_shards
    assert sorted(place for each in shards for place in each) == list(range(len(lengths)))
    loads = [sum(lengths[place] for place in each) for each in shards]
    assert max(loads) - min(loads) <= max(lengths, default=0)
    assert shards == balance(list(lengths), num_shards)


@steady
@given(st.lists(groups(fewest=2), max_size=3), st.integers(20, 60))
def test_unpacking_gives_the_rows_back(many: list[Group], budget: int) -> None:
    rows = make_batch(many, leave_one_out, max_tokens=20).rows
    packs = pack_rows(rows, budget)
    assert packs == pack_rows(rows, budget)
    assert sorted(place for packed in packs for place in packed.rows) == list(range(len(rows)))
    for packed in packs:
        assert len(packed.ids) <= budget
        for place, start, end in zip(packed.rows, packed.starts, packed.starts[1:], strict=False):
            assert_unpacked(packed, start, end, rows[place])


def assert_unpacked(packed: Pack, start: int, end: int, source: Row) -> None:
    sample: Sample = source.sample
    mask = [0, *sample.mask[1:]] if source.in_loss else [0] * len(sample.mask)
    assert packed.ids[start:end] == sample.ids
    assert packed.logprobs[start:end] == sample.logprobs
    assert packed.versions[start:end] == sample.versions
    assert packed.positions[start:end].tolist() == list(range(len(sample.ids)))
    assert packed.mask[start:end].tolist() == mask
    assert packed.advantages[start:end] == array("f", [source.advantage if each else 0.0 for each in mask])
