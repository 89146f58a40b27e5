"""The interfaces of a model: ids in, ids out (Completer), or messages in, a message out (ChatModel).

Training needs a Completer, which returns exactly the tokens that were sampled. A ChatModel hides its tokens, so it is
for evaluation only.
"""

from __future__ import annotations

import socket
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
        """The engine's load when it was last read, or None if it does not report it."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class SessionKeeper(Protocol):
    """A Completer that keeps a session's cache between its calls, and can be told when the session is over."""

    def end_session(self, session: str) -> None:
        """The session is over: its cache is the first to be evicted. Never fails and never waits; a session that
        continues anyway only costs more."""
        ...


@runtime_checkable
class WorkReporter(Protocol):
    """A Completer that measures its steps."""

    def take_work(self) -> tuple[EngineWork, ...]:
        """What it did since the last call. Any thread may call this."""
        ...


@runtime_checkable
class LateReporter(Protocol):
    """A WorkReporter that hears of the work a little later than it was done."""

    async def catch_up(self) -> None:
        """On return `take_work` has all that was done before. Raises InfrastructureError if that cannot be had."""
        ...


@runtime_checkable
class Connectable(Protocol):
    """A Completer in a process of its own, which other processes of the run can ask directly."""

    def connect_another(self) -> socket.socket:
        """An end of a new connection, for `model.direct.DirectClient`. Raises ModelError if the process is gone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScore:
    """How likely a token was at its position, under the model's own distribution: temperature 1, no truncation."""

    logprob: float
    top: Mapping[int, float]
    """The most likely tokens there and their logprobs, most likely first, whether or not the token is one of them."""


class Scorer(Protocol):
    async def score(
        self, ids: Sequence[int], *, num_top: int, timeout_s: float | None = None
    ) -> list[TokenScore | None]:
        """One score per token. The first is None, since nothing comes before it. Raises as `Completer.complete`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    message: Message
    stop: StopReason
    num_prompt_tokens: int = 0
    num_sampled_tokens: int = 0
    num_cached: int | None = None
    """Prompt tokens that were in the server's cache, if it reports them."""


@runtime_checkable
class ChatModel(Protocol):
    """A model behind a chat endpoint. Its tokens are hidden, so its replies cannot be trained on."""

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
