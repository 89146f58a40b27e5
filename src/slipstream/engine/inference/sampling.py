"""Drawing a token from logits, with the exact logprob of the distribution it was drawn from.

Input: logits and, per row, temperature, top-p and one uniform number. Output: per row a token and its logprob.
Invariants: the distribution is softmax(logits / temperature) in float32, and the logprob is its own. The uniform
number of a token depends on the seed of its request and its position in the sequence alone, so what else is in the
batch changes nothing. At temperature 0 the likeliest token is taken; that row, and one whose top-p is below 1, has no
logprob, since none could be trained on.

One uniform number per row is enough, by inverting the cumulative distribution: the vocabulary is summed up in blocks,
the block is found first and the token within it second, both in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as functional

BLOCK = 256
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How one row's token is drawn."""

    temperature: float
    top_p: float
    uniform: float

    @property
    def exact(self) -> bool:
        """Whether its logprob can be given."""
        return self.temperature > 0.0 and self.top_p >= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """How the next tokens of a slot are drawn by the device."""

    slot: int
    seed: int
    temperature: float
    nucleus: Draw | None = None
    """The next token is drawn by the host, from its likeliest tokens alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    token: int
    logprob: float | None
    """None where it would not be that of what was sampled from."""
    broken: bool
    """Whether the logits were not numbers."""


def uniform_of(seed: int, position: int) -> float:
    """A number above 0 and below 1, the same for the same seed and position on every machine."""
    bits = mixed(mixed(seed & _MASK) ^ mixed((position + 1) * 0xD1342543DE82EF95 & _MASK))
    return ((bits >> 12) + 0.5) * 2.0**-52


def draw(logits: torch.Tensor, draws: Sequence[Draw]) -> list[Drawn]:
    """One token per row of `logits`, which is overwritten: a copy of so much memory costs more than the rest."""
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
    told = torch.stack((tokens.double(), logprobs), dim=1).tolist()
    return [
        Drawn(token=int(token), logprob=logprob if one.exact else None, broken=not logprob < 1.0)
        for one, (token, logprob) in zip(draws, told, strict=True)
    ]


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first token at which the cumulative weight exceeds that share of the total, and the total."""
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
    """Per row the first place above the bound; where rounding leaves none, the last that has weight."""
    bounds = torch.minimum(bounds, torch.nextafter(reached[:, -1], torch.zeros_like(bounds)))
    return torch.searchsorted(reached, bounds[:, None], right=True)[:, 0].clamp(max=reached.shape[1] - 1)


def _nucleus(weights: torch.Tensor, top_p: float) -> torch.Tensor:
    """The likeliest tokens that together reach `top_p`; the others weigh nothing."""
    ordered, places = weights.double().sort(descending=True, stable=True)
    before = ordered.cumsum(0) - ordered
    kept = before < top_p * ordered.sum()
    return torch.zeros_like(weights).index_copy_(0, places[kept], weights[places[kept]])


def mixed(bits: int) -> int:
    """The finaliser of splitmix64: every bit of the input changes half the bits of the output."""
    bits = (bits + 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)
