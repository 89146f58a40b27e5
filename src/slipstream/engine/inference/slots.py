"""Assigns sequences to slots of the cache. Standard library only: pure bookkeeping.

Input: prompts, each with its session. Output: for each a slot, how many of its tokens are already cached, and the slot
to copy a prefix from, if any.
Invariants: exactly a slot's first `num_computed` tokens are in the cache; a busy slot is never reassigned; what is
cached under one salt is never used under another.

A sequence that continues a slot of its session takes that slot. One that forks takes an empty slot and a copy of the
common prefix, so the other branch stays cached; if no slot is empty it takes one of an ended session, then one of its
own. Otherwise a slot of an ended session is evicted, or else the least recently used idle one. Prefixes are also copied
between sessions, since the samples of one task share their prompt. A prompt whose prefix is being computed in another
slot waits for it.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest

from slipstream.engine.inference.prefixes import Prefixes
from slipstream.types import TokenIds, token_ids

MIN_TOKENS_SAVED_BY_WAITING = 16
"""A prompt waits for another slot to compute a shared prefix only if that saves this many tokens."""

MAX_CANDIDATES = 8
"""How many of the slots that share equally many blocks with a prompt are compared token by token."""


@dataclass(slots=True, kw_only=True)
class Slot:
    index: int
    session: str = ""
    salt: str = ""
    tokens: TokenIds = field(default_factory=token_ids)
    """The sequence so far; its first `num_computed` tokens are in the cache."""
    num_computed: int = 0
    busy: bool = False
    last_used: int = 0
    ended: bool = False
    """Its session has ended. Its cache still serves as a prefix for others, and is the first to be evicted."""

    @property
    def empty(self) -> bool:
        return not self.busy and self.num_computed == 0

    @property
    def num_missing(self) -> int:
        return len(self.tokens) - self.num_computed


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAssignment:
    slot: Slot
    num_reused: int
    """Tokens of the prompt that are cached already."""
    copy_from: int | None = None
    """The slot to copy them from first."""


class SlotTable:
    def __init__(self, num_slots: int, *, reuse: bool = True) -> None:
        self.slots = [Slot(index=index) for index in range(num_slots)]
        self.num_busy = 0
        self.num_evicted = 0
        """Sessions whose cache was evicted before they ended."""
        self._reuse = reuse
        self._prefixes = Prefixes()
        """Indexes all that is cached or being computed in a slot."""
        self._of_session: defaultdict[str, dict[int, None]] = defaultdict(dict)
        self._clock = 0

    @property
    def busy(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.busy]

    @property
    def num_hashed(self) -> int:
        """Blocks of tokens that were hashed for the index of prefixes."""
        return self._prefixes.num_hashed

    @property
    def has_room(self) -> bool:
        return self.num_busy < len(self.slots)

    def place(self, prompt: TokenIds, *, session: str, salt: str) -> SlotAssignment | None:
        """Assign a slot to the prompt and mark it busy; None if the prompt has to wait."""
        if not self.has_room:
            return None
        keys = self._keys(prompt, session, salt) if self._reuse else ()
        candidates = self._candidates(keys, session) if self._reuse else []
        known = {slot.index: self._num_cached(slot, prompt, salt) for slot in candidates}
        donor = max(candidates, key=lambda slot: (known[slot.index], slot.session == session), default=None)
        num_reused = 0 if donor is None else known[donor.index]
        if self._worth_waiting(candidates, prompt, salt, num_reused):
            return None
        target = self._target(session, known)
        copies = donor is not None and num_reused > known.get(target.index, 0)
        if target.num_computed and target.session != session and not target.ended:
            self.num_evicted += 1
        self._leave_session(target)
        target.session, target.salt, target.ended = session, salt, False
        target.tokens, target.num_computed, target.busy = array("i", prompt), num_reused, True
        self.num_busy += 1
        self._of_session[session][target.index] = None
        if self._reuse:
            self._prefixes.put(target.index, keys)
        return SlotAssignment(slot=target, num_reused=num_reused, copy_from=donor.index if donor and copies else None)

    def release(self, slot: Slot, *, keep: bool = True) -> None:
        """End the slot's sequence; with `keep`, its cache stays until the slot is needed."""
        self.num_busy -= slot.busy
        slot.busy = False
        self._clock += 1
        slot.last_used = self._clock
        if keep and self._reuse:
            slot.tokens = slot.tokens[: slot.num_computed]
            known = self._prefixes.keys_of(slot.index, slot.num_computed)
            self._prefixes.put(slot.index, self._prefixes.keys(slot.salt, slot.tokens, known=known))
        else:
            self._prefixes.drop(slot.index)
            self._leave_session(slot)
            slot.session, slot.salt, slot.tokens, slot.num_computed = "", "", token_ids(), 0

    def end_session(self, session: str) -> None:
        """The session will not be continued. Its busy slots are marked too: their requests may be about to end."""
        for index in self._of_session.get(session, ()) if session else ():
            self.slots[index].ended = True

    def invalidate(self) -> None:
        """Invalidate the whole cache: idle slots become empty, busy ones are to be recomputed."""
        for slot in self.slots:
            slot.num_computed = 0
            if not slot.busy:
                self.release(slot, keep=False)

    def _leave_session(self, slot: Slot) -> None:
        members = self._of_session.get(slot.session)
        if members is not None:
            members.pop(slot.index, None)
            if not members:
                del self._of_session[slot.session]

    def _own(self, session: str) -> list[Slot]:
        return [self.slots[index] for index in self._of_session.get(session, ())] if session else []

    def _keys(self, prompt: TokenIds, session: str, salt: str) -> Sequence[int]:
        """The keys of the prompt: those that its session has in a slot already are not hashed again."""
        known: Sequence[int] = ()
        for slot in self._own(session):
            if slot.salt == salt:
                num_same = common_prefix(slot.tokens, prompt, len(prompt))
                known = max(known, self._prefixes.keys_of(slot.index, num_same), key=len)
        return self._prefixes.keys(salt, prompt, known=known)

    def _candidates(self, keys: Sequence[int], session: str) -> list[Slot]:
        """Slots that may hold the longest prefix: those of its session, and the best matches among all others, if they
        share more blocks than those do."""
        own, nearest = self._own(session), self._prefixes.nearest(keys)
        if any(slot.index in nearest and slot.num_computed == len(slot.tokens) for slot in own):
            return own
        own_indexes = {slot.index for slot in own}
        shared = [self.slots[index] for index in nearest if index not in own_indexes]
        if len(shared) > MAX_CANDIDATES:
            shared = nlargest(MAX_CANDIDATES, shared, key=lambda slot: slot.num_computed)
        return [*own, *shared]

    def _num_cached(self, slot: Slot, prompt: TokenIds, salt: str) -> int:
        """How many of the prompt's tokens the slot holds. The last is always computed, for its logits."""
        if slot.salt != salt:
            return 0
        return common_prefix(slot.tokens, prompt, min(slot.num_computed, len(prompt) - 1))

    def _worth_waiting(self, candidates: Sequence[Slot], prompt: TokenIds, salt: str, num_cached: int) -> bool:
        limit = len(prompt) - 1
        return any(
            common_prefix(slot.tokens, prompt, limit) >= num_cached + MIN_TOKENS_SAVED_BY_WAITING
            for slot in candidates
            if slot.busy and slot.salt == salt and slot.num_missing > 1
        )

    def _target(self, session: str, known: Mapping[int, int]) -> Slot:
        own = [slot for slot in self._own(session) if not slot.busy and slot.num_computed]
        continuing = [slot for slot in own if known.get(slot.index) == slot.num_computed]
        if continuing:
            return max(continuing, key=lambda slot: known[slot.index])
        idle = [slot for slot in self.slots if not slot.busy]
        empty = [slot for slot in idle if slot.empty]
        if empty:
            return empty[0]
        ended = [slot for slot in idle if slot.ended]
        if ended:
            return min(ended, key=lambda slot: slot.last_used)
        if own:
            return max(own, key=lambda slot: known.get(slot.index, 0))
        return min(idle, key=lambda slot: slot.last_used)


def common_prefix(first: TokenIds, second: TokenIds, limit: int) -> int:
    """The length of the common prefix, at most `limit`."""
    limit = min(limit, len(first), len(second))
    if first[:limit] == second[:limit]:
        return limit
    low, high = 0, limit  # the first `low` are the same, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
