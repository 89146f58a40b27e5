"""Merges the turns of a rollout into samples, one for each strand (`batch.strands`).

A rollout without forks is one sample, and each fork adds one. Nested conversations, which are not trained on, have
none.
Invariants: every token that the policy sampled has mask 1 in exactly one sample, or is counted as truncated; ids,
logprobs and versions of sampled tokens are those of the turn; nothing else has mask 1. A sample is truncated only
between turns. Turns without tokens or logprobs are refused.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from slipstream.batch.strands import Strand, sampled_of, strands_of
from slipstream.errors import ConfigError
from slipstream.types import JobKey, Rollout, Sample, TokenIds, Turn, token_ids

UNSAMPLED_VERSION = -1

_FLOAT_BYTES = array("f").itemsize
_UNSAMPLED = array("i", [UNSAMPLED_VERSION])


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The samples of a rollout, and how much was truncated."""

    samples: tuple[Sample, ...]
    num_truncated: int
    """Sampled tokens that are in no sample."""


def merge(rollout: Rollout, *, max_tokens: int | None = None) -> Merged:
    """The samples of a rollout, each of at most `max_tokens`."""
    key = rollout.job.key
    strands = strands_of(rollout.turns, key)
    for turn in rollout.turns:
        if turn.trainable:
            _logprobs_of(turn, key)
    samples: list[Sample] = []
    num_truncated = 0
    ids_of: list[TokenIds] = []  # by strand, not truncated, for the strands that fork off it
    for strand in strands:
        ids_of.append(_ids(strand, token_ids() if strand.stem is None else ids_of[strand.stem], key))
        num_turns = strand.num_turns_within(max_tokens)
        num_cut = sum(strand.num_trained[num_turns:])
        if any(strand.num_trained[:num_turns]):
            samples.append(_sample(strand, num_turns, ids_of[-1], num_cut, key))
        num_truncated += num_cut
    return Merged(samples=tuple(samples), num_truncated=num_truncated)


def _logprobs_of(turn: Turn, key: JobKey) -> array[float]:
    logprobs = sampled_of(turn, key).logprobs
    if logprobs is None:
        raise ConfigError(
            f"turn {turn.index} of {key} has no logprobs: sample with processed logprobs, or at temperature 1"
        )
    return logprobs


def _ids(strand: Strand, stem: TokenIds, key: JobKey) -> TokenIds:
    """All tokens of a strand, not truncated."""
    ids = stem[: strand.num_kept]
    for turn in strand.turns:
        ids.extend(turn.added)
        ids.extend(sampled_of(turn, key).ids)
    return ids


def _sample(strand: Strand, num_turns: int, ids: TokenIds, num_truncated: int, key: JobKey) -> Sample:
    """The first turns of a strand as a value."""
    turns = strand.turns[:num_turns]
    end = strand.ends[num_turns - 1]
    mask, logprobs, versions = array("b"), array("f"), array("i")

    def add_given(number: int) -> None:
        """Tokens with mask 0: not sampled by the policy, or trained on in another sample."""
        mask.frombytes(bytes(number))
        logprobs.frombytes(bytes(_FLOAT_BYTES * number))
        versions.extend(_UNSAMPLED * number)

    add_given(strand.num_kept)
    for turn in turns:
        sampled = sampled_of(turn, key)
        add_given(len(turn.added))
        if turn.trainable:
            mask.frombytes(b"\x01" * len(sampled.ids))
            logprobs.extend(_logprobs_of(turn, key))
            versions.extend(sampled.versions)
        else:
            add_given(len(sampled.ids))
    return Sample(
        key=key,
        branch=turns[-1].branch,
        ids=ids[:end],
        mask=mask,
        logprobs=logprobs,
        versions=versions,
        turns=tuple(turn.index for turn in turns),
        num_truncated=num_truncated,
        fork=strand.fork,
    )
