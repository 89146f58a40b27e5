"""Samples tokens from logits, with the exact logprob of the distribution each was drawn from.

Input: logits and, per row, temperature, top-p and one uniform number. Output: per row a token and its logprob.
Invariants: the distribution is softmax(logits / temperature) in float32, and the logprob is taken from it. A token's
uniform number depends only on its request's seed and its position, so the rest of the batch changes nothing. At
temperature 0 the likeliest token is taken; such rows, and rows with top-p below 1, have no logprob, since they cannot
be trained on.

Sampling inverts the cumulative distribution, so one uniform number per row is enough: the vocabulary is summed in
blocks; the block is found first and the token within it second, both in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as functional

BLOCK = 256
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawSpec:
    """How to draw one row's token."""

    temperature: float
    top_p: float
    uniform: float

    @property
    def exact(self) -> bool:
        """Whether the token has a logprob."""
        return self.temperature > 0.0 and self.top_p >= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDraw:
    """How the device draws the next tokens of a slot."""

    slot: int
    seed: int
    temperature: float
    nucleus: DrawSpec | None = None
    """With top-p, the host draws the next token instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnToken:
    token: int
    logprob: float | None
    """None if the token was not drawn from the full distribution."""
    broken: bool
    """Whether the logits contain NaN."""


def uniform_for(seed: int, position: int) -> float:
    """A number strictly between 0 and 1, the same for the same seed and position on every machine."""
    bits = splitmix64(splitmix64(seed & _MASK) ^ splitmix64((position + 1) * 0xD1342543DE82EF95 & _MASK))
    return ((bits >> 12) + 0.5) * 2.0**-52


def draw(logits: torch.Tensor, draws: Sequence[DrawSpec]) -> list[DrawnToken]:
    """Draw one token per row of `logits`, which is overwritten: copying it would cost more than everything else."""
    scores = logits.float()
    scores.sub_(scores.amax(dim=-1, keepdim=True))
    if any(one.temperature not in (0.0, 1.0) for one in draws):
        scores.div_(scores.new_tensor([one.temperature or 1.0 for one in draws])[:, None])
    weights = scores.exp_()
    for row, one in enumerate(draws):
        if one.top_p < 1.0 and one.temperature > 0.0:
            weights[row] = _nucleus(weights[row], one.top_p)
    uniforms = torch.tensor([one.uniform for one in draws], dtype=torch.float64).to(weights.device)
    tokens, totals = _invert(weights, uniforms)
    if any(one.temperature == 0.0 for one in draws):
        greedy = torch.tensor([one.temperature == 0.0 for one in draws]).to(weights.device)
        tokens = torch.where(greedy, weights.argmax(dim=-1), tokens)
    logprobs = (weights.gather(1, tokens[:, None])[:, 0].double() / totals).log()
    pairs = torch.stack((tokens.double(), logprobs), dim=1).tolist()
    return [
        DrawnToken(token=int(token), logprob=logprob if one.exact else None, broken=not logprob < 1.0)
        for one, (token, logprob) in zip(draws, pairs, strict=True)
    ]


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first token at which the cumulative weight exceeds `uniforms` times the total, and the total."""
    num_rows, num_tokens = weights.shape
    if num_tokens % BLOCK:
        weights = functional.pad(weights, (0, BLOCK - num_tokens % BLOCK))
    blocks = weights.view(num_rows, -1, BLOCK)
    sums = blocks.sum(dim=-1, dtype=torch.float32).double()
    reached = sums.cumsum(dim=-1)
    totals = reached[:, -1]
    block = _first_above(reached, uniforms * totals)
    rows = torch.arange(num_rows, device=weights.device)
    within = sums[rows, block]
    share = (uniforms * totals - (reached[rows, block] - within)) / within
    inner = blocks[rows, block].double().cumsum(dim=-1)
    place = _first_above(inner, share * inner[:, -1])
    return (block * BLOCK + place).clamp(max=num_tokens - 1), totals


def _first_above(reached: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """Per row the first index above the bound; if rounding leaves none, the last one with weight."""
    bounds = torch.minimum(bounds, torch.nextafter(reached[:, -1], torch.zeros_like(bounds)))
    return torch.searchsorted(reached, bounds[:, None], right=True)[:, 0].clamp(max=reached.shape[1] - 1)


def _nucleus(weights: torch.Tensor, top_p: float) -> torch.Tensor:
    """The weights with all but the likeliest tokens that together reach `top_p` set to zero."""
    ordered, places = weights.double().sort(descending=True, stable=True)
    before = ordered.cumsum(0) - ordered
    kept = before < top_p * ordered.sum()
    return torch.zeros_like(weights).index_copy_(0, places[kept], weights[places[kept]])


def splitmix64(bits: int) -> int:
    """The finaliser of splitmix64: every bit of the input changes half the bits of the output."""
    bits = (bits + 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)
