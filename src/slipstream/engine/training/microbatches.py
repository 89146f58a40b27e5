"""Micro-batches: a few rows at a time, with only what the trained tokens need.

Input: rows, or samples with ids and mask. Output: micro-batches. They are packed, one row after another, where there
is a kernel for that (`packing`). Otherwise rows of about the same length go together, the longest first, padded on the
right. Attention is causal, so what follows a token never reaches it: the padding needs no mask, and what
follows a row's last trained token is left out.
Invariants: a row is in exactly one micro-batch, unsplit; rows without a trained token are in none. The first token
of a row is never trained: nothing of its own row comes before it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import torch

from slipstream.engine.training.packing import Packed
from slipstream.engine.training.step_plan import Masked
from slipstream.errors import ConfigError
from slipstream.types import Row

_DTYPES = {
    "b": torch.int8,
    "B": torch.uint8,
    "h": torch.int16,
    "i": torch.int32,
    "q": torch.int64,
    "f": torch.float32,
    "d": torch.float64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRow:
    """A row with trained tokens: `positions[i]` is the place in `inputs` that predicts `targets[i]`."""

    rollout: Hashable
    inputs: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    behaviour: torch.Tensor
    is_current: torch.Tensor
    """For each trained token, whether the current policy sampled it, not an older one."""
    advantage: float

    @property
    def num_tokens(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    ids: torch.Tensor
    """Rows by tokens, padded with 0; or, packed, a single line."""
    packed: Packed | None
    num_rows: int
    places: torch.Tensor
    """For each trained token, which of all places of `ids` predicts it."""
    targets: torch.Tensor
    rows: torch.Tensor
    """For each trained token, which row of `ids` it is of."""
    behaviour: torch.Tensor
    is_current: torch.Tensor
    advantages: torch.Tensor
    scales: torch.Tensor


def train_rows(rows: Sequence[Row], *, vocab_size: int, version: int | None = None) -> list[TrainRow]:
    """Those rows that are in the loss and have a trained token. `version` is the policy's at the update; without it
    every token counts as sampled by that policy."""
    found = []
    for place, row in enumerate(rows):
        if not row.in_loss:
            continue
        made = _train_row(
            row.sample,
            vocab_size,
            rollout=row.sample.key,
            logprobs=row.sample.logprobs,
            advantage=row.advantage,
            is_current=None if version is None else _tensor(row.sample.versions) == version,
        )
        if made is None:
            continue
        if not math.isfinite(row.advantage):
            raise ConfigError(f"row {place} ({row.sample.key}) has an advantage of {row.advantage}: give a number")
        if not bool(torch.isfinite(made.behaviour).all()):
            raise ConfigError(
                f"row {place} ({row.sample.key}) has a sampled logprob that is no number: check the engine"
            )
        found.append(made)
    return found


def sample_rows(samples: Iterable[Masked], *, vocab_size: int) -> list[TrainRow]:
    """The same for supervised training: every sample is a rollout of its own."""
    made = (_train_row(sample, vocab_size, rollout=place) for place, sample in enumerate(samples))
    return [row for row in made if row is not None]


def plan(lengths: Sequence[int], budget: int, *, pack: bool = False) -> list[list[int]]:
    """Which rows go together, by their places: the longest first, each group padded to at most `budget` tokens; or, if
    they are packed, with at most `budget` tokens.

    A row that is longer than the budget goes alone.
    """
    if pack:
        return _plan_packed(lengths, budget)
    groups: list[list[int]] = []
    widest = 0
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        if groups and (len(groups[-1]) + 1) * widest <= budget:
            groups[-1].append(place)
        else:
            groups.append([place])
            widest = lengths[place]
    return groups


def _plan_packed(lengths: Sequence[int], budget: int) -> list[list[int]]:
    groups: list[list[int]] = []
    left = 0
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        if groups and lengths[place] <= left:
            groups[-1].append(place)
        else:
            groups.append([place])
            left = budget
        left -= lengths[place]
    return groups


def collate(
    rows: Sequence[TrainRow], scales: Sequence[float], device: torch.device, *, pack: bool = False
) -> MicroBatch:
    lengths = torch.tensor([len(row.inputs) for row in rows])
    counts = torch.tensor([row.num_tokens for row in rows])
    if pack:
        packed = Packed.of(lengths)
        ids, starts = torch.cat([row.inputs for row in rows])[None], packed.ends[:-1].long()
    else:
        packed, width = None, int(lengths.max())
        ids, starts = torch.zeros(len(rows), width, dtype=torch.int64), torch.arange(len(rows)) * width
        for number, row in enumerate(rows):
            ids[number, : len(row.inputs)] = row.inputs
    return MicroBatch(
        ids=ids.to(device),
        packed=None if packed is None else packed.on(device),
        num_rows=len(rows),
        places=(torch.cat([row.positions for row in rows]) + starts.repeat_interleave(counts)).to(device),
        targets=torch.cat([row.targets for row in rows]).to(device),
        rows=torch.arange(len(rows)).repeat_interleave(counts).to(device),
        behaviour=torch.cat([row.behaviour for row in rows]).to(device),
        is_current=torch.cat([row.is_current for row in rows]),
        advantages=torch.tensor([row.advantage for row in rows]).repeat_interleave(counts).to(device),
        scales=torch.tensor(scales).repeat_interleave(counts).to(device),
    )


def _train_row(
    sample: Masked,
    vocab_size: int,
    *,
    rollout: Hashable,
    logprobs: Sequence[float] | None = None,
    advantage: float = 0.0,
    is_current: torch.Tensor | None = None,
) -> TrainRow | None:
    ids, mask = _tensor(sample.ids).long(), _tensor(sample.mask).bool()
    if len(ids) != len(mask):
        raise ConfigError(f"{len(ids)} ids and a mask of {len(mask)}: give one mask entry for each id")
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
        wrong = int(ids.max() if int(ids.max()) >= vocab_size else ids.min())
        raise ConfigError(
            f"token {wrong} of {rollout} is not among the model's {vocab_size}: use the model's tokenizer"
        )
    at = mask.nonzero()[:, 0]
    at = at[at > 0]
    if not len(at):
        return None
    return TrainRow(
        rollout=rollout,
        inputs=ids[: int(at[-1])],
        positions=at - 1,
        targets=ids[at],
        behaviour=torch.zeros(len(at)) if logprobs is None else _tensor(logprobs).float()[at],
        is_current=torch.ones(len(at), dtype=torch.bool) if is_current is None else is_current[at],
        advantage=advantage,
    )


def _tensor(values: Sequence[int] | Sequence[float]) -> torch.Tensor:
    if isinstance(values, array) and len(values) and values.typecode in _DTYPES:
        return torch.frombuffer(values, dtype=_DTYPES[values.typecode])
    return torch.tensor(list(values))
