"""An index of slots by prefix: finds the slots that share the longest prefix with a prompt. Standard library only.

Input: the keys of each slot's tokens. Output: for the keys of a prompt, the slots that share the most blocks with it.
Invariants: no other indexed slot shares more whole blocks with the prompt; a block that continues known keys is hashed
once; a lookup takes time in proportion to the logarithm of the prompt's length.

Tokens are split into blocks that end after 1, 2, 4, 8 and 16 tokens, then after every 16. A block's key is a hash of
the key before it and of its tokens, so slots with the same key share all tokens up to there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

from slipstream.types import TokenIds

PIECE_TOKENS = 16
_NUM_SHORT = PIECE_TOKENS.bit_length()
"""Blocks up to the end of the first piece."""


class Prefixes:
    def __init__(self) -> None:
        self.num_hashed = 0
        """Blocks that were hashed."""
        self._holders: dict[int, dict[int, None]] = {}
        """By key, the slots that have it, in the order of insertion."""
        self._keys: dict[int, Sequence[int]] = {}
        """By slot."""

    def keys(self, salt: str, tokens: TokenIds, *, known: Sequence[int] = ()) -> list[int]:
        """The keys of these tokens under a salt; those of the first blocks may be known."""
        keys = list(known)
        num = num_blocks(len(tokens))
        self.num_hashed += num - len(keys)
        key = keys[-1] if keys else hash(salt)
        start = first = block_end(len(keys))
        data = tokens[start:].tobytes()
        for block in range(len(keys) + 1, num + 1):
            end = block_end(block)
            key = hash((key, data[(start - first) * tokens.itemsize : (end - first) * tokens.itemsize]))
            start = end
            keys.append(key)
        return keys

    def keys_of(self, slot: int, num_tokens: int) -> Sequence[int]:
        """The keys of a slot's first `num_tokens` tokens, as far as they are indexed."""
        return self._keys.get(slot, ())[: num_blocks(num_tokens)]

    def put(self, slot: int, keys: Sequence[int]) -> None:
        """Index the slot under these keys, instead of any it had before."""
        before = self._keys.get(slot, ())
        num_same = _num_same(before, keys)
        self._forget(slot, before[num_same:])
        self._keys[slot] = keys
        for key in keys[num_same:]:
            self._holders.setdefault(key, {})[slot] = None

    def drop(self, slot: int) -> None:
        self._forget(slot, self._keys.pop(slot, ()))

    def nearest(self, keys: Sequence[int]) -> Collection[int]:
        """The slots that share the most blocks with the tokens of these keys; none if no slot has the first."""
        num = bisect_left(keys, True, key=lambda key: key not in self._holders)
        return self._holders[keys[num - 1]] if num else ()

    def _forget(self, slot: int, keys: Sequence[int]) -> None:
        for key in keys:
            holders = self._holders[key]
            del holders[slot]
            if not holders:
                del self._holders[key]


def num_blocks(num_tokens: int) -> int:
    """How many whole blocks so many tokens have."""
    return min(num_tokens.bit_length(), _NUM_SHORT) + max(0, num_tokens // PIECE_TOKENS - 1)


def block_end(num: int) -> int:
    """How many tokens the first `num` blocks have."""
    return (1 << num) >> 1 if num <= _NUM_SHORT else PIECE_TOKENS * (num - _NUM_SHORT + 1)


def _num_same(one: Sequence[int], other: Sequence[int]) -> int:
    """How many keys both begin with: none follow after a difference, as a key depends on all before it."""
    shorter = min(len(one), len(other))
    return bisect_left(range(shorter), True, key=lambda place: one[place] != other[place])
