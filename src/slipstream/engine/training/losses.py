"""The losses, as functions of logprobs. `docs/learning.md` has the formulas.

Three logprobs of the same token are kept apart. Behaviour: what it was sampled with. Proximal: what the policy gave it
when the update began. Current: what the policy gives it now, the only one with a gradient. The clip is on current over
proximal; proximal over behaviour is a weight, cut off at a cap.
Input: trained tokens alone, of whole rows, one after another. Output: a loss for each of them, still to be multiplied
by its row's scale. Invariants: the loss of a batch is the sum over tokens of loss times scale, and a scale depends on
the optimiser step's rows alone, so that it does not matter how rows are dealt out to micro-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from slipstream.engine.training.config import LossConfig

_LARGEST_LOG_RATIO = 20.0
"""Ratios beyond e^20 are taken for e^20, so that none is infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLosses:
    """Per token. All but `loss` are without a gradient."""

    loss: torch.Tensor
    ratio: torch.Tensor
    """Current over proximal, as the clip sees it."""
    weight: torch.Tensor
    """Proximal over behaviour, before the cap."""
    clipped_low: torch.Tensor
    """True where the clip at 1 - clip_low took the gradient away."""
    clipped_high: torch.Tensor


def token_losses(
    *,
    current: torch.Tensor,
    proximal: torch.Tensor,
    behaviour: torch.Tensor,
    advantages: torch.Tensor,
    rows: torch.Tensor,
    config: LossConfig,
) -> TokenLosses:
    """`rows` says which row each token is of, from 0 on; it is read for sequence ratios only."""
    log_ratio = current - proximal.detach()
    log_weight = (proximal - behaviour).detach()
    if config.kind == "sequence":
        log_ratio, log_weight = _row_means(log_ratio, rows), _row_means(log_weight, rows)
    ratio, weight = ratio_of(log_ratio), ratio_of(log_weight)
    capped = weight if config.weight_cap is None else weight.clamp(max=config.weight_cap)
    gain = ratio * advantages
    seen = ratio.detach()
    low, high = torch.zeros_like(seen, dtype=torch.bool), torch.zeros_like(seen, dtype=torch.bool)
    if config.kind != "importance_sampling":
        gain = torch.minimum(gain, ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * advantages)
        low = (seen < 1 - config.clip_low) & (advantages < 0)
        high = (seen > 1 + config.clip_high) & (advantages > 0)
    return TokenLosses(loss=-capped * gain, ratio=seen, weight=weight, clipped_low=low, clipped_high=high)


def row_scales(
    rollouts: Sequence[Hashable],
    num_tokens: Sequence[int],
    normaliser: Literal["token", "sequence", "fixed"],
    *,
    fixed_length: int,
) -> list[float]:
    """What the losses of each row's tokens are multiplied by.

    For each row of one optimiser step: the rollout it is of, and how many trained tokens it has. With T trained tokens
    in the step, N rollouts that have any, and T_r trained tokens in all rows of rollout r:
    `token` is 1 / T, `sequence` is 1 / (N T_r), `fixed` is 1 / (N fixed_length).
    """
    of_rollout: Counter[Hashable] = Counter()
    for rollout, number in zip(rollouts, num_tokens, strict=True):
        of_rollout[rollout] += number
    num_rollouts = sum(number > 0 for number in of_rollout.values())
    if normaliser == "token":
        return [1 / max(1, of_rollout.total())] * len(rollouts)
    if normaliser == "fixed":
        return [1 / (max(1, num_rollouts) * fixed_length)] * len(rollouts)
    return [1 / (max(1, num_rollouts) * max(1, of_rollout[rollout])) for rollout in rollouts]


def ratio_of(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()


def _row_means(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Each value replaced by the mean of its row."""
    num_rows = int(rows.max()) + 1 if len(rows) else 0
    sums = values.new_zeros(num_rows).index_add(0, rows, values)
    counts = values.new_zeros(num_rows).index_add(0, rows, torch.ones_like(values))
    return (sums / counts.clamp(min=1)).index_select(0, rows)
