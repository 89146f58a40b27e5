"""The tree of turns, cut into strands: what becomes a sample, by lengths alone.

Input: the turns of a rollout. Output: its strands, in the order in which they begin. A turn that goes on from the
whole of a strand belongs to it; a turn that keeps less than its whole parent, or whose parent was already continued by
another turn, begins a strand of its own, and so does a turn without a parent.
Invariants: every turn is in exactly one strand; a strand's stem comes before it; logprobs are not looked at, so
recorded evaluations can be walked too. A turn without tokens, or that keeps more of its parent than there is, is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.errors import ConfigError
from slipstream.types import ForkReason, JobKey, Sampled, Turn


@dataclass(slots=True, kw_only=True)
class Strand:
    """Turns that follow each other without a gap. It begins with the first `num_kept` tokens of its stem."""

    stem: int | None
    """Which strand it forks off, by its place in the list; None if it begins with nothing."""
    num_kept: int
    fork: ForkReason | None
    """Why it is a strand of its own; None for the first, or where the turn does not say."""
    turns: list[Turn] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """How long it is after each of its turns."""
    num_trained: list[int] = field(default_factory=list)
    """How many of each turn's tokens may be trained on: all that were sampled, or none."""

    @property
    def num_tokens(self) -> int:
        return self.ends[-1] if self.ends else self.num_kept

    @property
    def is_trained(self) -> bool:
        """Whether it makes a sample. Nested conversations and empty replies alone do not."""
        return any(self.num_trained)

    def num_turns_within(self, max_tokens: int | None) -> int:
        """How many of its turns end within `max_tokens`."""
        if max_tokens is None:
            return len(self.ends)
        return sum(end <= max_tokens for end in self.ends)

    def add(self, turn: Turn, key: JobKey) -> None:
        num_sampled = len(sampled_of(turn, key).ids)
        self.ends.append(self.num_tokens + len(turn.added) + num_sampled)
        self.num_trained.append(num_sampled if turn.trainable else 0)
        self.turns.append(turn)


def strands_of(turns: Sequence[Turn], key: JobKey) -> list[Strand]:
    """The strands of a rollout; `key` is for the messages of refusals."""
    strands: list[Strand] = []
    place: dict[int, tuple[int, int]] = {}  # turn -> its strand, and how long that was after it
    for turn in turns:
        stem, whole = _parent(turn, place, key)
        if stem is None or turn.num_kept < strands[stem].num_tokens:
            fork = turn.fork
            if fork is None and stem is not None and turn.num_kept == whole:
                fork = ForkReason.PARALLEL
            strands.append(Strand(stem=stem, num_kept=turn.num_kept, fork=fork))
            own = len(strands) - 1
        else:
            own = stem
        strands[own].add(turn, key)
        place[turn.index] = (own, strands[own].num_tokens)
    return strands


def sampled_of(turn: Turn, key: JobKey) -> Sampled:
    """What the turn sampled. A turn without tokens is refused."""
    if turn.sampled is None:
        raise ConfigError(f"turn {turn.index} of {key} has no tokens: what a chat endpoint said cannot be trained on")
    return turn.sampled


def _parent(turn: Turn, place: dict[int, tuple[int, int]], key: JobKey) -> tuple[int | None, int]:
    """The strand of a turn's parent, and how long it was after that."""
    stem, whole = None, 0
    if turn.parent is not None:
        if turn.parent not in place:
            raise ConfigError(f"turn {turn.index} of {key} goes on from turn {turn.parent}, which is not before it")
        stem, whole = place[turn.parent]
    if turn.num_kept > whole:
        raise ConfigError(f"turn {turn.index} of {key} keeps {turn.num_kept} of {whole} tokens")
    return stem, whole
