"""Triton kernels of the forward pass, and a function that launches each.

Input and output: tensors on one device, whose addresses may be recorded in a CUDA graph. Rows are tokens; each has a
slot of the cache and a position in it. The cache of a layer has the shape [slots, key heads, positions, head size].
Invariants: attention reads only the slot's own tokens up to the row's position; sums are float32 whatever the dtype.

The torch operations of `decoder` are the reference; tests compare the two, on a CPU through Triton's interpreter.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

QUERY_ROWS = 64
"""Prompt tokens per program of `attend_prompts`."""
MIN_DOT = 16
"""Rows that a product on tensor cores needs."""


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
    """`hidden += added`; returns the norm of the sum."""
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
    """Rotate queries and keys by their positions and write keys and values to the cache; returns the queries.

    A row of `joined` holds the query, key and value heads one after the other; `cache` is one layer's keys and values;
    `table` comes from `rope.rope_table`; `norms` is Qwen3's norm weight for each query and key head.
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
    """Attention of one token per sequence over its own cache. To fill a GPU with few rows, each row's cache is split
    among `num_parts` programs, a power of 2."""
    num_rows, num_heads, head_size = queries.shape
    keys, values = cache[0], cache[1]
    group = num_heads // keys.shape[1]
    out = torch.empty_like(queries)
    split = num_parts > 1
    parts = out.new_empty(num_rows, num_heads, num_parts, head_size, dtype=torch.float32) if split else out
    partial = queries.new_empty(2, num_rows * num_heads * num_parts if split else 1, dtype=torch.float32)
    _attend_one[(num_rows, keys.shape[1], num_parts)](
        queries, keys, values, slots, positions, parts, partial[0], partial[1], keys.stride(0), keys.stride(1),
        _scale(head_size),
        NUM_HEADS=num_heads, GROUP=group, ROWS=max(MIN_DOT, triton.next_power_of_2(group)), SIZE=head_size,
        BLOCK=64 if head_size <= 128 else 32, NUM_PARTS=num_parts, PRECISION=_precision(queries), num_warps=4,
        num_stages=3,
    )  # fmt: skip
    if split:
        _join_parts[(num_rows * num_heads,)](
            parts, partial[0], partial[1], out, SIZE=head_size, NUM_PARTS=num_parts, num_warps=1
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
    """Attention of prompt pieces over their slots' caches, which already hold the pieces. Each of `blocks` is (slot,
    first row, its position, number of rows): at most QUERY_ROWS rows of one piece; 0 rows is padding."""
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
    """The scale of scores that are exponentiated with base 2."""
    return 1.4426950408889634 / math.sqrt(head_size)


def _precision(like: torch.Tensor) -> str:
    return "ieee" if like.dtype is torch.float32 else "tf32"
