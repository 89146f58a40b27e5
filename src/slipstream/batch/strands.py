"""Divides the tree of turns into strands, each of which becomes a sample. Looks at lengths only.

Input: the turns of a rollout. Output: its strands, in the order in which they begin. A turn that continues a whole
strand belongs to it. A turn without a parent, or one that keeps less than its whole parent, or whose parent another
turn already continued, begins a new strand.
Invariants: every turn is in exactly one strand; a strand's stem comes before it; logprobs are not read, so evaluations
work too. A turn without tokens, or that keeps more of its parent than there is, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.errors import ConfigError
from slipstream.types import ForkReason, JobKey, Sampled, Turn


@dataclass(slots=True, kw_only=True)
class Strand:
    """Consecutive turns without a gap. It begins with the first `num_kept` tokens of its stem."""

    stem: int | None
    """The index of the strand that it forks off; None if it starts empty."""
    num_kept: int
    fork: ForkReason | None
    """Why it is a strand of its own; None for the first, or if the turn has no reason."""
    turns: list[Turn] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Its length after each of its turns."""
    num_trained: list[int] = field(default_factory=list)
    """How many tokens of each turn may be trained on: all sampled ones, or none."""

    @property
    def num_tokens(self) -> int:
        return self.ends[-1] if self.ends else self.num_kept

    @property
    def is_trained(self) -> bool:
        """Whether it becomes a sample. Nested conversations and empty replies do not."""
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
    """The strands of a rollout; `key` is for error messages."""
    strands: list[Strand] = []
    place: dict[int, tuple[int, int]] = {}  # turn -> its strand, and the length of that after it
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
    """What the turn sampled. Refuses a turn without tokens."""
    if turn.sampled is None:
        raise ConfigError(f"turn {turn.index} of {key} has no tokens: replies of a chat endpoint cannot be trained on")
    return turn.sampled


def _parent(turn: Turn, place: dict[int, tuple[int, int]], key: JobKey) -> tuple[int | None, int]:
    """The strand of a turn's parent, and its length after the parent."""
    stem, whole = None, 0
    if turn.parent is not None:
        if turn.parent not in place:
            raise ConfigError(f"turn {turn.index} of {key} continues turn {turn.parent}, which does not come before it")
        stem, whole = place[turn.parent]
    if turn.num_kept > whole:
        raise ConfigError(f"turn {turn.index} of {key} keeps {turn.num_kept} of {whole} tokens")
    return stem, whole
