"""What is asked of an engine, what it sampled, and what it reports about itself."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from slipstream.types.ids import TokenIds, token_ids


class StopReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


NO_LIMIT = 2**31 - 1
"""For `SampleParams.max_tokens`: all that the window leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleParams:
    """Sampling settings. The defaults sample from the model's own distribution, as training requires."""

    max_tokens: int = 1024
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()

    def of_call(self, *, max_tokens: int, seed: int) -> SampleParams:
        """These settings for one call: `dataclasses.replace`, in half the time."""
        return SampleParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=seed,
            stop_ids=self.stop_ids,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The tokens of one completion: per token its id, its logprob under what was sampled from, its policy version.

    `logprobs` is None where the server gave none: evaluation works without, training does not.
    """

    ids: TokenIds
    logprobs: array[float] | None
    versions: array[int]
    stop: StopReason
    num_cached: int | None = field(default=None, compare=False)
    """Tokens of the prompt that the engine had in its cache, if it reports that. The span of the call keeps it."""

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.versions)} | ({len(self.logprobs)} if self.logprobs is not None else set())
        if len(lengths) != 1:
            raise ValueError(f"per-token lengths differ: {sorted(lengths)}")

    @staticmethod
    def at_version(
        ids: Iterable[int],
        logprobs: Iterable[float] | None,
        *,
        version: int,
        stop: StopReason,
        num_cached: int | None = None,
    ) -> Sampled:
        """All tokens sampled by one version of the policy."""
        kept = token_ids(ids)
        return Sampled(
            ids=kept,
            logprobs=None if logprobs is None else array("f", logprobs),
            versions=array("i", [version]) * len(kept),
            stop=stop,
            num_cached=num_cached,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What an engine reports about itself now; None where it does not."""

    running: int
    waiting: int
    kv_used: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    kv_tokens: int | None = None
    """Tokens the KV cache holds when full."""
    tokens_per_s: float | None = None
    """Sampled lately, by all requests together."""
    prefill_tokens_s: float | None = None
    """Prompt tokens computed in a second of doing so, on average so far."""
    slots: int | None = None
    """Requests that are answered at once."""
    contexts: int | None = None
    """Contexts that the cache holds at most, however short; None if only their tokens count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWork:
    """Sums over engine steps of about the same size."""

    num_steps: int
    """In each of them every sequence that is being sampled gets a token. 0: prompts alone were computed."""
    num_rows: int
    """Tokens requested in them, one for each sequence and step."""
    num_held: int
    """Tokens in the cache of those sequences, counted in each step."""
    num_prompt: int
    """Tokens of prompts that were computed in them."""
    seconds: float
    cpu_s: float
    """Of these, how long the engine's thread had a core."""
