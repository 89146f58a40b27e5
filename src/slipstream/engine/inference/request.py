"""One completion on its way through the engine: what was asked, where it stands, who waits for it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slipstream.engine.inference.sampling import Draw, Drawn, uniform_of
from slipstream.errors import ModelError
from slipstream.types import Sampled, SampleParams, StopReason, TokenIds, token_ids


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    prompt: TokenIds
    params: SampleParams
    seed: int
    max_tokens: int
    """What was asked for, or less if the context ends before."""
    deliver: Callable[[Sampled | ModelError], None]
    """Called once, from the engine's thread."""
    session: str = ""
    priority: int = 0
    salt: str = ""
    cancelled: bool = False
    """Set by whoever waited for it; the engine drops it before the next step."""
    num_asked: int = 0
    """Tokens that were sampled, and those that are on their way from the device."""
    num_cached: int | None = None
    """Tokens of the prompt that were in the cache when it got its slot; None before."""
    ids: TokenIds = field(default_factory=token_ids)
    logprobs: array[float] | None = field(default_factory=lambda: array("f"))
    versions: array[int] = field(default_factory=lambda: array("i"))

    def next_draw(self) -> Draw:
        position = len(self.prompt) + len(self.ids)
        return Draw(
            temperature=self.params.temperature,
            top_p=self.params.top_p,
            uniform=uniform_of(self.seed, position),
        )

    def take(self, drawn: Drawn, version: int) -> StopReason | None:
        """Add a token; says why the completion is over, if it is."""
        self.ids.append(drawn.token)
        self.versions.append(version)
        if drawn.logprob is None:
            self.logprobs = None
        elif self.logprobs is not None:
            self.logprobs.append(drawn.logprob)
        if drawn.token in self.params.stop_ids:
            return StopReason.STOP
        return StopReason.LENGTH if len(self.ids) >= self.max_tokens else None

    def take_all(self, tokens: Sequence[int], logprobs: Sequence[float], version: int) -> StopReason | None:
        """The same for tokens drawn one after the other; those after the end are left out."""
        room = self.max_tokens - len(self.ids)
        tokens, stop = tokens[:room], None
        num = len(tokens)
        for place, token in enumerate(tokens):
            if token in self.params.stop_ids:
                num, stop = place + 1, StopReason.STOP
                break
        self.ids.extend(tokens[:num])
        self.versions.extend([version] * num)
        if self.params.temperature == 0.0 or self.params.top_p < 1.0:  # see `sampling.Draw.exact`
            self.logprobs = None
        elif self.logprobs is not None:
            self.logprobs.extend(logprobs[:num])
        return stop or (StopReason.LENGTH if num == room else None)

    def sampled(self, stop: StopReason) -> Sampled:
        return Sampled(
            ids=self.ids, logprobs=self.logprobs, versions=self.versions, stop=stop, num_cached=self.num_cached
        )
