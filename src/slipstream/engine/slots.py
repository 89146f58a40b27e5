"""Which sequence lies in which slot of the cache. Standard library only: pure bookkeeping.

Enters: prompts to be placed, each with its session. Leaves: slots, how many of their tokens need not be computed, and
from which other slot a prefix is to be copied.
Always holds: a slot's first `num_computed` tokens are in the cache and no others; a busy slot is never taken; what is
cached under one salt is never used under another.

A sequence that goes on from a slot of its session takes that slot. One that forks takes an empty slot and a copy of the
common prefix, so the other branch stays; if no slot is empty, it takes one of a session that is over, then its own
session's. Otherwise a slot of a session that is over is given up, or else the idle one that was used longest ago.
Prefixes are copied between sessions too: the samples of one task share their prompt. A prompt whose prefix is being
computed in another slot right now waits for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.types import TokenIds, token_ids

WORTH_WAITING_TOKENS = 16
"""So many tokens must be saved by waiting for another slot to compute them."""


@dataclass(slots=True, kw_only=True)
class Slot:
    index: int
    session: str = ""
    salt: str = ""
    tokens: TokenIds = field(default_factory=token_ids)
    """The sequence as far as it is known; the cache holds the first `num_computed` of it."""
    num_computed: int = 0
    busy: bool = False
    last_used: int = 0
    over: bool = False
    """Its session has ended. What is cached still serves as a prefix for others, and is the first to give way."""

    @property
    def empty(self) -> bool:
        return not self.busy and self.num_computed == 0

    @property
    def num_missing(self) -> int:
        return len(self.tokens) - self.num_computed


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    slot: Slot
    num_reused: int
    """Tokens of the prompt that need not be computed."""
    copy_from: int | None = None
    """The slot from which these are to be copied first."""


class SlotTable:
    def __init__(self, num_slots: int, *, reuse: bool = True) -> None:
        self.slots = [Slot(index=index) for index in range(num_slots)]
        self.num_evicted = 0
        """Sessions whose cache was given up for another's, before they were over."""
        self._reuse = reuse
        self._clock = 0

    @property
    def busy(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.busy]

    @property
    def has_room(self) -> bool:
        return any(not slot.busy for slot in self.slots)

    def place(self, prompt: TokenIds, *, session: str, salt: str) -> Placed | None:
        """A slot for the prompt, which is busy from now on; None if it has to wait."""
        if not self.has_room:
            return None
        known = self._known(prompt, salt) if self._reuse else [0] * len(self.slots)
        donor = max(self.slots, key=lambda slot: (known[slot.index], slot.session == session))
        if self._worth_waiting(prompt, salt, known[donor.index]):
            return None
        target = self._target(session, known)
        num_reused = known[donor.index]
        copies = num_reused > known[target.index]
        if target.num_computed and target.session != session and not target.over:
            self.num_evicted += 1
        target.session, target.salt, target.over = session, salt, False
        target.tokens, target.num_computed, target.busy = array("i", prompt), num_reused, True
        return Placed(slot=target, num_reused=num_reused, copy_from=donor.index if copies else None)

    def release(self, slot: Slot, *, keep: bool = True) -> None:
        """The sequence is over; `keep` what is cached of it until the room is needed."""
        slot.busy = False
        self._clock += 1
        slot.last_used = self._clock
        if keep and self._reuse:
            slot.tokens = slot.tokens[: slot.num_computed]
        else:
            slot.session, slot.salt, slot.tokens, slot.num_computed = "", "", token_ids(), 0

    def end(self, session: str) -> None:
        """Nobody comes back to this session. Its busy slots are told too: their requests may be on their way out."""
        for slot in self.slots:
            slot.over |= bool(session) and slot.session == session

    def forget(self) -> None:
        """The cache is worth nothing any more: idle slots become empty, busy ones are to be computed anew."""
        for slot in self.slots:
            slot.num_computed = 0
            if not slot.busy:
                self.release(slot, keep=False)

    def _known(self, prompt: TokenIds, salt: str) -> list[int]:
        """Per slot, how many of the prompt's tokens it holds. The last one is computed in any case, for its logits."""
        most = len(prompt) - 1
        return [
            common_prefix(slot.tokens, prompt, min(slot.num_computed, most)) if slot.salt == salt else 0
            for slot in self.slots
        ]

    def _worth_waiting(self, prompt: TokenIds, salt: str, num_known: int) -> bool:
        if not self._reuse:
            return False
        most = len(prompt) - 1
        return any(
            common_prefix(slot.tokens, prompt, most) >= num_known + WORTH_WAITING_TOKENS
            for slot in self.slots
            if slot.busy and slot.salt == salt and slot.num_missing > 1
        )

    def _target(self, session: str, known: Sequence[int]) -> Slot:
        idle = [slot for slot in self.slots if not slot.busy]
        own = [slot for slot in idle if session and slot.session == session and slot.num_computed]
        going_on = [slot for slot in own if known[slot.index] == slot.num_computed]
        if going_on:
            return max(going_on, key=lambda slot: known[slot.index])
        empty = [slot for slot in idle if slot.empty]
        if empty:
            return empty[0]
        over = [slot for slot in idle if slot.over]
        if over:
            return min(over, key=lambda slot: slot.last_used)
        if own:
            return max(own, key=lambda slot: known[slot.index])
        return min(idle, key=lambda slot: slot.last_used)


def common_prefix(first: TokenIds, second: TokenIds, most: int) -> int:
    """How many tokens are the same from the start on, at most `most`."""
    most = min(most, len(first), len(second))
    if first[:most] == second[:most]:
        return most
    low, high = 0, most  # the first `low` are the same, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
