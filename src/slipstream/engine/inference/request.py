"""The engine's record of one completion: what was requested, what has been sampled, and where to deliver the result."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slipstream.engine.inference.sampling import DrawnToken, DrawSpec, uniform_for
from slipstream.errors import ModelError
from slipstream.types import Sampled, SampleParams, StopReason, TokenIds, token_ids


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    prompt: TokenIds
    params: SampleParams
    seed: int
    max_tokens: int
    """What the caller requested, or less if the context ends first."""
    deliver: Callable[[Sampled | ModelError], None]
    """Called once, from the engine's thread."""
    session: str = ""
    priority: int = 0
    salt: str = ""
    cancelled: bool = False
    """Set by the caller; the engine drops the request before its next step."""
    num_requested: int = 0
    """Tokens sampled, including those not yet read from the device."""
    num_cached: int | None = None
    """Prompt tokens that were in the cache when the request got its slot; None before that."""
    ids: TokenIds = field(default_factory=token_ids)
    logprobs: array[float] | None = field(default_factory=lambda: array("f"))
    versions: array[int] = field(default_factory=lambda: array("i"))

    def next_draw_spec(self) -> DrawSpec:
        position = len(self.prompt) + len(self.ids)
        return DrawSpec(
            temperature=self.params.temperature,
            top_p=self.params.top_p,
            uniform=uniform_for(self.seed, position),
        )

    def append(self, drawn: DrawnToken, version: int) -> StopReason | None:
        """Add a token; returns the stop reason if the completion is over."""
        self.ids.append(drawn.token)
        self.versions.append(version)
        if drawn.logprob is None:
            self.logprobs = None
        elif self.logprobs is not None:
            self.logprobs.append(drawn.logprob)
        if drawn.token in self.params.stop_ids:
            return StopReason.STOP
        return StopReason.LENGTH if len(self.ids) >= self.max_tokens else None

    def extend(self, tokens: Sequence[int], logprobs: Sequence[float], version: int) -> StopReason | None:
        """Add several tokens, dropping those after the end; returns the stop reason if the completion is over."""
        room = self.max_tokens - len(self.ids)
        tokens, stop = tokens[:room], None
        num = len(tokens)
        for place, token in enumerate(tokens):
            if token in self.params.stop_ids:
                num, stop = place + 1, StopReason.STOP
                break
        self.ids.extend(tokens[:num])
        self.versions.extend([version] * num)
        if self.params.temperature == 0.0 or self.params.top_p < 1.0:  # see `sampling.DrawSpec.exact`
            self.logprobs = None
        elif self.logprobs is not None:
            self.logprobs.extend(logprobs[:num])
        return stop or (StopReason.LENGTH if num == room else None)

    def result(self, stop: StopReason) -> Sampled:
        return Sampled(
            ids=self.ids, logprobs=self.logprobs, versions=self.versions, stop=stop, num_cached=self.num_cached
        )
