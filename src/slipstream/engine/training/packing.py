"""Attention over rows packed one after another into a single line of tokens, without padding.

Invariants: a token attends only to what comes before it in its own row. Where there is no kernel for that, on a CPU or
in float32, rows are padded instead: `can_pack` says so.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

ATTENTION = "slipstream_packed"
"""The name under which transformers finds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Where rows are in a line of tokens."""

    positions: torch.Tensor
    """Of each token in its row."""
    ends: torch.Tensor
    """Where each row ends, after a 0."""
    longest: int

    @staticmethod
    def of(lengths: torch.Tensor) -> Packed:
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        positions = torch.arange(int(ends[-1])) - ends[:-1].repeat_interleave(lengths)
        return Packed(positions=positions, ends=ends.to(torch.int32), longest=int(lengths.max()))

    def on(self, device: torch.device) -> Packed:
        return Packed(positions=self.positions.to(device), ends=self.ends.to(device), longest=self.longest)

    def arguments(self) -> dict[str, Any]:
        """Arguments of a transformers model besides the ids. It passes all but the first on to `_attend`."""
        return {
            "position_ids": self.positions[None],
            "cu_seq_lens_q": self.ends,
            "cu_seq_lens_k": self.ends,
            "max_length_q": self.longest,
            "max_length_k": self.longest,
        }


def can_pack(device: torch.device, compute: torch.dtype | None) -> bool:
    """Whether there is a kernel for this device and precision."""
    return device.type == "cuda" and compute in (torch.bfloat16, torch.float16) and _kernel() is not None


@cache
def register() -> str:
    """Register the attention with transformers. Returns the name to load a model with."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    attention: Any = AttentionInterface
    masks: Any = AttentionMaskInterface
    attention.register(ATTENTION, _attend)
    masks.register(ATTENTION, lambda *_, **__: None)  # always causal
    return ATTENTION


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int = 0,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """`query` and the others are rows by heads by tokens by size; padded rows use transformers' own attention."""
    if cu_seq_lens_q is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        padded: Any = sdpa_attention_forward
        out: tuple[torch.Tensor, None] = padded(module, query, key, value, None, scaling=scaling)
        return out
    kernel = _kernel()
    assert kernel is not None, "`can_pack` checked that there is one"
    lines = [each[0].transpose(0, 1).to(value.dtype) for each in (query, key, value)]
    if (repeats := query.shape[1] // key.shape[1]) > 1:
        lines[1:] = [each.repeat_interleave(repeats, dim=1) for each in lines[1:]]
    mixed: torch.Tensor = kernel(*lines, cu_seq_lens_q, max_length_q, scaling)
    return mixed[None], None


@cache
def _kernel() -> Any:
    """torch's causal attention over rows of different lengths. It is new, and its arguments have changed."""
    try:
        from torch.nn.attention import varlen
    except ImportError:
        return None
    attend: Any = varlen.varlen_attn
    known = inspect.signature(attend).parameters
    causal: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    if not causal.keys() <= known.keys():
        return None

    def call(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends: torch.Tensor, longest: int, scale: Any
    ) -> torch.Tensor:
        size = query.shape[-1]
        if scale is not None and "scale" not in known:  # it then uses the default
            query = query * (scale * size**0.5)
        scaled: dict[str, Any] = {"scale": scale} if scale is not None and "scale" in known else {}
        mixed: torch.Tensor = attend(query, key, value, ends, ends, longest, longest, **causal, **scaled)
        return mixed

    return call
