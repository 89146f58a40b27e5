"""Rotary position embeddings: a table of cosines and sines, one row per position.

Invariants: the table is computed in float32 and cast once. The sines carry the sign of the rotation, so that rotating
a vector x is `x * cos + roll(x, half) * sin`.
"""

from __future__ import annotations

import math

import torch

from slipstream.engine.model.spec import RopeSpec


def rope_table(
    spec: RopeSpec, head_size: int, num_positions: int, *, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines, each of shape [positions, head_size]."""
    frequencies = _frequencies(spec, head_size)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    scale = _attention_factor(spec)
    cos, sin = angles.cos() * scale, angles.sin() * scale
    table = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    return table[0].to(device, dtype), table[1].to(device, dtype)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate [tokens, heads, head_size] by rows of the table, shaped [tokens, 1, head_size]."""
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)


def _frequencies(spec: RopeSpec, head_size: int) -> torch.Tensor:
    """Radians per position for each pair of dimensions."""
    steps = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
    frequencies = 1.0 / (spec.theta**steps)
    if spec.kind == "linear":
        return frequencies / spec.factor
    if spec.kind == "llama3":
        turns = spec.original_context * frequencies / (2 * math.pi)
        ramp = (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
        return _blend(frequencies / spec.factor, frequencies, ramp)
    if spec.kind == "yarn":
        fast, slow = (_dimension(spec, head_size, turns) for turns in (spec.beta_fast, spec.beta_slow))
        low, high = max(math.floor(fast), 0), min(math.ceil(slow), head_size - 1)
        dims = torch.arange(head_size // 2, dtype=torch.float32)
        return _blend(frequencies / spec.factor, frequencies, 1 - (dims - low) / max(high - low, 0.001))
    return frequencies


def _blend(slowed: torch.Tensor, full: torch.Tensor, share_of_full: torch.Tensor) -> torch.Tensor:
    share = share_of_full.clamp(0, 1)
    return slowed * (1 - share) + full * share


def _dimension(spec: RopeSpec, head_size: int, turns: float) -> float:
    """The dimension whose pair rotates `turns` times within the original window."""
    return head_size * math.log(spec.original_context / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))


def _attention_factor(spec: RopeSpec) -> float:
    if spec.kind != "yarn":
        return 1.0
    if spec.attention_factor is not None:
        return spec.attention_factor
    return 0.1 * math.log(spec.factor) + 1.0 if spec.factor > 1 else 1.0
