"""What the embedded engine can be told. Plain data: importing it loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from slipstream.errors import ConfigError


class OnUpdate(StrEnum):
    """What becomes of cached keys and values when new weights arrive."""

    RECOMPUTE = "recompute"
    """They are computed anew, so that every logprob is the new weights' own."""
    KEEP = "keep"
    """They stay: nothing is computed twice, and logprobs mix the new weights with a cache of the old ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    num_slots: int = 32
    """Sequences that are in the cache at once; more requests than that wait."""
    context_tokens: int | None = None
    """Of one sequence, prompt and answer together; None is the model's own window, but at most 4,096."""
    prefill_tokens: int = 256
    """Prompt tokens computed in one step, at most, beside one token for each sequence that is being sampled."""
    device: str = "auto"
    """`auto` is `cuda` where there is a GPU, `cpu` otherwise."""
    dtype: str = "auto"
    """`float32` or `bfloat16`; `auto` is float32 on a CPU and bfloat16 on a GPU."""
    num_threads: int | None = None
    """CPU threads of one operation; None leaves it to torch."""
    deterministic: bool = False
    """The same prompt, seed and weights give the same bits, whatever else is running. Nothing is reused: every request
    computes its whole prompt alone, and sampling always runs over all slots."""
    on_update: OnUpdate = OnUpdate.RECOMPUTE

    def __post_init__(self) -> None:
        for name in ("num_slots", "context_tokens", "prefill_tokens", "num_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}: give a number above 0")
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise ConfigError(f"dtype={self.dtype}: give auto, float32 or bfloat16")
