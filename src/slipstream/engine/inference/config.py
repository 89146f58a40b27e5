"""Settings of the embedded engine. Plain data: importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from slipstream.errors import ConfigError

HEAD_SIZES = (16, 32, 64, 128, 256)
"""Head sizes that the Triton kernels support."""


class OnUpdate(StrEnum):
    """What happens to cached keys and values when new weights arrive."""

    RECOMPUTE = "recompute"
    """They are recomputed, so every logprob comes from the new weights alone."""
    KEEP = "keep"
    """They are kept: nothing is computed twice, but logprobs mix the new weights with a cache of the old ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    process: Literal["own", "shared"] = "shared"
    """Where the engine works, and with it the learner. `shared`: in the run's own process. `own`: in a process beside
    it, which helper processes ask directly, so that the run's own process has only the dispatcher and the run store."""
    num_slots: int = 32
    """Sequences in the cache at once; further requests wait."""
    context_tokens: int | None = None
    """Maximum length of a sequence, prompt and answer together; null is `model.context_tokens`, and if that is null too
    the model's own window, but at most 4,096."""
    prefill_tokens: int | None = None
    """Maximum prompt tokens per step, beside one token for each sequence being sampled; null is 256 on a CPU and 8,192
    on a GPU."""
    steps_ahead: int = 4
    """On a GPU: decoding steps launched at a time, before the host has read the results of the previous ones."""
    kernels: str = "auto"
    """`triton`; `torch` for torch's own operations only; or `auto`: Triton on a GPU if the model's head size is
    supported and `deterministic` is off. On a CPU, `triton` runs only in Triton's interpreter, for tests."""
    device: str = "auto"
    """`cuda`, `cpu`, or `auto`: `cuda` if there is a GPU, `cpu` otherwise."""
    dtype: str = "auto"
    """`float32`, `bfloat16`, or `auto`: float32 on a CPU and bfloat16 on a GPU."""
    num_threads: int | None = None
    """CPU threads of one operation; null leaves it to torch."""
    deterministic: bool = False
    """The same prompt, seed and weights give bitwise the same result, whatever else is running. Nothing is reused:
    every request computes its whole prompt by itself, and sampling always runs over all slots."""
    on_update: OnUpdate = OnUpdate.RECOMPUTE
    """What happens to cached keys and values when new weights arrive. `recompute`: they are recomputed, so every
    logprob is the new weights' own. `keep`: they stay, and logprobs mix the new weights with a cache of the old
    ones."""

    def __post_init__(self) -> None:
        for name in ("num_slots", "context_tokens", "prefill_tokens", "steps_ahead", "num_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}: give a number above 0")
        if self.process not in ("own", "shared"):
            raise ConfigError(f"process={self.process}: give own or shared")
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise ConfigError(f"dtype={self.dtype}: give auto, float32 or bfloat16")
        if self.kernels not in ("auto", "triton", "torch"):
            raise ConfigError(f"kernels={self.kernels}: give auto, triton or torch")
        if self.kernels == "triton" and self.deterministic:
            raise ConfigError(
                "kernels=triton with deterministic=true: the kernels are not bitwise reproducible; set kernels=torch"
            )

    def prefill_tokens_on(self, device: str) -> int:
        return self.prefill_tokens or (256 if device == "cpu" else 8192)
