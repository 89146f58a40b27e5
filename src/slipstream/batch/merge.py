"""Turns to samples: a walk over the tree of turns.

Enters: a rollout. Leaves: its samples. A rollout without forks is one sample; a turn that keeps less than its whole
parent, or whose parent was already continued by another turn, begins a further one. Nested conversations, of which
nothing is trained on, leave none.
Always holds: every token that the policy sampled has mask 1 in exactly one sample, or is counted as truncated there;
ids, logprobs and versions of sampled tokens are those of the turn; nothing else has mask 1. A sample is cut only
between turns.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.errors import ConfigError
from slipstream.types import ForkReason, JobKey, Rollout, Sample, TokenIds, Turn, token_ids

UNSAMPLED_VERSION = -1


@dataclass(slots=True)
class _Strand:
    """A sample being put together."""

    fork: ForkReason | None = None
    ids: TokenIds = field(default_factory=token_ids)
    mask: array[int] = field(default_factory=lambda: array("b"))
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    versions: array[int] = field(default_factory=lambda: array("i"))
    turns: list[Turn] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """How long it was after each of its turns."""

    def add_given(self, ids: TokenIds) -> None:
        """Tokens that the policy did not sample, or that another sample trains on."""
        self.ids.extend(ids)
        self.mask.frombytes(bytes(len(ids)))
        self.logprobs.frombytes(bytes(4 * len(ids)))
        self.versions.extend(array("i", [UNSAMPLED_VERSION]) * len(ids))

    def add_turn(self, turn: Turn, key: JobKey) -> None:
        self.add_given(turn.added)
        sampled = turn.sampled
        if sampled is None:
            raise ConfigError(
                f"turn {turn.index} of {key} has no tokens: what a chat endpoint said cannot be trained on"
            )
        if not turn.trainable:
            self.add_given(sampled.ids)
        elif sampled.logprobs is None:
            raise ConfigError(
                f"turn {turn.index} of {key} has no logprobs: sample with processed logprobs, or at temperature 1"
            )
        else:
            self.ids.extend(sampled.ids)
            self.mask.extend(array("b", [1]) * len(sampled.ids))
            self.logprobs.extend(sampled.logprobs)
            self.versions.extend(sampled.versions)
        self.turns.append(turn)
        self.ends.append(len(self.ids))

    def as_sample(self, key: JobKey, max_tokens: int | None) -> Sample | None:
        """As a value, cut after the last turn that fits; None if nothing in it is trained on."""
        num_turns = len(self.ends)
        if max_tokens is not None:
            while num_turns and self.ends[num_turns - 1] > max_tokens:
                num_turns -= 1
        end = self.ends[num_turns - 1] if num_turns else 0
        if not any(self.mask[:end]):
            return None
        return Sample(
            key=key,
            branch=self.turns[num_turns - 1].branch,
            ids=self.ids[:end],
            mask=self.mask[:end],
            logprobs=self.logprobs[:end],
            versions=self.versions[:end],
            turns=tuple(turn.index for turn in self.turns[:num_turns]),
            num_truncated=sum(self.mask[end:]),
            fork=self.fork,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The samples of a rollout, and what was cut because it fitted none."""

    samples: tuple[Sample, ...]
    num_truncated: int
    """Sampled tokens that are in no sample."""


def merge(rollout: Rollout, *, max_tokens: int | None = None) -> Merged:
    """The samples of a rollout, each of at most `max_tokens`."""
    key = rollout.job.key
    strands = _strands(rollout.turns, key)
    samples = [strand.as_sample(key, max_tokens) for strand in strands]
    kept = tuple(sample for sample in samples if sample is not None)
    num_sampled = sum(sum(strand.mask) for strand in strands)
    return Merged(samples=kept, num_truncated=num_sampled - sum(sum(sample.mask) for sample in kept))


def _strands(turns: Sequence[Turn], key: JobKey) -> list[_Strand]:
    strands: list[_Strand] = []
    place: dict[int, tuple[_Strand, int]] = {}  # turn -> its strand, and how long that was after it
    for turn in turns:
        strand = None
        if turn.parent is not None:
            parent_strand, parent_end = place[turn.parent]
            if turn.num_kept > parent_end:
                raise ConfigError(f"turn {turn.index} of {key} keeps {turn.num_kept} of {parent_end} tokens")
            if turn.num_kept == parent_end == len(parent_strand.ids):
                strand = parent_strand
        if strand is None:
            strand = _Strand(fork=_why(turn, place))
            strands.append(strand)
            if turn.parent is not None:
                strand.add_given(place[turn.parent][0].ids[: turn.num_kept])
        strand.add_turn(turn, key)
        place[turn.index] = (strand, len(strand.ids))
    return strands


def _why(turn: Turn, place: Mapping[int, tuple[_Strand, int]]) -> ForkReason | None:
    """Why a turn begins a sample of its own."""
    if turn.fork is None and turn.parent is not None and turn.num_kept == place[turn.parent][1]:
        return ForkReason.PARALLEL
    return turn.fork
