"""Which sequence lies in which slot of the cache. Standard library only: pure bookkeeping.

Input: prompts to be placed, each with its session. Output: slots, how many of their tokens need not be computed, and
from which other slot a prefix is to be copied.
Invariants: a slot's first `num_computed` tokens are in the cache and no others; a busy slot is never taken; what is
cached under one salt is never used under another.

A sequence that goes on from a slot of its session takes that slot. One that forks takes an empty slot and a copy of the
common prefix, so the other branch stays; if no slot is empty, it takes one of a session that is over, then its own
session's. Otherwise a slot of a session that is over is given up, or else the idle one that was used longest ago.
Prefixes are copied between sessions too: the samples of one task share their prompt. A prompt whose prefix is being
computed in another slot right now waits for it.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest

from slipstream.engine.inference.prefixes import Prefixes
from slipstream.types import TokenIds, token_ids

WORTH_WAITING_TOKENS = 16
"""So many tokens must be saved by waiting for another slot to compute them."""

MAX_NEAR = 8
"""Of the slots that share as many whole pieces of a prompt, so many are compared token by token."""


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
        self.num_busy = 0
        self.num_evicted = 0
        """Sessions whose cache was given up for another's, before they were over."""
        self._reuse = reuse
        self._prefixes = Prefixes()
        """Of all that is in a slot or is being computed there."""
        self._of_session: defaultdict[str, dict[int, None]] = defaultdict(dict)
        self._clock = 0

    @property
    def busy(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.busy]

    @property
    def has_room(self) -> bool:
        return self.num_busy < len(self.slots)

    def place(self, prompt: TokenIds, *, session: str, salt: str) -> Placed | None:
        """A slot for the prompt, which is busy from now on; None if it has to wait."""
        if not self.has_room:
            return None
        near = self._near(prompt, session, salt) if self._reuse else []
        known = {slot.index: self._known(slot, prompt, salt) for slot in near}
        donor = max(near, key=lambda slot: (known[slot.index], slot.session == session), default=None)
        num_reused = 0 if donor is None else known[donor.index]
        if self._worth_waiting(near, prompt, salt, num_reused):
            return None
        target = self._target(session, known)
        copies = donor is not None and num_reused > known.get(target.index, 0)
        if target.num_computed and target.session != session and not target.over:
            self.num_evicted += 1
        self._leave(target)
        target.session, target.salt, target.over = session, salt, False
        target.tokens, target.num_computed, target.busy = array("i", prompt), num_reused, True
        self.num_busy += 1
        self._of_session[session][target.index] = None
        if self._reuse:
            self._prefixes.put(target.index, salt, target.tokens)
        return Placed(slot=target, num_reused=num_reused, copy_from=donor.index if donor and copies else None)

    def release(self, slot: Slot, *, keep: bool = True) -> None:
        """The sequence is over; `keep` what is cached of it until the room is needed."""
        self.num_busy -= slot.busy
        slot.busy = False
        self._clock += 1
        slot.last_used = self._clock
        if keep and self._reuse:
            slot.tokens = slot.tokens[: slot.num_computed]
            self._prefixes.put(slot.index, slot.salt, slot.tokens)
        else:
            self._leave(slot)
            slot.session, slot.salt, slot.tokens, slot.num_computed = "", "", token_ids(), 0

    def end(self, session: str) -> None:
        """Nobody comes back to this session. Its busy slots are told too: their requests may be on their way out."""
        for index in self._of_session.get(session, ()) if session else ():
            self.slots[index].over = True

    def forget(self) -> None:
        """The cache is worth nothing any more: idle slots become empty, busy ones are to be computed anew."""
        for slot in self.slots:
            slot.num_computed = 0
            if not slot.busy:
                self.release(slot, keep=False)

    def _leave(self, slot: Slot) -> None:
        """The slot is nobody's any more."""
        self._prefixes.drop(slot.index)
        members = self._of_session.get(slot.session)
        if members is not None:
            members.pop(slot.index, None)
            if not members:
                del self._of_session[slot.session]

    def _near(self, prompt: TokenIds, session: str, salt: str) -> list[Slot]:
        """Slots that may hold most of the prompt: its own session's, and of the others those that share most of it."""
        own = self._of_session.get(session, {}) if session else {}
        shared = [self.slots[index] for index in self._prefixes.nearest(salt, prompt) if index not in own]
        if len(shared) > MAX_NEAR:
            shared = nlargest(MAX_NEAR, shared, key=lambda slot: slot.num_computed)
        return [*(self.slots[index] for index in own), *shared]

    def _known(self, slot: Slot, prompt: TokenIds, salt: str) -> int:
        """How many of the prompt's tokens it holds. The last one is computed in any case, for its logits."""
        if slot.salt != salt:
            return 0
        return common_prefix(slot.tokens, prompt, min(slot.num_computed, len(prompt) - 1))

    def _worth_waiting(self, near: Sequence[Slot], prompt: TokenIds, salt: str, num_known: int) -> bool:
        most = len(prompt) - 1
        return any(
            common_prefix(slot.tokens, prompt, most) >= num_known + WORTH_WAITING_TOKENS
            for slot in near
            if slot.busy and slot.salt == salt and slot.num_missing > 1
        )

    def _target(self, session: str, known: Mapping[int, int]) -> Slot:
        members = self._of_session.get(session, ()) if session else ()
        own = [slot for index in members if not (slot := self.slots[index]).busy and slot.num_computed]
        going_on = [slot for slot in own if known.get(slot.index) == slot.num_computed]
        if going_on:
            return max(going_on, key=lambda slot: known[slot.index])
        idle = [slot for slot in self.slots if not slot.busy]
        empty = [slot for slot in idle if slot.empty]
        if empty:
            return empty[0]
        over = [slot for slot in idle if slot.over]
        if over:
            return min(over, key=lambda slot: slot.last_used)
        if own:
            return max(own, key=lambda slot: known.get(slot.index, 0))
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
