"""The losses, as functions of logprobs. `docs/learning.md` has the formulas.

Three logprobs of the same token are kept apart. Behaviour: what it was sampled with. Proximal: what the policy gave it
when the update began. Current: what the policy gives it now, the only one with a gradient. The clip is on current over
proximal; proximal over behaviour is an importance weight, capped or masked.
Input: trained tokens alone, of whole rows, one after another. Output: a loss for each of them, still to be multiplied
by its row's scale. Invariants: the loss of a batch is the sum over tokens of loss times scale, and a scale depends on
the optimiser step's rows alone, so it does not matter how rows are split into micro-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from slipstream.engine.training.config import LossConfig

_MAX_LOG_RATIO = 20.0
"""Ratios are capped at e^20, so that none is infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLosses:
    """Per token. All but `loss` are without a gradient."""

    loss: torch.Tensor
    ratio: torch.Tensor
    """Current over proximal, as the clip sees it."""
    weight: torch.Tensor
    """Proximal over behaviour, before the cap or the mask."""
    clipped_low: torch.Tensor
    """True where a clip took the gradient away because the ratio was too small (with `cispo`, bounded it)."""
    clipped_high: torch.Tensor
    masked: torch.Tensor
    """True where the mask on the weight took the policy's gradient away."""
    kl: torch.Tensor | None
    """The divergence from the reference, by the configured estimator; None without a reference."""


def token_losses(
    *,
    current: torch.Tensor,
    proximal: torch.Tensor,
    behaviour: torch.Tensor,
    advantages: torch.Tensor,
    rows: torch.Tensor,
    config: LossConfig,
    reference: torch.Tensor | None = None,
    entropy: torch.Tensor | None = None,
) -> TokenLosses:
    """`rows` says which row each token is of, from 0 on; it is read for ratios and weights of whole rows only.
    `reference` and `entropy` are read for `config.kl` and `config.entropy_bonus`."""
    log_ratio = current - proximal.detach()
    log_weight = (proximal - behaviour).detach()
    if config.kind == "sequence":
        log_ratio = _row_means(log_ratio, rows)
    if config.kind == "sequence" or config.weight_level == "geometric":
        log_weight = _row_means(log_weight, rows)
    elif config.weight_level == "sequence":
        log_weight = _row_sums(log_weight, rows)
    ratio, weight = ratio_of(log_ratio), ratio_of(log_weight)
    used, masked = _used_weight(weight, config)
    gain, low, high = _gain(ratio, current, advantages, config)
    loss = -used * gain
    kl = None
    if reference is not None:
        kl = divergence(current, reference, config.kl_estimator)
        loss = loss + config.kl * kl
    if config.entropy_bonus:
        assert entropy is not None, "an entropy bonus needs the entropy"
        loss = loss - config.entropy_bonus * entropy
    return TokenLosses(
        loss=loss,
        ratio=ratio.detach(),
        weight=weight,
        clipped_low=low,
        clipped_high=high,
        masked=masked,
        kl=None if kl is None else kl.detach(),
    )


def divergence(current: torch.Tensor, reference: torch.Tensor, estimator: Literal["k1", "k2", "k3"]) -> torch.Tensor:
    """Per-token estimates of the divergence of the current policy from the reference, with a gradient."""
    gap = (current - reference.detach()).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    if estimator == "k1":
        return gap
    if estimator == "k2":
        return gap.square() / 2
    return (-gap).exp() - 1 + gap


def _gain(
    ratio: torch.Tensor, current: torch.Tensor, advantages: torch.Tensor, config: LossConfig
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What is to grow, and where a clip was at work: at the low end, at the high end."""
    seen = ratio.detach()
    none = torch.zeros_like(seen, dtype=torch.bool)
    if config.kind == "importance_sampling":
        return ratio * advantages, none, none
    low, high = seen < 1 - config.clip_low, seen > 1 + config.clip_high
    bounded = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    if config.kind == "cispo":
        return bounded.detach() * advantages * current, low, high
    gain = torch.minimum(ratio * advantages, bounded * advantages)
    low, high = low & (advantages < 0), high & (advantages > 0)
    if config.dual_clip is not None:
        floor = config.dual_clip * advantages
        gain = torch.where(advantages < 0, torch.maximum(gain, floor), gain)
        high = high | ((advantages < 0) & (seen > config.dual_clip))
    return gain, low, high


def _used_weight(weight: torch.Tensor, config: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight that the loss is multiplied by, and where it was masked."""
    masked = torch.zeros_like(weight, dtype=torch.bool)
    if config.weight_rule == "cap":
        return (weight if config.weight_cap is None else weight.clamp(max=config.weight_cap)), masked
    if config.weight_cap is not None:
        masked = masked | (weight > config.weight_cap)
    if config.weight_floor is not None:
        masked = masked | (weight < config.weight_floor)
    return weight.masked_fill(masked, 0.0), masked


def row_scales(
    rollouts: Sequence[Hashable],
    num_tokens: Sequence[int],
    normaliser: Literal["token", "sequence", "fixed"],
    *,
    fixed_length: int,
) -> list[float]:
    """The factor for the losses of each row's tokens.

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
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def _row_means(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Each value replaced by the mean of its row."""
    return _row_sums(values, rows) / _row_sums(torch.ones_like(values), rows).clamp(min=1)


def _row_sums(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Each value replaced by the sum of its row."""
    num_rows = int(rows.max()) + 1 if len(rows) else 0
    return values.new_zeros(num_rows).index_add(0, rows, values).index_select(0, rows)
