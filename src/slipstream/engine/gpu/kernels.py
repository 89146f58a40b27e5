"""The GPU's own operations: Triton kernels, and a function for each that launches it.

Enters and leaves: tensors on one device, whose addresses may be baked into a CUDA graph. Rows are tokens; each has a
slot of the cache and a position in it. The cache of a layer has the shape [slots, key heads, positions, head size].
Invariants: attention reads a slot's own tokens up to the row's position and no others; sums are float32 whatever the
dtype; a token is drawn as `sampling` draws it, from the same uniform number, and nothing goes back to the host.

The plain operations of `decoder` and `sampling` are the reference; the tests compare, on a CPU through Triton's
interpreter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

QUERY_ROWS = 64
"""Tokens of a prompt that one program of `attend_prompts` takes."""
MIN_DOT = 16
"""Rows that a product needs on tensor cores."""
DRAW_BLOCK = 4096
"""Logits that one program of `draw` sums up."""


# ---------------------------------------------------------------- norms and the inner layer


@triton.jit
def _norm(hidden, added, weight, out, num_columns, eps, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < num_columns
    place = row * num_columns + column
    values = tl.load(hidden + place, mask=inside, other=0.0)
    if ADDS:
        values += tl.load(added + place, mask=inside, other=0.0)
        tl.store(hidden + place, values, mask=inside)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / num_columns + eps)
    scaled = wide * scale * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, scaled.to(out.dtype.element_ty), mask=inside)


def add_norm(hidden: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`hidden += added`, and the norm of that."""
    out = torch.empty_like(hidden)
    num_columns = hidden.shape[1]
    _norm[(hidden.shape[0],)](
        hidden,
        hidden if added is None else added,
        weight,
        out,
        num_columns,
        eps,
        ADDS=added is not None,
        BLOCK=triton.next_power_of_2(num_columns),
        num_warps=4,
    )
    return out


@triton.jit
def _gate(joined, out, num_columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_columns
    gate = tl.load(joined + row * 2 * num_columns + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(joined + (row * 2 + 1) * num_columns + column, mask=inside, other=0.0)
    opened = (gate * tl.sigmoid(gate)).to(up.dtype)
    tl.store(out + row * num_columns + column, opened * up, mask=inside)


def gated(joined: torch.Tensor) -> torch.Tensor:
    """silu of the first half of the columns, times the second."""
    num_rows, num_columns = joined.shape[0], joined.shape[1] // 2
    out = joined.new_empty(num_rows, num_columns)
    block = min(1024, triton.next_power_of_2(num_columns))
    _gate[(num_rows, triton.cdiv(num_columns, block))](joined, out, num_columns, BLOCK=block, num_warps=4)
    return out


# ---------------------------------------------------------------- queries, keys and values


@triton.jit
def _store(
    joined, norms, cos, sin, slots, positions, queries, keys, values,
    slot_stride, head_stride, eps,
    NUM_HEADS: tl.constexpr, NUM_KV: tl.constexpr, ALL: tl.constexpr, HALF: tl.constexpr, NORMS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    position = tl.load(positions + row).to(tl.int64)
    head = tl.arange(0, ALL)[:, None]
    half = tl.arange(0, HALF)[None, :]
    inside = (head < NUM_HEADS + 2 * NUM_KV) & (half < HALF)
    turns = head < NUM_HEADS + NUM_KV
    source = joined + (row * (NUM_HEADS + 2 * NUM_KV) + head) * (2 * HALF) + half
    first = tl.load(source, mask=inside, other=0.0)
    second = tl.load(source + HALF, mask=inside, other=0.0)
    left, right = first.to(tl.float32), second.to(tl.float32)
    if NORMS:
        square = (tl.sum(left * left, axis=1) + tl.sum(right * right, axis=1)) / (2 * HALF)
        scale = tl.rsqrt(square + eps)[:, None]
        weight = norms + head * (2 * HALF) + half
        left = left * scale * tl.load(weight, mask=turns & inside, other=0.0).to(tl.float32)
        right = right * scale * tl.load(weight + HALF, mask=turns & inside, other=0.0).to(tl.float32)
    angle = position * (2 * HALF) + half
    across = tl.load(cos + angle).to(tl.float32)
    up = tl.load(sin + angle + HALF).to(tl.float32)  # the first half of the table carries the sign
    turned_left = (left * across - right * up).to(first.dtype)
    turned_right = (right * across + left * up).to(first.dtype)
    asks = head < NUM_HEADS
    target = queries + (row * NUM_HEADS + head) * (2 * HALF) + half
    tl.store(target, turned_left, mask=asks & inside)
    tl.store(target + HALF, turned_right, mask=asks & inside)
    place = slot * slot_stride + position * (2 * HALF) + half
    target = keys + place + (head - NUM_HEADS) * head_stride
    tl.store(target, turned_left, mask=(head >= NUM_HEADS) & turns & inside)
    tl.store(target + HALF, turned_right, mask=(head >= NUM_HEADS) & turns & inside)
    target = values + place + (head - NUM_HEADS - NUM_KV) * head_stride
    tl.store(target, first, mask=(head >= NUM_HEADS + NUM_KV) & inside)
    tl.store(target + HALF, second, mask=(head >= NUM_HEADS + NUM_KV) & inside)


def store(
    joined: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    table: tuple[torch.Tensor, torch.Tensor],
    norms: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Turn queries and keys by their positions and put keys and values into the cache; returns the queries.

    `joined` has, per row, the heads of queries, keys and values one after the other; `cache` is one layer's keys and
    values; `table` is `rope.rope_table`'s; `norms` is Qwen3's weight for each head of queries and keys.
    """
    num_kv, head_size = cache.shape[2], cache.shape[4]
    num_heads = joined.shape[1] // head_size - 2 * num_kv
    queries = joined.new_empty(joined.shape[0], num_heads, head_size)
    keys, values = cache[0], cache[1]
    _store[(joined.shape[0],)](
        joined, joined if norms is None else norms, *table, slots, positions, queries, keys, values,
        keys.stride(0), keys.stride(1), eps,
        NUM_HEADS=num_heads, NUM_KV=num_kv, ALL=triton.next_power_of_2(num_heads + 2 * num_kv), HALF=head_size // 2,
        NORMS=norms is not None, num_warps=4,
    )  # fmt: skip
    return queries


# ---------------------------------------------------------------- attention


@triton.jit
def _attend_one(
    queries, keys, values, slots, positions, out, peaks, totals,
    slot_stride, head_stride, scale,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    NUM_PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row, kv, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    slot = tl.load(slots + row).to(tl.int64)
    length = tl.load(positions + row).to(tl.int32) + 1
    share = tl.cdiv(tl.cdiv(length, NUM_PARTS), BLOCK) * BLOCK
    begin = part * share
    end = tl.minimum(begin + share, length)
    member = tl.arange(0, ROWS)
    size = tl.arange(0, SIZE)
    head = kv * GROUP + member
    real = (member < GROUP)[:, None]
    asked = tl.load(queries + (row * NUM_HEADS + head)[:, None] * SIZE + size[None, :], mask=real, other=0.0)
    base = slot * slot_stride + kv * head_stride
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, SIZE), tl.float32)
    for start in range(begin, end, BLOCK):
        place = start + tl.arange(0, BLOCK)
        seen = place < end
        offset = base + place.to(tl.int64)[:, None] * SIZE + size[None, :]
        key = tl.load(keys + offset, mask=seen[:, None], other=0.0)
        score = tl.dot(asked, tl.trans(key), input_precision=PRECISION) * scale
        score = tl.where(seen[None, :], score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, axis=1))
        weight = tl.exp2(score - higher[:, None])
        faded = tl.exp2(peak - higher)
        total = total * faded + tl.sum(weight, axis=1)
        value = tl.load(values + offset, mask=seen[:, None], other=0.0)
        mixed = mixed * faded[:, None] + tl.dot(weight.to(value.dtype), value, input_precision=PRECISION)
        peak = higher
    if NUM_PARTS == 1:
        target = out + (row * NUM_HEADS + head)[:, None] * SIZE + size[None, :]
        tl.store(target, (mixed / total[:, None]).to(out.dtype.element_ty), mask=real)
    else:
        spot = (row * NUM_HEADS + head) * NUM_PARTS + part
        tl.store(out + spot[:, None] * SIZE + size[None, :], mixed, mask=real)
        tl.store(peaks + spot, peak, mask=member < GROUP)
        tl.store(totals + spot, total, mask=member < GROUP)


@triton.jit
def _join_parts(parts, peaks, totals, out, SIZE: tl.constexpr, NUM_PARTS: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, NUM_PARTS)
    size = tl.arange(0, SIZE)
    peak = tl.load(peaks + head * NUM_PARTS + part)
    faded = tl.exp2(peak - tl.max(peak, axis=0))
    total = tl.sum(tl.load(totals + head * NUM_PARTS + part) * faded, axis=0)
    mixed = tl.load(parts + (head * NUM_PARTS + part)[:, None] * SIZE + size[None, :])
    whole = tl.sum(mixed * faded[:, None], axis=0) / total
    tl.store(out + head * SIZE + size, whole.to(out.dtype.element_ty))


def attend_one(
    queries: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, *, num_parts: int
) -> torch.Tensor:
    """One token of each row's sequence over its own cache. Few rows keep a GPU busy only if their tokens are shared
    out among `num_parts` programs each, a power of 2."""
    num_rows, num_heads, head_size = queries.shape
    keys, values = cache[0], cache[1]
    group = num_heads // keys.shape[1]
    out = torch.empty_like(queries)
    split = num_parts > 1
    parts = out.new_empty(num_rows, num_heads, num_parts, head_size, dtype=torch.float32) if split else out
    told = queries.new_empty(2, num_rows * num_heads * num_parts if split else 1, dtype=torch.float32)
    _attend_one[(num_rows, keys.shape[1], num_parts)](
        queries, keys, values, slots, positions, parts, told[0], told[1], keys.stride(0), keys.stride(1),
        _scale(head_size),
        NUM_HEADS=num_heads, GROUP=group, ROWS=max(MIN_DOT, triton.next_power_of_2(group)), SIZE=head_size,
        BLOCK=64 if head_size <= 128 else 32, NUM_PARTS=num_parts, PRECISION=_precision(queries), num_warps=4,
        num_stages=3,
    )  # fmt: skip
    if split:
        _join_parts[(num_rows * num_heads,)](
            parts, told[0], told[1], out, SIZE=head_size, NUM_PARTS=num_parts, num_warps=1
        )
    return out


@triton.jit
def _attend_prompts(
    queries, keys, values, blocks, out, slot_stride, head_stride, scale,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(blocks + block * 4).to(tl.int64)
    first_row = tl.load(blocks + block * 4 + 1).to(tl.int64)
    first_place = tl.load(blocks + block * 4 + 2)
    num = tl.load(blocks + block * 4 + 3)
    if num > 0:
        number = tl.arange(0, ROWS)
        size = tl.arange(0, SIZE)
        real = (number < num)[:, None]
        source = ((first_row + number) * NUM_HEADS + head)[:, None] * SIZE + size[None, :]
        asked = tl.load(queries + source, mask=real, other=0.0)
        own = first_place + number
        end = first_place + num
        base = slot * slot_stride + (head // GROUP) * head_stride
        peak = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        mixed = tl.zeros((ROWS, SIZE), tl.float32)
        for start in range(0, end, BLOCK):
            place = start + tl.arange(0, BLOCK)
            there = (place < end)[:, None]
            offset = base + place.to(tl.int64)[:, None] * SIZE + size[None, :]
            key = tl.load(keys + offset, mask=there, other=0.0)
            score = tl.dot(asked, tl.trans(key), input_precision=PRECISION) * scale
            score = tl.where(place[None, :] <= own[:, None], score, float("-inf"))
            higher = tl.maximum(peak, tl.max(score, axis=1))
            weight = tl.exp2(score - higher[:, None])
            faded = tl.exp2(peak - higher)
            total = total * faded + tl.sum(weight, axis=1)
            value = tl.load(values + offset, mask=there, other=0.0)
            mixed = mixed * faded[:, None] + tl.dot(weight.to(value.dtype), value, input_precision=PRECISION)
            peak = higher
        tl.store(out + source, (mixed / total[:, None]).to(out.dtype.element_ty), mask=real)


def attend_prompts(queries: torch.Tensor, cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Pieces of prompts over their slots' caches, which hold the pieces too. Each of `blocks` is (slot, first row, its
    position, how many rows): at most QUERY_ROWS of one piece; with 0 rows it is padding."""
    _, num_heads, head_size = queries.shape
    keys, values = cache[0], cache[1]
    out = torch.empty_like(queries)
    wide = head_size > 128
    _attend_prompts[(blocks.shape[0], num_heads)](
        queries, keys, values, blocks, out, keys.stride(0), keys.stride(1), _scale(head_size),
        NUM_HEADS=num_heads, GROUP=num_heads // keys.shape[1], SIZE=head_size, ROWS=QUERY_ROWS,
        BLOCK=32 if wide else 64, PRECISION=_precision(queries), num_warps=8 if wide else 4, num_stages=2,
    )  # fmt: skip
    return out


def _scale(head_size: int) -> float:
    """Of scores whose powers are taken of 2."""
    return 1.4426950408889634 / math.sqrt(head_size)


def _precision(like: torch.Tensor) -> str:
    return "ieee" if like.dtype is torch.float32 else "tf32"


# ---------------------------------------------------------------- sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """What the device knows of the sequence in each slot."""

    tokens: torch.Tensor
    """The last one, which has not been through the model."""
    positions: torch.Tensor
    """Where it stands."""
    seeds: torch.Tensor
    """`sampling.mixed` of the request's."""
    temperatures: torch.Tensor
    last_position: int
    """Sequences that nobody waits for any more stay there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRing:
    """What was drawn, step by row, and which step is next to be written."""

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


def begin(slots: torch.Tensor, state: SlotState, told: SampledRing) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of every slot and where it stands; what is drawn from now on is the next step's."""
    ids, positions = torch.empty_like(slots), torch.empty_like(slots)
    num = slots.shape[0]
    _begin[(1,)](
        slots, state.tokens, state.positions, told.counter, ids, positions, num, BLOCK=triton.next_power_of_2(num)
    )
    return ids, positions


@triton.jit
def _mixed(bits):
    """`sampling.mixed`."""
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
    logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, state: SlotState, told: SampledRing
) -> None:
    """One token per row of float32 `logits`, into the slot's `state` and into `told`. `positions` are the rows' own:
    what is drawn stands one after. A row whose logits are no numbers has a logprob that is none."""
    num_rows, vocab = logits.shape
    block = min(DRAW_BLOCK, triton.next_power_of_2(vocab))
    num_blocks = triton.cdiv(vocab, block)
    sums = logits.new_empty(2, num_rows, num_blocks)
    _sum_up[(num_rows, num_blocks)](
        logits, slots, state.temperatures, sums[0], sums[1], vocab, num_blocks, BLOCK=block, num_warps=8
    )
    _draw[(num_rows,)](
        logits, slots, positions, state.seeds, state.temperatures, sums[0], sums[1], state.tokens, state.positions,
        told.counter, told.tokens, told.logprobs, vocab, num_blocks, told.tokens.stride(0), state.last_position,
        BLOCKS=triton.next_power_of_2(num_blocks), BLOCK=block, num_warps=8,
    )  # fmt: skip
