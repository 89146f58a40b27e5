"""What a model is to the rest: ids in, ids out (Completer), or messages in, a message out (ChatModel).

A Completer is what training needs: it returns exactly the tokens that were sampled. A ChatModel hides its tokens, so
it serves evaluation alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from slipstream.types import EngineLoad, EngineWork, Message, Sampled, SampleParams, StopReason, ToolSpec


@runtime_checkable
class Completer(Protocol):
    async def complete(
        self,
        prompt_ids: Sequence[int],
        params: SampleParams,
        *,
        session: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
    ) -> Sampled:
        """Sample one completion. The ids include the stop token if one was sampled.

        `session` names the rollout, for engines that keep its cache; `cache_salt` keeps caches of different policy
        versions apart. Raises ModelError when the engine fails (after its own retries) or `timeout_s` passes, and
        ContextOverflow when the prompt does not fit. Cancelling it cancels the request.
        """
        ...

    def load(self) -> EngineLoad | None:
        """The engine's load as last seen, or None if it does not say."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class SessionKeeper(Protocol):
    """A Completer that keeps the cache of a session between its calls, and can be told when it is over."""

    def end_session(self, session: str) -> None:
        """No more is to come under this name: its cache is the first to give way. Never fails, and waits for nothing;
        a session that goes on all the same only costs more."""
        ...


@runtime_checkable
class WorkReporter(Protocol):
    """A Completer that knows what its steps took."""

    def take_work(self) -> tuple[EngineWork, ...]:
        """What it did since it was asked last, from any thread."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScore:
    """How likely a token was where it stands, under the model's own distribution: temperature 1, nothing cut off."""

    logprob: float
    top: Mapping[int, float]
    """The likeliest tokens there with their logprobs, likeliest first, whether or not the token is one of them."""


class Scorer(Protocol):
    async def score(
        self, ids: Sequence[int], *, num_top: int, timeout_s: float | None = None
    ) -> list[TokenScore | None]:
        """One score per token. The first has none, since nothing stands before it. Raises as `Completer.complete`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    message: Message
    stop: StopReason
    num_prompt_tokens: int = 0
    num_sampled_tokens: int = 0
    num_cached: int | None = None
    """Tokens of the prompt that the server had in its cache, where it says so."""


@runtime_checkable
class ChatModel(Protocol):
    """A model behind a chat endpoint. Its tokens are not seen, so nothing it says can be trained on."""

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        params: SampleParams,
        *,
        session: str = "",
        timeout_s: float | None = None,
    ) -> ChatReply:
        """Raises as `Completer.complete` does."""
        ...

    async def aclose(self) -> None: ...
