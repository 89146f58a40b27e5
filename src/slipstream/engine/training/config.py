"""The settings of the embedded learner. Plain data: importing it loads no torch.

Advantages are not the learner's concern: they arrive with every row (`batch.advantages`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from slipstream.errors import ConfigError

PAPER_ESTIMATOR = "leave_one_out"
"""The advantage that goes with `paper_settings`, by its name in `batch.advantages.ESTIMATORS`."""


MIN_RATE, MAX_RATE = 1e-6, 1e-3
SIZE_AT, RATE_AT, RATE_POWER = 135e6, 1e-5, 0.8
"""The learning rate by model size: a power law through what worked, 9e-4 for the quickstart's half a million
parameters and 1e-5 for SmolLM2-135M; it reaches 1e-6, usual for large models, at 2.4 billion."""
LORA_MIN_RATE, LORA_MAX_RATE, LORA_RATE_AT = 1e-5, 1e-2, 1e-4
"""The same for an adapter, which needs about ten times the rate."""


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def rate_factor(
    step: int, num_steps: int, warmup_steps: int, *, decay: Literal["linear", "cosine"] = "linear"
) -> float:
    """The share of the peak learning rate: up to 1 at the end of the warm-up, then down to 0.1 at the last step."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    share = (step - warmup_steps) / max(1, num_steps - 1 - warmup_steps)
    return 1 - 0.9 * (share if decay == "linear" else (1 - math.cos(math.pi * share)) / 2)


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ConfigError(otherwise)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    rank: int = 16
    """The rank of the two matrices that are trained for each layer."""
    alpha: float = 32.0
    """What the adapter adds is scaled by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Names of the layers that get an adapter, such as `q_proj`; empty: every linear layer except the head."""

    def __post_init__(self) -> None:
        _need(self.rank >= 1, f"lora.rank={self.rank}: give 1 or more")
        _need(_positive(self.alpha), f"lora.alpha={self.alpha}: give a number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """The formulas are in `docs/learning.md`."""

    kind: Literal["importance_sampling", "ppo_clip", "sequence", "cispo"] = "importance_sampling"
    """`importance_sampling`: a ratio for each token, unclipped. `ppo_clip`: the same, clipped. `sequence`: one clipped
    ratio for each row, the geometric mean of its tokens' ratios. `cispo`: the clipped ratio is a constant factor, so
    that every token keeps a gradient."""
    clip_low: float = 0.2
    """The ratio is clipped at 1 - clip_low. Sequence ratios hardly move: 0.0003 is a common value for them."""
    clip_high: float = 0.2
    """The ratio is clipped at 1 + clip_high."""
    dual_clip: float | None = None
    """With a negative advantage the loss grows no further once the ratio is above this; a usual value is 3. For
    `ppo_clip` and `sequence`."""
    weight_rule: Literal["cap", "mask"] = "cap"
    """What happens to a token whose weight, proximal over behaviour policy, is out of bounds. `cap`: the weight is
    `weight_cap`. `mask`: the token has no gradient from its advantage."""
    weight_level: Literal["token", "sequence", "geometric"] = "token"
    """Which weight is meant: each token's own, the product over its row, or the geometric mean over its row."""
    weight_cap: float | None = 2.0
    """The upper bound of the weight; null is no bound."""
    weight_floor: float | None = None
    """The lower bound of the weight, for `weight_rule=mask`; null is no bound."""
    entropy_bonus: float = 0.0
    """The factor of a bonus for the entropy of the distribution that each token was sampled from; 0: none."""
    kl: float = 0.0
    """The factor of a penalty on the divergence from the reference, which is the model folder that the run began with;
    0: none. With an adapter the reference is the base; otherwise it is a copy of the weights, 4 bytes for each
    parameter."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the divergence is estimated from the sampled token (`docs/learning.md`). As a loss `k1` has a mean gradient
    of 0."""
    normaliser: Literal["token", "sequence", "fixed"] = "token"
    """`token`: every trained token of the step counts the same. `sequence`: every rollout counts the same, whatever its
    length. `fixed`: every rollout's sum of tokens is divided by `fixed_length`, so that no length is favoured."""
    fixed_length: int = 1_024
    """The divisor of `normaliser=fixed`."""

    def __post_init__(self) -> None:
        kinds = ("importance_sampling", "ppo_clip", "sequence", "cispo")
        _need(self.kind in kinds, f"loss.kind={self.kind}: give one of {', '.join(kinds)}")
        normalisers = ("token", "sequence", "fixed")
        _need(self.normaliser in normalisers, f"loss.normaliser={self.normaliser}: give {', '.join(normalisers)}")
        _need(0 < self.clip_low <= 1, f"loss.clip_low={self.clip_low}: give a number above 0 and at most 1")
        _need(_positive(self.clip_high), f"loss.clip_high={self.clip_high}: give a number above 0")
        for name in ("weight_cap", "weight_floor"):
            bound = getattr(self, name)
            _need(bound is None or _positive(bound), f"loss.{name}={bound}: give a number above 0, or null")
        for name, choices in (
            ("weight_rule", ("cap", "mask")),
            ("weight_level", ("token", "sequence", "geometric")),
            ("kl_estimator", ("k1", "k2", "k3")),
        ):
            chosen = getattr(self, name)
            _need(chosen in choices, f"loss.{name}={chosen}: give {', '.join(choices)}")
        floor, cap = self.weight_floor, self.weight_cap
        _need(
            floor is None or self.weight_rule == "mask",
            f"loss.weight_floor={floor}: only loss.weight_rule=mask has a lower bound, so set that or give null",
        )
        _need(
            floor is None or cap is None or floor < cap,
            f"loss.weight_floor={floor}: give less than loss.weight_cap={cap}",
        )
        dual = self.dual_clip
        _need(
            dual is None or (math.isfinite(dual) and dual > 1 + self.clip_high),
            f"loss.dual_clip={dual}: give more than 1 + clip_high, or null",
        )
        _need(
            dual is None or self.kind in ("ppo_clip", "sequence"),
            f"loss.dual_clip={dual}: loss.kind={self.kind} has no such clip, so give null, or loss.kind=ppo_clip",
        )
        for name in ("entropy_bonus", "kl"):
            factor = getattr(self, name)
            _need(math.isfinite(factor) and factor >= 0, f"loss.{name}={factor}: give 0 or more")
        _need(self.fixed_length >= 1, f"loss.fixed_length={self.fixed_length}: give 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """By default one optimiser step for each batch, on policy. A training run begins with `run_settings`."""

    method: Literal["full", "lora"] = "full"
    """`full`: all weights. `lora`: an adapter."""
    lora: LoraConfig = LoraConfig()
    """Read only if the method is `lora`."""
    loss: LossConfig = LossConfig()
    temperature: float = 1.0
    """The temperature that the batches were sampled with: logits are divided by it. `model.temperature` decides it; any
    other value except the default is refused."""
    learning_rate: float | None = None
    """The peak learning rate; null: by the size of the model, since small ones need far larger steps: 9e-4 for half a
    million parameters, 1e-5 for 135 million, 1e-6 from about 2.4 billion on, or if the size is not known. An adapter
    gets ten times that."""
    warmup_steps: int = 0
    """The learning rate rises to its peak over this many optimiser steps; 0: it starts there."""
    decay_steps: int = 0
    """It then falls to a tenth at this many optimiser steps from the start, and stays there; 0: it does not fall."""
    decay: Literal["linear", "cosine"] = "linear"
    """How the learning rate falls."""
    betas: tuple[float, float] = (0.9, 0.999)
    """The decay rates of AdamW's two running means, each from 0 to below 1."""
    adam_eps: float = 1e-8
    """AdamW's epsilon, which is added to the divisor."""
    weight_decay: float = 0.0
    """For matrices only, not for norms and biases; 0: none."""
    max_grad_norm: float | None = 1.0
    """Gradients with a larger norm are scaled down to this one; null: never."""
    num_epochs: int = 1
    """Passes over each batch."""
    num_minibatches: int = 1
    """Optimiser steps in each epoch. Rollouts are assigned to them at random and never split."""
    recompute_proximal: bool = False
    """Recompute the logprobs before the update even if it has just one step, whose own logprobs would do."""
    tokens_per_microbatch: int | None = None
    """Tokens in one forward pass, padding included; a longer row has a pass of its own. It affects memory, not the
    result. null: what should fit into the free memory, at most 4,096 on a CPU and 32,768 on a GPU. A pass that does not
    fit is retried with half as many, as are those that follow."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them: less memory, more time."""
    process: Literal["auto", "own", "shared"] = "auto"
    """Where the learner works. `own`: in a process of its own, so that its Python does not compete with that of the
    engine and the agents. `shared`: in a thread of the run's process. `auto` is `own` on a GPU and `shared` on a CPU,
    whose cores are shared anyway."""
    num_threads: int | None = None
    """CPU threads of one operation; null: as many as the engine. On policy the engine is idle during an update, so more
    may be faster. With `deterministic=true` it is one."""
    compute: Literal["auto", "float32", "bfloat16"] = "auto"
    """The type of the forward and backward pass; `auto` is float32 on a CPU and bfloat16 on a GPU. The weights
    themselves and the head are always float32."""

    def __post_init__(self) -> None:
        _need(self.method in ("full", "lora"), f"method={self.method}: give full or lora")
        _need(self.decay in ("linear", "cosine"), f"decay={self.decay}: give linear or cosine")
        kinds = ("auto", "float32", "bfloat16")
        _need(self.compute in kinds, f"compute={self.compute}: give auto, float32 or bfloat16")
        places = ("auto", "own", "shared")
        _need(self.process in places, f"process={self.process}: give auto, own or shared")
        rate = self.learning_rate
        _need(rate is None or _positive(rate), f"learning_rate={rate}: give a number above 0")
        for name in ("temperature", "adam_eps"):
            _need(_positive(getattr(self, name)), f"{name}={getattr(self, name)}: give a number above 0")
        _need(
            self.decay_steps == 0 or self.decay_steps > self.warmup_steps,
            f"decay_steps={self.decay_steps}: give more than warmup_steps={self.warmup_steps}, or 0 for never",
        )
        for name in ("num_epochs", "num_minibatches", "tokens_per_microbatch", "num_threads"):
            value = getattr(self, name)
            _need(value is None or value >= 1, f"{name}={value}: give 1 or more")
        _need(self.warmup_steps >= 0, f"warmup_steps={self.warmup_steps}: give 0 or more")
        _need(all(0 <= beta < 1 for beta in self.betas), f"betas={self.betas}: give two numbers from 0 to below 1")
        _need(
            math.isfinite(self.weight_decay) and self.weight_decay >= 0,
            f"weight_decay={self.weight_decay}: give 0 or more",
        )
        longest = self.max_grad_norm
        _need(longest is None or _positive(longest), f"max_grad_norm={longest}: give a number above 0, or null")

    def rate_of(self, method: Literal["full", "lora"], num_parameters: int | None = None) -> float:
        """The peak learning rate for this method and model size."""
        if self.learning_rate is not None:
            return self.learning_rate
        low, high, middle = MIN_RATE, MAX_RATE, RATE_AT
        if method == "lora":
            low, high, middle = LORA_MIN_RATE, LORA_MAX_RATE, LORA_RATE_AT
        if num_parameters is None:
            return low
        return max(low, min(high, middle * math.pow(SIZE_AT / num_parameters, RATE_POWER)))

    def rate_factor(self, step: int) -> float:
        """The share of the peak learning rate at an optimiser step, counted from the beginning of the run."""
        if self.decay_steps:
            last = self.decay_steps - 1
            return rate_factor(min(step, last), self.decay_steps, self.warmup_steps, decay=self.decay)
        return min(1.0, (step + 1) / max(1, self.warmup_steps))

    def tokens_on(self, device: str) -> int:
        """Tokens in one forward pass on a `cpu` or a GPU."""
        return self.tokens_per_microbatch or (4_096 if device == "cpu" else 32_768)

    def has_own_process_on(self, device: str) -> bool:
        """Whether the learner has a process of its own there."""
        return self.process == "own" or (self.process == "auto" and device != "cpu")

    def rounds_on(self, device: str) -> bool:
        """Whether passes are computed in bfloat16 there."""
        return self.compute == "bfloat16" or (self.compute == "auto" and device != "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartConfig:
    """Supervised training before the first update."""

    num_epochs: int = 1
    """Passes over the demonstrations."""
    max_steps: int | None = None
    """Maximum optimiser steps; null: no limit."""
    limit_s: float | None = None
    """Maximum time; null: no limit."""
    tokens_per_step: int = 4_096
    """Tokens in one optimiser step, padding included."""
    learning_rate: float = 1e-3
    """The peak learning rate, reached after `warmup_steps`; it then falls linearly to a tenth at the last step."""
    warmup_steps: int = 10
    """Optimiser steps over which the learning rate rises; 0: it starts at its peak."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Of AdamW, as `learner.betas`."""
    max_grad_norm: float = 1.0
    """Gradients with a larger norm are scaled down to this one."""
    seed: int = 0
    """Determines the order of the samples. The run's `seed` decides it; any other whole number except 0 is refused."""

    def __post_init__(self) -> None:
        for name in ("num_epochs", "tokens_per_step"):
            _need(getattr(self, name) >= 1, f"{name}={getattr(self, name)}: give 1 or more")
        _need(self.max_steps is None or self.max_steps >= 1, f"max_steps={self.max_steps}: give 1 or more, or null")
        _need(self.limit_s is None or _positive(self.limit_s), f"limit_s={self.limit_s}: give more than 0, or null")
        for name in ("learning_rate", "max_grad_norm"):
            _need(_positive(getattr(self, name)), f"{name}={getattr(self, name)}: give a number above 0")
        _need(self.warmup_steps >= 0, f"warmup_steps={self.warmup_steps}: give 0 or more")
        _need(all(0 <= beta < 1 for beta in self.betas), f"betas={self.betas}: give two numbers from 0 to below 1")

    def rate_at(self, step: int, num_steps: int) -> float:
        return self.learning_rate * rate_factor(step, num_steps, self.warmup_steps)


def run_settings() -> LearnerConfig:
    """What a training run has unless it says otherwise: four optimiser steps for each batch, clipped."""
    return LearnerConfig(
        loss=LossConfig(kind="ppo_clip", clip_low=0.2, clip_high=0.28), num_minibatches=4, betas=(0.9, 0.95)
    )


def paper_settings(*, context_tokens: int = 32_768) -> LearnerConfig:
    """The settings of the paper, to be used with the PAPER_ESTIMATOR.

    One on-policy step for each batch, a learning rate of 1e-6, no term for KL or entropy, and a loss that favours no
    length: each rollout's sum of tokens is divided by the constant `context_tokens`.
    """
    return LearnerConfig(
        learning_rate=1e-6,
        num_epochs=1,
        num_minibatches=1,
        loss=LossConfig(kind="importance_sampling", normaliser="fixed", fixed_length=context_tokens),
    )
