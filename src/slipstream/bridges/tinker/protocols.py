"""What the bridge needs of a Tinker server, in plain values: `client` implements it with the SDK, a test with a fake.

Invariants: whatever fails here is a BridgeError, or a ModelError for a sampler, and names the server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.bridges.tinker.data import Datum
from slipstream.types import SampleParams, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss by its name in the API: `Loss(name="ppo", config={"clip_low_threshold": 0.8, ...})`."""

    name: str
    config: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamStep:
    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-12
    weight_decay: float = 0.0
    max_grad_norm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """The result of a pass over some datums."""

    logprobs: Sequence[Sequence[float]]
    """Of every target of every datum, by the weights as they were."""
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    ids: Sequence[int]
    logprobs: Sequence[float] | None
    stop: StopReason


class Sampler(Protocol):
    """The policy as it was when this was made."""

    async def sample(self, prompt_ids: Sequence[int], params: SampleParams) -> Completion: ...


class Adapter(Protocol):
    """A LoRA adapter in training. Requests are executed in the order they were sent."""

    async def forward(self, datums: Sequence[Datum], loss: Loss) -> PassResult:
        """No gradient."""
        ...

    async def send_pass(self, datums: Sequence[Datum], loss: Loss) -> Awaitable[PassResult]:
        """Send a forward and backward pass; what is returned waits for it."""
        ...

    async def send_step(self, step: AdamStep) -> Awaitable[Mapping[str, float]]:
        """Send an optimiser step; what is returned waits for it."""
        ...

    async def save_state(self, name: str) -> str:
        """Keep weights and optimiser on the server; returns the path under which they are found."""
        ...

    async def sampler(self) -> Sampler: ...

    async def save_for_sampling(self, name: str) -> str:
        """Keep the weights on the server, to sample from; returns their path."""
        ...

    async def encoder(self) -> Callable[[str], Sequence[int]] | None:
        """The server's own tokenizer; None if it is not available here."""
        ...

    async def unload(self) -> None:
        """Free its resources on the server. Never fails."""
        ...


class Service(Protocol):
    @property
    def where(self) -> str:
        """The server, for messages."""
        ...

    async def models(self) -> Mapping[str, int | None]:
        """The base models it can train, each with its window if the server reports it."""
        ...

    async def train(
        self, base_model: str, *, rank: int, seed: int, state: str | None = None, with_optimizer: bool = True
    ) -> Adapter:
        """A new adapter, or one restored from what was saved."""
        ...

    async def watch(self) -> None:
        """Never returns; raises BridgeError once the server is gone."""
        ...

    async def aclose(self) -> None: ...
