"""Packs rows: many rows in one sequence, within a token budget.

Input: lengths, or rows. Output: which go together, or the packs themselves. A pack has no padding: its rows follow each
other, and `starts` says where each begins.
Invariants: every row is complete and in exactly one pack; no pack is longer than the budget; the same rows in the same
order give the same packs. The learner shifts ids to targets. The first token of a row cannot be a target, since nothing
of its row comes before it: it has mask 0 in every pack, so that a shift over the whole pack never trains the last
position of one row to predict the next row.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slipstream.errors import ConfigError
from slipstream.types import Row, TokenIds, token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Consecutive rows: `starts=[0, 3, 8]` for a row of 3 tokens and one of 5.

    `positions` begin at 0 in every row, and attention must not cross `starts`: they are the cumulative lengths that
    variable-length attention takes.
    """

    ids: TokenIds
    mask: array[int]
    """1 for tokens in the loss: those that the policy sampled, in rows that are in the loss."""
    logprobs: array[float]
    versions: array[int]
    advantages: array[float]
    """The row's advantage where the mask is 1, and 0 elsewhere."""
    positions: array[int]
    starts: array[int]
    """One entry more than there are rows; the last is the length of the pack."""
    rows: tuple[int, ...]
    """Which rows these are, by index among all that were packed."""

    def __post_init__(self) -> None:
        per_token = (self.ids, self.mask, self.logprobs, self.versions, self.advantages, self.positions)
        lengths = {len(each) for each in per_token}
        if len(lengths) != 1:
            raise ValueError(f"per-token lengths differ: {sorted(lengths)}")
        if len(self.starts) != len(self.rows) + 1 or self.starts[0] != 0 or self.starts[-1] != len(self.ids):
            raise ValueError(f"starts {self.starts.tolist()} of {len(self.rows)} rows and {len(self.ids)} tokens")


def pack(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """The indexes of `lengths`, in bins of at most `budget` tokens: first fit, longest first.

    This needs at most 11/9 of the minimal number of bins, plus one. Within a bin the indexes are in order.
    """
    if budget < 1:
        raise ConfigError(f"budget={budget}: it must be at least 1 token")
    for place, length in enumerate(lengths):
        if length > budget:
            raise ConfigError(
                f"row {place} has {length} tokens and the budget is {budget}: "
                f"make the batch with max_tokens={budget}, or raise the budget"
            )
    rooms = _Rooms(len(lengths), budget)
    bins: list[list[int]] = []
    for place in _longest_first(lengths):
        chosen = rooms.take(lengths[place])
        if chosen == len(bins):
            bins.append([])
        bins[chosen].append(place)
    return [sorted(each) for each in bins]


def balance(lengths: Sequence[int], num_shards: int) -> list[list[int]]:
    """The indexes of `lengths`, in shards of about equal sums: longest first, each to the smallest shard.

    For packs or rows on data-parallel ranks. Shards may have different numbers of items, or none.
    """
    if num_shards < 1:
        raise ConfigError(f"num_shards={num_shards}: it must be at least 1")
    shards: list[list[int]] = [[] for _ in range(num_shards)]
    loads = [(0, 0, shard) for shard in range(num_shards)]  # tokens, then how many, so that empty ones spread too
    for place in _longest_first(lengths):
        load, number, shard = loads[0]
        heapq.heapreplace(loads, (load + lengths[place], number + 1, shard))
        shards[shard].append(place)
    return [sorted(each) for each in shards]


def pack_rows(rows: Sequence[Row], budget: int) -> list[Pack]:
    """The rows of a batch in packs of at most `budget` tokens."""
    lengths = [len(row.sample.ids) for row in rows]
    bins = pack(lengths, budget)
    positions = array("i", range(max(lengths, default=0)))
    return [_pack(rows, tuple(places), positions) for places in bins]


class _Rooms:
    """The free space of each bin, as a max tree, so that the first bin with enough is found in log n steps."""

    def __init__(self, num_bins: int, budget: int) -> None:
        self._first_leaf = 1 << max(0, num_bins - 1).bit_length()
        self._free = [budget] * (2 * self._first_leaf)

    def take(self, length: int) -> int:
        """Take `length` from the first bin that has so much free, and return its index."""
        free, node = self._free, 1
        while node < self._first_leaf:
            node = 2 * node if free[2 * node] >= length else 2 * node + 1
        chosen = node - self._first_leaf
        free[node] -= length
        while node > 1:
            node //= 2
            free[node] = max(free[2 * node], free[2 * node + 1])
        return chosen


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda place: (-lengths[place], place))


def _pack(rows: Sequence[Row], places: tuple[int, ...], all_positions: array[int]) -> Pack:
    ids, mask, logprobs, versions = token_ids(), array("b"), array("f"), array("i")
    advantages, positions, starts = array("f"), array("i"), array("i", [0])
    for place in places:
        row = rows[place]
        in_loss = _mask(row)
        ids.extend(row.sample.ids)
        mask.extend(in_loss)
        logprobs.extend(row.sample.logprobs)
        versions.extend(row.sample.versions)
        advantages.extend(_advantages(in_loss, row.advantage))
        positions.extend(all_positions[: len(row.sample.ids)])
        starts.append(len(ids))
    return Pack(
        ids=ids,
        mask=mask,
        logprobs=logprobs,
        versions=versions,
        advantages=advantages,
        positions=positions,
        starts=starts,
        rows=places,
    )


def _mask(row: Row) -> array[int]:
    if not row.in_loss:
        return array("b", bytes(len(row.sample.mask)))
    mask = row.sample.mask[:]
    mask[:1] = array("b", bytes(min(1, len(mask))))
    return mask


def _advantages(mask: array[int], advantage: float) -> array[float]:
    values = array("f", bytes(array("f").itemsize * len(mask)))
    for start, end in _stretches(mask.tobytes()):
        values[start:end] = array("f", [advantage]) * (end - start)
    return values


def _stretches(mask: bytes) -> Iterator[tuple[int, int]]:
    """The intervals in which the mask is 1."""
    start = mask.find(1)
    while start >= 0:
        end = mask.find(0, start)
        if end < 0:
            end = len(mask)
        yield start, end
        start = mask.find(1, end)
