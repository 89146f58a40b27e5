"""An index of slots by prefix: finds the slots that share the longest prefix with a prompt. Standard library only.

Input: the tokens of each slot, under a salt. Output: for a prompt, the slots that share the most blocks with it.
Invariants: no other indexed slot shares more whole blocks with the prompt; a lookup takes time in proportion to the
length of the prompt, not to the number of slots.

Tokens are split into blocks that end after 1, 2, 4, 8 and 16 tokens, then after every 16. A block's key is a hash of
the key before it and of its tokens, so a lookup follows the prompt's keys until no slot has the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from slipstream.types import TokenIds

PIECE_TOKENS = 16


class Prefixes:
    def __init__(self) -> None:
        self._holders: dict[int, dict[int, None]] = {}
        """By key, the slots that have it, in the order of insertion."""
        self._keys: dict[int, list[int]] = {}
        """By slot."""

    def put(self, slot: int, salt: str, tokens: TokenIds) -> None:
        """Index the slot under these tokens, instead of any it had before."""
        self.drop(slot)
        self._keys[slot] = keys = list(_keys(salt, tokens))
        for key in keys:
            self._holders.setdefault(key, {})[slot] = None

    def drop(self, slot: int) -> None:
        for key in self._keys.pop(slot, ()):
            holders = self._holders[key]
            del holders[slot]
            if not holders:
                del self._holders[key]

    def nearest(self, salt: str, tokens: TokenIds) -> Collection[int]:
        """The slots that share the most blocks with these tokens; none if no slot has the first token."""
        found: Collection[int] = ()
        for key in _keys(salt, tokens):
            holders = self._holders.get(key)
            if holders is None:
                break
            found = holders
        return found


def _keys(salt: str, tokens: TokenIds) -> Iterator[int]:
    key = hash(salt)
    start = 0
    for end in _boundaries(len(tokens)):
        key = hash((key, tokens[start:end].tobytes()))
        start = end
        yield key


def _boundaries(length: int) -> Iterator[int]:
    end = 1
    while end <= length:
        yield end
        end += min(end, PIECE_TOKENS)
