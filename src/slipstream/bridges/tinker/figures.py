"""The metrics of an update, from the logprobs that the server's passes return. Pure.

They have the names and the meaning of the embedded learner's (`docs/learning.md`), where both exist.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.bridges.tinker.data import Datum
from slipstream.bridges.tinker.protocols import Loss, PassResult

_MAX_LOG_RATIO = 60.0
"""Larger ratios are capped, so that metrics stay finite."""


@dataclass(slots=True)
class UpdateFigures:
    """Collected over every trained token and all optimiser steps of an update."""

    loss: Loss
    version: int | None = None
    """The policy's at the update; None: every token counts as sampled by it."""
    _moved: list[float] = field(default_factory=list)
    """The logprob as it is now, less the one it was sampled with."""
    _advantages: list[float] = field(default_factory=list)
    _first: list[float] = field(default_factory=list)
    """`_moved` of the first optimiser step, before anything was learnt: it should be 0 for tokens that the current
    policy sampled."""
    _is_current: list[bool] = field(default_factory=list)
    """Of the same tokens, whether it did."""
    _server: dict[str, list[float]] = field(default_factory=dict)
    num_steps: int = 0

    def add(self, datums: Sequence[Datum], result: PassResult, step_metrics: Mapping[str, float]) -> None:
        seen = trained_differences(datums, result)
        self._moved += seen
        self._advantages += [
            advantage
            for datum in datums
            for advantage, weight in zip(datum.advantages, datum.weights, strict=True)
            if weight
        ]
        if not self.num_steps:
            self._first = seen
            self._is_current = [
                self.version is None or datum.versions is None or datum.versions[place] == self.version
                for datum in datums
                for place, weight in enumerate(datum.weights)
                if weight
            ]
        for name, value in {**result.metrics, **step_metrics}.items():
            self._server.setdefault(name, []).append(float(value))
        self.num_steps += 1

    def metrics(self) -> dict[str, float]:
        """Means are over tokens, and over all optimiser steps. Only after a step."""
        num = len(self._moved)
        ratios = [math.exp(min(moved, _MAX_LOG_RATIO)) for moved in self._moved]
        low = self.loss.config.get("clip_low_threshold", 0.0)
        high = self.loss.config.get("clip_high_threshold", math.inf)
        gains = [
            min(ratio * advantage, min(max(ratio, low), high) * advantage)
            for ratio, advantage in zip(ratios, self._advantages, strict=True)
        ]
        figures = {
            "loss": -sum(gains) / num,
            "ratio_mean": sum(ratios) / num,
            "ratio_max": max(ratios),
            "ratio_min": min(ratios),
            "clip_low": sum(ratio < low for ratio in ratios) / num,
            "clip_high": sum(ratio > high for ratio in ratios) / num,
            "ess": sum(ratios) ** 2 / (num * sum(ratio**2 for ratio in ratios)),
            "kl_k1": -sum(self._moved) / num,
            "kl_k3": sum(ratio - 1 - moved for ratio, moved in zip(ratios, self._moved, strict=True)) / num,
            **self._differences(),
        }
        server = {name: sum(values) / len(values) for name, values in self._server.items()}
        norms = [value for name, value in server.items() if name.split("/")[-1].split(":")[0] == "grad_norm"]
        return {
            **{f"learn/{name}": value for name, value in figures.items()},
            **({"learn/grad_norm": norms[0]} if norms else {}),
            **{f"tinker/{name}": value for name, value in server.items()},
        }

    def _differences(self) -> dict[str, float]:
        """How far sampled logprobs were from the server's before the first step, separately for current and older
        tokens."""
        found: dict[str, float] = {}
        for name, is_current in (("engine_diff", True), ("policy_drift", False)):
            pairs = zip(self._first, self._is_current, strict=True)
            chosen = [abs(moved) for moved, current in pairs if current is is_current]
            if chosen:
                found |= {f"{name}_mean": sum(chosen) / len(chosen), f"{name}_max": max(chosen)}
        return found


def trained_differences(datums: Sequence[Datum], result: PassResult) -> list[float]:
    """For every trained token, its logprob in a pass less the one it was sampled with."""
    return [
        now - then
        for datum, logprobs in zip(datums, result.logprobs, strict=True)
        for now, then, weight in zip(logprobs, datum.logprobs, datum.weights, strict=True)
        if weight
    ]


def mean_cost(datums: Sequence[Datum], result: PassResult) -> float:
    """Of demonstrations, in nats per token."""
    costs = [
        -now
        for datum, logprobs in zip(datums, result.logprobs, strict=True)
        for now, weight in zip(logprobs, datum.weights, strict=True)
        if weight
    ]
    return sum(costs) / len(costs)
