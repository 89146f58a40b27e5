"""A trainer's own client of its engine as a Completer.

Input: a function that calls the client. Output: what was sampled, with logprobs and the policy's version.
Invariants: a client that fails is a ModelError; one that gives no logprobs, or not one for each token, is refused by
`probe`, before the first rollout. The trainer's own sampling settings apply, by phase: its loss assumes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from slipstream.errors import ConfigError, ModelError, boundary
from slipstream.types import EngineLoad, Sampled, SampleParams, StopReason

PROBE_TIMEOUT_S = 600.0
"""A trainer's engine may have to wake up first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a trainer samples in one phase."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    prompt_ids: list[int]
    params: SampleParams
    top_k: int
    session: str
    cache_salt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAnswer:
    ids: Sequence[int]
    logprobs: Sequence[float] | None
    is_cut: bool
    """Whether it ended at the token limit."""
    version: int | None = None
    """Of the policy, if the client reports it."""
    num_cached: int | None = None


Ask: TypeAlias = Callable[[Request], Awaitable[ClientAnswer]]


class ClientCompleter:
    def __init__(self, ask: Ask, *, remedy: str, sampling: Mapping[str, Sampling] | None = None) -> None:
        """`remedy`: how to make the trainer's engine give logprobs. `sampling`: by phase, which is the first part of a
        session's name; other phases sample as the recipe says."""
        self._ask = ask
        self._remedy = remedy
        self.sampling = dict(sampling or {})
        self.version = 0
        """Of tokens whose version the client does not report."""
        self._num_running = 0

    async def probe(self, prompt_ids: Sequence[int]) -> None:
        """Sample one token, to check that there are logprobs."""
        params = SampleParams(max_tokens=1)
        try:
            await self.complete(prompt_ids, params, session="probe", timeout_s=PROBE_TIMEOUT_S)
        except _NoLogprobs as raised:
            raise ConfigError(str(raised)) from None

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
        sampling = self.sampling.get(session.partition("/")[0])
        if sampling is not None:
            params = replace(params, temperature=sampling.temperature, top_p=sampling.top_p)
        request = Request(
            prompt_ids=list(prompt_ids),
            params=params,
            top_k=-1 if sampling is None else sampling.top_k,
            session=session,
            cache_salt=cache_salt,
        )
        return self._sampled(await self._answer(request, timeout_s))

    async def _answer(self, request: Request, timeout_s: float | None) -> ClientAnswer:
        self._num_running += 1
        try:
            async with asyncio.timeout(timeout_s) as scope:
                with boundary(ModelError, "the trainer's engine"):
                    return await self._ask(request)
        except (TimeoutError, ModelError):
            if not scope.expired():
                raise
        finally:
            self._num_running -= 1
        raise ModelError(f"the trainer's engine took longer than {timeout_s:g} s")

    def _sampled(self, answer: ClientAnswer) -> Sampled:
        if not answer.ids:
            raise ModelError("the trainer's engine gave no token")
        if answer.logprobs is None or len(answer.logprobs) != len(answer.ids):
            num = "no logprobs" if answer.logprobs is None else f"{len(answer.logprobs)} logprobs"
            raise _NoLogprobs(f"the trainer's engine gave {num} for {len(answer.ids)} tokens: {self._remedy}")
        return Sampled.at_version(
            answer.ids,
            answer.logprobs,
            version=self.version if answer.version is None else answer.version,
            stop=StopReason.LENGTH if answer.is_cut else StopReason.STOP,
            num_cached=answer.num_cached,
        )

    def load(self) -> EngineLoad | None:
        return EngineLoad(running=self._num_running, waiting=0)

    async def aclose(self) -> None:
        """The client is the trainer's."""


class _NoLogprobs(ModelError):
    """A configuration error at the start; in the middle of a run, a failure of the engine."""
