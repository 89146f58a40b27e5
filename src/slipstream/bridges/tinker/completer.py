"""The policy behind a Completer: ids in, ids and logprobs out, each token with the version of the weights it was
requested from.

Invariants: a token carries the version of the sampler that its request was sent to. Logprobs that are not those of the
distribution that was sampled from are left out. Unless `overlap` is set nothing is sampled during an update: requests
wait until the new weights are there, and an update waits for the requests that the server still has, abandoned ones
included. A server may hold one copy of an adapter for training and sampling, so a late request of an old version would
put the old weights back (`docs/bridges.md`).
If the server has lost the adapter, requests block and the watcher ends the run, so it can be resumed with nothing lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from slipstream.bridges.tinker.protocols import Completion, Sampler
from slipstream.errors import BridgeError, ContextOverflow, ModelError
from slipstream.types import EngineLoad, Sampled, SampleParams

_MAX_SEED = 2**31 - 1
_ANY_PROMPT = (1, 2, 3)


class TinkerCompleter:
    def __init__(self, *, context_tokens: int | None, timeout_s: float, overlap: bool = False) -> None:
        """`timeout_s` is for calls without a deadline of their own."""
        self.version = 0
        self._sampler: Sampler | None = None
        self._context_tokens = context_tokens
        self._timeout_s = timeout_s
        self._overlap = overlap
        self._may_sample = asyncio.Event()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._lost: asyncio.Future[str] | None = None
        """Why there is nothing left to sample from; None if nobody watches."""

    async def watch(self) -> None:
        """Never returns; raises BridgeError once the server has lost the adapter."""
        self._lost = asyncio.get_running_loop().create_future()
        why = await self._lost
        raise BridgeError(f"the Tinker server has lost the adapter ({why})")

    def use(self, sampler: Sampler, *, version: int) -> None:
        """Sample from these weights from now on."""
        self._sampler = sampler
        self.version = version
        self._may_sample.set()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """While the weights change."""
        if self._overlap:
            yield
            return
        self._may_sample.clear()
        try:
            if self._under_way:
                await asyncio.wait(self._under_way)
            yield
        finally:
            self._may_sample.set()

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
        """`session`, `priority` and `cache_salt` have no counterpart in the API."""
        asked = self._fitted(prompt_ids, params)
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                while not self._may_sample.is_set():  # it may have been cleared again before this woke up
                    await self._may_sample.wait()
                sampler, version = self._sampler, self.version
                assert sampler is not None, "nothing may be asked before there are weights to sample from"
                completion = await self._ask(sampler, prompt_ids, asked)
        except TimeoutError as raised:
            raise ModelError(f"the Tinker server did not sample within {limit_s:g} s") from raised
        as_sampled = params.temperature == 1.0 and params.top_p == 1.0
        return Sampled.at_version(
            completion.ids, completion.logprobs if as_sampled else None, version=version, stop=completion.stop
        )

    async def _ask(self, sampler: Sampler, prompt_ids: Sequence[int], params: SampleParams) -> Completion:
        """The request outlives its caller, unless weights and samples may overlap: the server has it anyway."""
        asking = asyncio.create_task(sampler.sample(prompt_ids, params), name="sampling on the Tinker server")
        self._under_way.add(asking)
        asking.add_done_callback(self._ended)
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            if self._overlap:
                asking.cancel()
            raise
        except ModelError as raised:
            if self._lost is not None and not await _can_sample(sampler):
                if not self._lost.done():
                    self._lost.set_result(str(raised))
                await asyncio.Event().wait()  # until the run is ended
            raise

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, in case no caller is left

    def _fitted(self, prompt_ids: Sequence[int], params: SampleParams) -> SampleParams:
        max_tokens = params.max_tokens
        if self._context_tokens is not None:
            room = self._context_tokens - len(prompt_ids)
            if room < 1:
                raise ContextOverflow(f"{len(prompt_ids)} prompt tokens leave no room in {self._context_tokens}")
            max_tokens = min(max_tokens, room)
        return SampleParams(
            max_tokens=max_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            seed=None if params.seed is None else params.seed % _MAX_SEED,
            stop_ids=params.stop_ids,
        )

    def load(self) -> EngineLoad | None:
        return None

    async def aclose(self) -> None:
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)


async def _can_sample(sampler: Sampler) -> bool:
    try:
        await sampler.sample(_ANY_PROMPT, SampleParams(max_tokens=1))
    except ModelError:
        return False
    return True
