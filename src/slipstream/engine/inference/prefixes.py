"""Which slots begin with the same tokens as a prompt. Standard library only: pure bookkeeping.

Input: the tokens of slots, each under a salt. Output: for a prompt, the slots that share most of it, up to a boundary.
Invariants: of all slots that were put in, none shares more whole pieces with the prompt than those that are told; the
work of a question grows with the length of the prompt and not with the number of slots.

Tokens are cut at boundaries: after 1, 2, 4, 8 and 16 tokens, then after every 16. What lies before a boundary has a
key, made of the key before it and of the tokens between: so a prompt is followed until nobody has its next key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from slipstream.types import TokenIds

PIECE_TOKENS = 16


class Prefixes:
    def __init__(self) -> None:
        self._holders: dict[int, dict[int, None]] = {}
        """By key, the slots whose tokens have it, in the order in which they came."""
        self._keys: dict[int, list[int]] = {}
        """Of each slot."""

    def put(self, slot: int, salt: str, tokens: TokenIds) -> None:
        """The slot begins with these tokens now, whatever it had before."""
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
        """The slots that share the most pieces with these tokens; none if no slot has the first."""
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
