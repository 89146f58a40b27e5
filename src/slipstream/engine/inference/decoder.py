"""The forward pass of Llama, Qwen2 and Qwen3 over a cache of slots.

Input: pieces of sequences, each with its slot and position. Output: the logits after the last token of the requested
pieces; the keys and values of all tokens are written to the cache.
Invariants: attention reads only the slot's own tokens; weights change only in `load_weights`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as functional

from slipstream.engine.inference.plan import Piece, Span, one_span, spans_of
from slipstream.engine.model.layers import Linear, rms_norm
from slipstream.engine.model.rope import rope_table, rotate
from slipstream.engine.model.spec import ModelSpec
from slipstream.errors import ConfigError


class Layer:
    """One transformer block's weights."""

    def __init__(self, spec: ModelSpec, like: torch.Tensor) -> None:
        heads, kv_heads, size = spec.num_heads, spec.num_kv_heads, spec.head_size
        self.qkv = Linear((heads + 2 * kv_heads) * size, spec.hidden_size, bias=spec.qkv_bias, like=like)
        self.output = Linear(spec.hidden_size, heads * size, bias=spec.output_bias, like=like)
        self.gate_up = Linear(2 * spec.inner_size, spec.hidden_size, bias=spec.mlp_bias, like=like)
        self.down = Linear(spec.hidden_size, spec.inner_size, bias=spec.mlp_bias, like=like)
        self.attention_norm = like.new_zeros(spec.hidden_size)
        self.mlp_norm = like.new_zeros(spec.hidden_size)
        self.head_norms = like.new_zeros(heads + kv_heads, size) if spec.head_norms else None
        """One row per query head, then one per key head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a named weight is copied to: rows of a linear layer, or a tensor of its own."""

    shape: tuple[int, ...]
    linear: Linear | None = None
    first_row: int = 0
    tensor: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """Inputs shared by all layers of one pass."""

    slots: torch.Tensor
    positions: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    spans: list[tuple[Span, torch.Tensor | slice, torch.Tensor | None]]
    """Rows that attend together, their slots, and a mask where their lengths differ."""
    chunks: list[tuple[Piece, int, torch.Tensor | None]]
    """A piece of a prompt, its first row, and its mask unless it starts at position 0."""


class Decoder:
    def __init__(
        self, spec: ModelSpec, *, num_slots: int, context_tokens: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.spec = spec
        like = torch.empty(0, device=device, dtype=dtype)
        self.device, self.dtype = device, dtype
        self.gathers = device.type != "cpu"
        """Whether rows of arbitrary slots share one attention call: see `plan`."""
        self.embedding = like.new_zeros(spec.vocab_size, spec.hidden_size)
        self.head = Linear(spec.vocab_size, spec.hidden_size, bias=False, like=like)
        self.final_norm = like.new_zeros(spec.hidden_size)
        self.layers = [Layer(spec, like) for _ in range(spec.num_layers)]
        self.cos, self.sin = rope_table(spec.rope, spec.head_size, context_tokens, device=device, dtype=dtype)
        self.targets = _targets(spec, self.embedding, self.head, self.final_norm, self.layers)
        shape = (spec.num_layers, 2, num_slots, spec.num_kv_heads, context_tokens, spec.head_size)
        try:
            self.cache = torch.zeros(shape, device=device, dtype=dtype)  # padding rows read it: no NaN allowed
        except RuntimeError:
            num_mb = 2 * spec.num_layers * num_slots * spec.num_kv_heads * context_tokens * spec.head_size
            num_mb = num_mb * like.element_size() // 2**20
            raise ConfigError(
                f"not enough memory for a cache of {num_slots} slots of {context_tokens} tokens ({num_mb} MB): "
                "lower num_slots or context_tokens"
            ) from None

    # ---------------------------------------------------------------- weights

    def load_weights(self, named: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Copy tensors into the weights they name; returns the names. If any of them is wrong, nothing changes."""
        tied_head = "lm_head.weight" if self.spec.tied else None
        pairs = [(name, value) for name, value in named if not name.endswith("rotary_emb.inv_freq")]
        if tied_head and any(name == "model.embed_tokens.weight" for name, _ in pairs):
            pairs = [(name, value) for name, value in pairs if name != tied_head]
        for name, value in pairs:
            target = self.targets.get(name)
            if target is None:
                raise ConfigError(f"the model has no weight {name!r}: use Hugging Face names")
            if tuple(value.shape) != target.shape:
                raise ConfigError(
                    f"{name} has shape {tuple(value.shape)}, not {target.shape}: the weights are of another model"
                )
        rows: defaultdict[Linear, list[tuple[int, torch.Tensor]]] = defaultdict(list)
        for name, value in pairs:
            target = self.targets[name]
            if target.tensor is not None:
                target.tensor.copy_(value)
            if target.linear is not None:
                rows[target.linear].append((target.first_row, value))
        for linear, parts in rows.items():
            linear.write_rows(parts)
        return {name for name, _ in pairs}

    # ---------------------------------------------------------------- cache

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the cache of the first tokens of slot `source` to slot `target`."""
        self.cache[:, :, target, :, :num_tokens].copy_(self.cache[:, :, source, :, :num_tokens])

    def clear(self, slot: int) -> None:
        """Zero a slot that holds NaN: even masked, it would spread to the rows computed with it."""
        self.cache[:, :, slot].zero_()

    # ---------------------------------------------------------------- forward

    def forward(
        self, singles: Sequence[Piece], chunks: Sequence[Piece] = (), *, outputs: Sequence[int], separate: bool = False
    ) -> torch.Tensor:
        """Logits after the pieces whose indices are in `outputs`, counting `singles` first and then `chunks`.

        `singles` have one token each and are sorted by slot. `separate`: see `plan.spans_of`.
        """
        pieces = [*singles, *chunks]
        spans = one_span(singles) if self.gathers and not separate else spans_of(singles, separate=separate)
        step = self._step(singles, chunks, spans)
        ids = self._tensor([token for piece in pieces for token in piece.ids])
        hidden = functional.embedding(ids, self.embedding)
        for layer, cache in zip(self.layers, self.cache, strict=True):
            hidden = self._block(layer, cache, hidden, step)
        if len(outputs) != hidden.shape[0]:
            lasts = _last_rows(pieces)
            hidden = hidden[self._tensor([lasts[number] for number in outputs])]
        if not outputs:
            return hidden.new_empty(0, self.spec.vocab_size)
        return self.head(rms_norm(hidden, self.final_norm, self.spec.norm_eps))

    def _block(self, layer: Layer, cache: torch.Tensor, hidden: torch.Tensor, step: _Step) -> torch.Tensor:
        spec = self.spec
        joined = layer.qkv(rms_norm(hidden, layer.attention_norm, spec.norm_eps))
        heads = joined.view(-1, spec.num_heads + 2 * spec.num_kv_heads, spec.head_size)
        rotated = heads[:, : spec.num_heads + spec.num_kv_heads]
        if layer.head_norms is not None:
            rotated = rms_norm(rotated, layer.head_norms, spec.norm_eps)
        rotated = rotate(rotated, step.cos, step.sin)
        queries, keys = rotated[:, : spec.num_heads], rotated[:, spec.num_heads :]
        values = heads[:, spec.num_heads + spec.num_kv_heads :]
        cache[0][step.slots, :, step.positions] = keys
        cache[1][step.slots, :, step.positions] = values
        hidden = hidden + layer.output(self._attend(cache, queries, step))
        gate, up = layer.gate_up(rms_norm(hidden, layer.mlp_norm, spec.norm_eps)).chunk(2, dim=-1)
        return hidden + layer.down(functional.silu(gate) * up)

    def _attend(self, cache: torch.Tensor, queries: torch.Tensor, step: _Step) -> torch.Tensor:
        """Grouped-query attention: query heads that share a key head are rows of one matrix, so keys are not copied."""
        spec = self.spec
        groups = spec.num_heads // spec.num_kv_heads
        grouped = queries.view(-1, spec.num_kv_heads, groups, spec.head_size)
        attended: list[torch.Tensor] = []
        for span, slots, mask in step.spans:
            row, num, longest = span.first_row, len(span.lengths), max(span.lengths)
            keys, values = cache[:, :, :, :longest][:, slots]
            mixed = functional.scaled_dot_product_attention(grouped[row : row + num], keys, values, attn_mask=mask)
            attended.append(mixed.reshape(num, -1))
        for piece, row, mask in step.chunks:
            num = len(piece.ids)
            keys, values = cache[:, piece.slot, :, None, : piece.end].expand(2, -1, groups, -1, -1)
            own = grouped[row : row + num].permute(1, 2, 0, 3)
            mixed = functional.scaled_dot_product_attention(own, keys, values, attn_mask=mask, is_causal=mask is None)
            attended.append(mixed.permute(2, 0, 1, 3).reshape(num, -1))
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    def _step(self, singles: Sequence[Piece], chunks: Sequence[Piece], spans: Sequence[Span]) -> _Step:
        pieces = [*singles, *chunks]
        positions = self._tensor([place for piece in pieces for place in range(piece.start, piece.end)])
        placed = []
        row = len(singles)
        for piece in chunks:
            placed.append((piece, row, self._chunk_mask(piece)))
            row += len(piece.ids)
        return _Step(
            slots=self._tensor([piece.slot for piece in pieces for _ in piece.ids]),
            positions=positions,
            cos=self.cos[positions].unsqueeze(1),
            sin=self.sin[positions].unsqueeze(1),
            spans=[(span, self._span_slots(span), self._span_mask(span)) for span in spans],
            chunks=placed,
        )

    def _span_slots(self, span: Span) -> torch.Tensor | slice:
        if span.slots is None:
            return slice(span.first_slot, span.first_slot + len(span.lengths))
        return self._tensor(span.slots)

    def _span_mask(self, span: Span) -> torch.Tensor | None:
        if not span.ragged:
            return None
        lengths = self._tensor(span.lengths)
        seen = torch.arange(max(span.lengths), device=self.device) < lengths[:, None]
        return self._additive(seen)[:, None, None]

    def _chunk_mask(self, piece: Piece) -> torch.Tensor | None:
        if piece.start == 0:
            return None
        own = torch.arange(piece.start, piece.end, device=self.device)
        return self._additive(torch.arange(piece.end, device=self.device) <= own[:, None])

    def _additive(self, seen: torch.Tensor) -> torch.Tensor:
        return torch.zeros(seen.shape, device=self.device, dtype=self.dtype).masked_fill_(~seen, float("-inf"))

    def _tensor(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.device)


def _last_rows(pieces: Sequence[Piece]) -> list[int]:
    lasts, row = [], -1
    for piece in pieces:
        row += len(piece.ids)
        lasts.append(row)
    return lasts


def _targets(
    spec: ModelSpec, embedding: torch.Tensor, head: Linear, final_norm: torch.Tensor, layers: Sequence[Layer]
) -> dict[str, Target]:
    """Every Hugging Face weight name and its target. A tied embedding is also copied to the output layer."""
    shape = (spec.vocab_size, spec.hidden_size)
    both = Target(shape=shape, tensor=embedding, linear=head)
    targets = {
        "model.embed_tokens.weight": both if spec.tied else Target(shape=shape, tensor=embedding),
        "lm_head.weight": both if spec.tied else Target(shape=shape, linear=head),
        "model.norm.weight": _vector(final_norm),
    }
    for number, layer in enumerate(layers):
        for name, target in _layer_targets(spec, layer).items():
            targets[f"model.layers.{number}.{name}"] = target
    return targets


def _layer_targets(spec: ModelSpec, layer: Layer) -> dict[str, Target]:
    query_rows, key_rows = spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size
    parts = (
        ("self_attn.q_proj", layer.qkv, 0, query_rows, spec.hidden_size),
        ("self_attn.k_proj", layer.qkv, query_rows, key_rows, spec.hidden_size),
        ("self_attn.v_proj", layer.qkv, query_rows + key_rows, key_rows, spec.hidden_size),
        ("self_attn.o_proj", layer.output, 0, spec.hidden_size, query_rows),
        ("mlp.gate_proj", layer.gate_up, 0, spec.inner_size, spec.hidden_size),
        ("mlp.up_proj", layer.gate_up, spec.inner_size, spec.inner_size, spec.hidden_size),
        ("mlp.down_proj", layer.down, 0, spec.hidden_size, spec.inner_size),
    )
    targets = {
        "input_layernorm.weight": _vector(layer.attention_norm),
        "post_attention_layernorm.weight": _vector(layer.mlp_norm),
    }
    for name, linear, first_row, num_rows, num_columns in parts:
        targets[f"{name}.weight"] = Target(shape=(num_rows, num_columns), linear=linear, first_row=first_row)
        if linear.bias is not None:
            targets[f"{name}.bias"] = _vector(linear.bias[first_row : first_row + num_rows])
    if layer.head_norms is not None:
        size = (spec.head_size,)
        targets["self_attn.q_norm.weight"] = Target(shape=size, tensor=layer.head_norms[: spec.num_heads])
        targets["self_attn.k_norm.weight"] = Target(shape=size, tensor=layer.head_norms[spec.num_heads :])
    return targets


def _vector(tensor: torch.Tensor) -> Target:
    return Target(shape=tuple(tensor.shape), tensor=tensor)
