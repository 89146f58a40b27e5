"""Triton kernels that sample tokens on the GPU, and a function that launches each.

Invariants: a token is drawn as `sampling` draws it, from the same uniform number, and nothing goes back to the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

DRAW_BLOCK = 4096
"""Logits that one program of `draw` sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """The device's state of the sequence in each slot."""

    tokens: torch.Tensor
    """The last token, which has not been through the model."""
    positions: torch.Tensor
    """The position of that token."""
    seeds: torch.Tensor
    """`sampling.splitmix64` of the request's seed."""
    temperatures: torch.Tensor
    last_position: int
    """Where sequences stop advancing that nobody waits for any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRing:
    """The tokens drawn, by step and row, and the step being written."""

    counter: torch.Tensor
    tokens: torch.Tensor
    logprobs: torch.Tensor


@triton.jit
def _begin(rows, tokens, positions, counter, ids, places, num, BLOCK: tl.constexpr):
    row = tl.arange(0, BLOCK)
    inside = row < num
    slot = tl.load(rows + row, mask=inside, other=0)
    tl.store(ids + row, tl.load(tokens + slot, mask=inside, other=0), mask=inside)
    tl.store(places + row, tl.load(positions + slot, mask=inside, other=0), mask=inside)
    tl.store(counter, tl.load(counter) + 1)


def begin(slots: torch.Tensor, state: SlotState, ring: SampledRing) -> tuple[torch.Tensor, torch.Tensor]:
    """The last token of every slot and its position; starts the ring's next step."""
    ids, positions = torch.empty_like(slots), torch.empty_like(slots)
    num = slots.shape[0]
    _begin[(1,)](
        slots, state.tokens, state.positions, ring.counter, ids, positions, num, BLOCK=triton.next_power_of_2(num)
    )
    return ids, positions


@triton.jit
def _mixed(bits):
    """`sampling.splitmix64`."""
    bits += 0x9E3779B97F4A7C15
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)


@triton.jit
def _sum_up(
    logits, slots, temperatures, peaks, totals, vocab, num_blocks,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + tl.load(slots + row))
    warmth = tl.where(temperature > 0.0, temperature, 1.0)
    token = block * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(logits + row * vocab + token, mask=token < vocab, other=float("-inf")).to(tl.float32) / warmth
    peak = tl.max(score, axis=0)
    total = tl.where(peak == float("-inf"), 0.0, tl.sum(tl.exp(score - peak), axis=0))
    tl.store(peaks + row * num_blocks + block, peak)
    tl.store(totals + row * num_blocks + block, total)


@triton.jit
def _draw(
    logits, slots, positions, seeds, temperatures, peaks, totals,
    tokens, places, counter, told_tokens, told_logprobs,
    vocab, num_blocks, told_stride, last_place,
    BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    position = tl.load(positions + row).to(tl.int64) + 1
    temperature = tl.load(temperatures + slot)
    warmth = tl.where(temperature > 0.0, temperature, 1.0)
    noise = _mixed((position + 1).to(tl.uint64) * 0xD1342543DE82EF95)
    bits = _mixed(tl.load(seeds + slot).to(tl.uint64) ^ noise)
    uniform = ((bits >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16
    # The block of the vocabulary that the number falls into.
    block = tl.arange(0, BLOCKS)
    known = block < num_blocks
    peak_of = tl.load(peaks + row * num_blocks + block, mask=known, other=float("-inf"))
    highest = tl.max(peak_of, axis=0)
    weight_of = tl.load(totals + row * num_blocks + block, mask=known, other=0.0) * tl.exp(peak_of - highest)
    weight_of = weight_of.to(tl.float64)
    reached = tl.cumsum(weight_of, axis=0)
    total = tl.sum(weight_of, axis=0)
    heaviest_last = tl.max(tl.where(weight_of > 0.0, block, 0), axis=0)
    chosen = tl.minimum(tl.sum((reached <= uniform * total).to(tl.int32), axis=0), heaviest_last)
    before = tl.sum(tl.where(block < chosen, weight_of, 0.0), axis=0)
    share = (uniform * total - before) / tl.sum(tl.where(block == chosen, weight_of, 0.0), axis=0)
    likeliest = tl.minimum(tl.min(tl.where(peak_of == highest, block, BLOCKS), axis=0), heaviest_last)
    chosen = tl.where(temperature > 0.0, chosen, likeliest)
    # The token within it.
    inner = tl.arange(0, BLOCK)
    token = chosen * BLOCK + inner
    score = tl.load(logits + row * vocab + token, mask=token < vocab, other=float("-inf")).to(tl.float32) / warmth
    weight = tl.exp(score - highest).to(tl.float64)
    summed = tl.cumsum(weight, axis=0)
    bound = share * tl.max(summed, axis=0)
    last = tl.max(tl.where(weight > 0.0, inner, 0), axis=0)
    place = tl.minimum(tl.sum((summed <= bound).to(tl.int32), axis=0), last)
    first = tl.minimum(tl.min(tl.where(score == highest, inner, BLOCK), axis=0), last)
    place = tl.where(temperature > 0.0, place, first)
    drawn = chosen * BLOCK + place
    own = tl.max(tl.where(inner == place, score, float("-inf")), axis=0)
    logprob = (own - highest).to(tl.float64) - tl.log(total)
    tl.store(tokens + slot, drawn)
    tl.store(places + slot, tl.minimum(position, last_place).to(tl.int32))
    spot = tl.load(counter) * told_stride + row
    tl.store(told_tokens + spot, drawn)
    tl.store(told_logprobs + spot, logprob.to(tl.float32))


def draw(
    logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, state: SlotState, ring: SampledRing
) -> None:
    """Draw one token per row of float32 `logits`, into the slot's `state` and into `ring`. `positions` are those of the
    rows; the token drawn is at the next one. A row with NaN logits gets a NaN logprob."""
    num_rows, vocab = logits.shape
    block = min(DRAW_BLOCK, triton.next_power_of_2(vocab))
    num_blocks = triton.cdiv(vocab, block)
    sums = logits.new_empty(2, num_rows, num_blocks)
    _sum_up[(num_rows, num_blocks)](
        logits, slots, state.temperatures, sums[0], sums[1], vocab, num_blocks, BLOCK=block, num_warps=8
    )
    _draw[(num_rows,)](
        logits, slots, positions, state.seeds, state.temperatures, sums[0], sums[1], state.tokens, state.positions,
        ring.counter, ring.tokens, ring.logprobs, vocab, num_blocks, ring.tokens.stride(0), state.last_position,
        BLOCKS=triton.next_power_of_2(num_blocks), BLOCK=block, num_warps=8,
    )  # fmt: skip
