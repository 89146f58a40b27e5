"""Line diff: compares two lists of lines.

Input: the old and the new lines. Output: the blocks in which they differ, in order. Invariants: replacing the blocks
turns the old lines into the new ones; besides a few passes over the lines, the work is bounded by `MAX_STEPS`; if that
is not enough, a block is larger than necessary.

Lines that are unique on each side are matched first (their longest common subsequence, as in patience diff); the ranges
between them are compared with Myers' greedy algorithm.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

MAX_STEPS = 400_000
MAX_EDITS = 400
"""The most deleted and inserted lines that Myers' search considers before it gives up on a range."""


class Block(NamedTuple):
    """Lines `old_start` to `old_end` become lines `new_start` to `new_end`; counted from 0, ends exclusive."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


def compare(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[Block]:
    numbers: dict[Hashable, int] = {}
    a = [numbers.setdefault(line, len(numbers)) for line in old]
    b = [numbers.setdefault(line, len(numbers)) for line in new]
    blocks: list[Block] = []
    for found in _Comparison(a, b).blocks():
        last = blocks[-1] if blocks else None
        if last is not None and last.old_end == found.old_start and last.new_end == found.new_start:
            blocks[-1] = Block(last.old_start, found.old_end, last.new_start, found.new_end)
        else:
            blocks.append(found)
    return blocks


class _Comparison:
    def __init__(self, a: list[int], b: list[int]) -> None:
        self._a = a
        self._b = b
        self._steps = MAX_STEPS

    def blocks(self) -> Iterator[Block]:
        """The differing blocks, in order; matched lines are never inside a block."""
        todo = [Block(0, len(self._a), 0, len(self._b))]
        while todo:
            here = self._trimmed(todo.pop())
            if here.old_start == here.old_end or here.new_start == here.new_end:
                if here.old_start != here.old_end or here.new_start != here.new_end:
                    yield here
                continue
            parts = self._split(here)
            if parts is None:
                yield here
            else:
                todo += reversed(parts)

    def _trimmed(self, here: Block) -> Block:
        a, b = self._a, self._b
        low, high, new_low, new_high = here
        while low < high and new_low < new_high and a[low] == b[new_low]:
            low, new_low = low + 1, new_low + 1
        while low < high and new_low < new_high and a[high - 1] == b[new_high - 1]:
            high, new_high = high - 1, new_high - 1
        return Block(low, high, new_low, new_high)

    def _split(self, here: Block) -> list[Block] | None:
        """The ranges between matching lines; None if none match, or if finding them would take too long."""
        size = here.old_end - here.old_start + here.new_end - here.new_start
        if self._steps <= 0:
            return None
        self._steps -= size // 8  # a pass over the lines is much cheaper than as many steps
        pairs = self._unique(here) or self._shortest(here)
        if not pairs:
            return None
        parts = []
        old_start, new_start = here.old_start, here.new_start
        for i, j in pairs:
            if i > old_start or j > new_start:
                parts.append(Block(old_start, i, new_start, j))
            old_start, new_start = i + 1, j + 1
        parts.append(Block(old_start, here.old_end, new_start, here.new_end))
        return parts

    def _unique(self, here: Block) -> list[tuple[int, int]]:
        """The longest common subsequence of the lines that are unique on each side."""
        old = _once(self._a, here.old_start, here.old_end)
        new = _once(self._b, here.new_start, here.new_end)
        pairs = [(i, new[line]) for line, i in old.items() if line in new]
        tails: list[int] = []
        ends: list[int] = []
        before: list[int] = []
        for index, (_, j) in enumerate(pairs):
            place = bisect_left(tails, j)
            before.append(ends[place - 1] if place else -1)
            if place == len(tails):
                tails.append(j)
                ends.append(index)
            else:
                tails[place] = j
                ends[place] = index
        row = []
        index = ends[-1] if ends else -1
        while index >= 0:
            row.append(pairs[index])
            index = before[index]
        return row[::-1]

    def _shortest(self, here: Block) -> list[tuple[int, int]]:
        """The matches of a shortest edit script. Empty if it is not found within the bounds."""
        a, b = self._a[here.old_start : here.old_end], self._b[here.new_start : here.new_end]
        reach = {1: 0}
        history: list[dict[int, int]] = []
        for num_edits in range(min(len(a) + len(b), MAX_EDITS) + 1):
            history.append(dict(reach))
            self._steps -= num_edits + 1
            if self._steps <= 0:
                return []
            for k in range(-num_edits, num_edits + 1, 2):
                down = k == -num_edits or (k != num_edits and reach[k - 1] < reach[k + 1])
                x = reach[k + 1] if down else reach[k - 1] + 1
                start = x
                while x < len(a) and x - k < len(b) and a[x] == b[x - k]:
                    x += 1
                self._steps -= x - start
                reach[k] = x
                if x >= len(a) and x - k >= len(b):
                    return [(here.old_start + i, here.new_start + j) for i, j in _backtrack(history, len(a), len(b))]
        return []


def _once(lines: list[int], start: int, end: int) -> dict[int, int]:
    """The index of each line that occurs once in the range."""
    seen: dict[int, int] = {}
    for index in range(start, end):
        line = lines[index]
        seen[line] = -1 if line in seen else index
    return {line: index for line, index in seen.items() if index >= 0}


def _backtrack(history: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for num_edits in range(len(history) - 1, -1, -1):
        reach = history[num_edits]
        k = x - y
        down = k == -num_edits or (k != num_edits and reach[k - 1] < reach[k + 1])
        before = k + 1 if down else k - 1
        old_x = reach[before]
        old_y = old_x - before
        while x > max(old_x, 0) and y > max(old_y, 0):
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = old_x, old_y
    return pairs[::-1]
