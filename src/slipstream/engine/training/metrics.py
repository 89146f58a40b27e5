"""The metrics of an update, collected over its micro-batches. `docs/learning.md` explains each."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from slipstream.engine.training.losses import TokenLosses, ratio_of
from slipstream.engine.training.microbatches import MicroBatch


@dataclass(slots=True)
class UpdateMetrics:
    """A few numbers for every trained token in every optimiser step, on the CPU."""

    _kept: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    _losses: list[float] = field(default_factory=list)
    _grad_norms: list[float] = field(default_factory=list)

    @property
    def num_steps(self) -> int:
        return len(self._losses)

    def add(self, other: UpdateMetrics) -> None:
        """Add what another collected."""
        for name, values in other._kept.items():
            self._kept.setdefault(name, []).extend(values)
        self._losses += other._losses
        self._grad_norms += other._grad_norms

    def add_step(self, loss: float, grad_norm: float) -> None:
        self._losses.append(loss)
        self._grad_norms.append(grad_norm)

    def add_tokens(
        self,
        terms: TokenLosses,
        batch: MicroBatch,
        *,
        current: torch.Tensor,
        proximal: torch.Tensor,
        entropy: torch.Tensor,
    ) -> None:
        seen = {
            "ratio": terms.ratio,
            "weight": terms.weight,
            "low": terms.clipped_low,
            "high": terms.clipped_high,
            "masked": terms.masked,
            "moved": current - batch.behaviour,
            "sampled": proximal - batch.behaviour,
            "is_current": batch.is_current,
            "entropy": entropy,
            **({} if terms.kl is None else {"reference_kl": terms.kl}),
        }
        for name, values in seen.items():
            self._kept.setdefault(name, []).append(values.detach().double().cpu())

    def metrics(self, *, weight_cap: float | None) -> dict[str, float]:
        """Means are over tokens, and over all optimiser steps. Only after a step."""
        kept = {name: torch.cat(values) for name, values in self._kept.items()}
        ratio, weight, moved, sampled = kept["ratio"], kept["weight"], kept["moved"], kept["sampled"].abs()
        moved_ratio = ratio_of(moved)
        values = {
            "entropy": kept["entropy"].mean(),
            "ratio_mean": ratio.mean(),
            "ratio_max": ratio.max(),
            "ratio_min": ratio.min(),
            "clip_low": kept["low"].mean(),
            "clip_high": kept["high"].mean(),
            "weight_mean": weight.mean(),
            "weight_max": weight.max(),
            "weight_min": weight.min(),
            "weight_capped": (weight > (weight_cap or float("inf"))).double().mean(),
            "weight_masked": kept["masked"].mean(),
            "ess": moved_ratio.sum() ** 2 / (len(moved_ratio) * (moved_ratio**2).sum()),
            "kl_k1": -moved.mean(),
            "kl_k3": (moved_ratio - 1 - moved).mean(),
        }
        if "reference_kl" in kept:
            values["reference_kl"] = kept["reference_kl"].mean()
        is_current = kept["is_current"].bool()
        for name, chosen in (("engine_diff", sampled[is_current]), ("policy_drift", sampled[~is_current])):
            if len(chosen):
                values |= {f"{name}_mean": chosen.mean(), f"{name}_max": chosen.max()}
        return {
            "learn/loss": sum(self._losses) / len(self._losses),
            "learn/grad_norm": sum(self._grad_norms) / len(self._grad_norms),
            **{f"learn/{name}": float(value) for name, value in values.items()},
        }
