"""A Tinker server through the official SDK: the only file that imports it.

Always holds: nothing of the SDK blocks the event loop, and no answer is waited for longer than `timeout_s`, nor for
long once the server is gone: the SDK itself would try again for minutes or for ever. What the server complains about
is told in its own words. The API key is read from TINKER_API_KEY by the SDK; a server of one's own needs none.
"""

from __future__ import annotations

import asyncio
import logging
import os
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import tinker
from tinker import types as api

from slipstream.bridges.tinker.data import Datum
from slipstream.bridges.tinker.seam import AdamStep, Completion, Loss, PassResult
from slipstream.errors import BridgeError, ConfigError, InfrastructureError, ModelError, SlipstreamError
from slipstream.types import SampleParams, StopReason

T = TypeVar("T")

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Between two looks at whether a server is still there."""
GONE_S = 15.0
"""A server that takes no connection for this long is gone."""
CONNECT_S = 5.0
UNLOAD_S = 10.0
_NO_KEY = "tml-none"
"""The SDK insists on a key; a server of one's own does not look at it."""
_LONGEST_COMPLAINT = 600


class Link:
    """The way to a server: whether it is there, and how long an answer may take.

    Sampling is never given up because the server is gone: whoever watches ends the run, and the rollouts under way go
    on when it is resumed, which they could not if they had failed.
    """

    def __init__(self, base_url: str, *, timeout_s: float) -> None:
        self.where = f"the Tinker server at {base_url}" if base_url else "the Tinker service"
        self.timeout_s = timeout_s
        parts = urlsplit(base_url)
        if base_url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ConfigError(f"base_url={base_url}: write it like http://127.0.0.1:8000")
        # Behind a proxy or a load balancer, whether a connection can be had says nothing.
        self._place = (parts.hostname, parts.port or 80) if parts.scheme == "http" and parts.hostname else None
        self._seen_s = -1.0
        self._looked_s = -1.0

    async def is_there(self) -> bool:
        if self._place is None:
            return True
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(*self._place)
        except (OSError, TimeoutError):
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True

    async def answer(self, pending: Awaitable[T], what: str, *, error: type[InfrastructureError] = BridgeError) -> T:
        """Wait for an answer; all that goes wrong is an `error` that says what was asked."""
        loop = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(_result(pending))
        until_s = loop.time() + self.timeout_s
        self._seen_s = max(self._seen_s, loop.time())
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=min(LOOK_S, max(0.0, until_s - loop.time())))
                if waiting.done():
                    break
                if loop.time() >= until_s:
                    raise error(f"{what}: {self.where} did not answer within {self.timeout_s:g} s")
                if error is BridgeError:
                    await self.check(what)
            return waiting.result()
        except (SlipstreamError, asyncio.CancelledError):
            raise
        except Exception as raised:  # the SDK raises its own errors, httpx's, ValueError and more
            raise error(f"{what}: {self.where} answers: {complaint(raised)}") from raised
        finally:
            if not waiting.done():
                waiting.cancel()

    async def watch(self) -> None:
        self._seen_s = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(LOOK_S)
            await self.check("watching")

    async def check(self, what: str) -> None:
        if await self._silent_s() >= GONE_S:
            raise BridgeError(f"{what}: {self.where} is gone: start it again")

    async def _silent_s(self) -> float:
        """Since when the server has taken no connection. However many wait, it is looked at once in a while."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._looked_s >= LOOK_S / 2:
            self._looked_s = loop.time()
            if await self.is_there():
                self._seen_s = loop.time()
        return loop.time() - self._seen_s


class Sent(Generic[T]):
    """A request that is on its way. Its answer may be awaited once, or never."""

    def __init__(self, result: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._result = result

    def __await__(self) -> Generator[Any, None, T]:
        return self._result().__await__()


async def _result(pending: Awaitable[T]) -> T:
    return await pending


def complaint(raised: BaseException) -> str:
    """What a server or the SDK says is wrong, in one line."""
    body = getattr(raised, "body", None)
    detail = body.get("detail") if isinstance(body, dict) else None
    text = str(detail or raised) or type(raised).__name__
    return " ".join(text.split())[:_LONGEST_COMPLAINT]


class TinkerSampler:
    def __init__(self, client: Any, link: Link) -> None:
        self._client = client
        self._link = link

    async def sample(self, prompt_ids: Sequence[int], params: SampleParams) -> Completion:
        asked = api.SamplingParams(
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            seed=params.seed,
            stop=list(params.stop_ids) or None,
        )
        prompt = api.ModelInput.from_ints(list(prompt_ids))
        pending = self._client.sample_async(prompt=prompt, num_samples=1, sampling_params=asked)
        response = await self._link.answer(pending, "sampling", error=ModelError)
        (sequence,) = response.sequences
        stop = StopReason.STOP if sequence.stop_reason == "stop" else StopReason.LENGTH
        if sequence.logprobs is not None and len(sequence.logprobs) != len(sequence.tokens):
            raise ModelError(
                f"{self._link.where} gave {len(sequence.logprobs)} logprobs for {len(sequence.tokens)} tokens"
            )
        return Completion(ids=sequence.tokens, logprobs=sequence.logprobs, stop=stop)


class TinkerTrainee:
    def __init__(self, client: Any, link: Link) -> None:
        self._client = client
        self._link = link
        self._sends_weights = True

    async def forward(self, datums: Sequence[Datum], loss: Loss) -> PassResult:
        """Also finds out whether the loss takes weights. Where it does not, an advantage of 0 is mask enough."""
        try:
            return await self._forward(datums, loss)
        except BridgeError:
            self._sends_weights = False
            return await self._forward(datums, loss)

    async def _forward(self, datums: Sequence[Datum], loss: Loss) -> PassResult:
        data = [to_api(datum, loss, with_weights=self._sends_weights) for datum in datums]
        sent = await self._client.forward_async(data, loss.name, _config(loss))
        return _passed(await self._link.answer(sent, f"a forward pass with {loss.name}"))

    async def send_pass(self, datums: Sequence[Datum], loss: Loss) -> Awaitable[PassResult]:
        data = [to_api(datum, loss, with_weights=self._sends_weights) for datum in datums]
        sent = await self._client.forward_backward_async(data, loss.name, _config(loss))

        async def result() -> PassResult:
            return _passed(await self._link.answer(sent, f"a forward-backward pass with {loss.name}"))

        return Sent(result)

    async def send_step(self, step: AdamStep) -> Awaitable[Mapping[str, float]]:
        sent = await self._client.optim_step_async(
            api.AdamParams(
                learning_rate=step.learning_rate,
                beta1=step.betas[0],
                beta2=step.betas[1],
                eps=step.eps,
                weight_decay=step.weight_decay,
                grad_clip_norm=step.max_grad_norm or 0.0,
            )
        )

        async def result() -> Mapping[str, float]:
            response = await self._link.answer(sent, "an optimiser step")
            return dict(getattr(response, "metrics", None) or {})

        return Sent(result)

    async def save_state(self, name: str) -> str:
        response = await self._link.answer(await self._client.save_state_async(name), f"saving {name}")
        return str(response.path)

    async def sampler(self) -> TinkerSampler:
        # The SDK's asynchronous form of this waits for the server without giving way to the loop.
        pending = asyncio.to_thread(self._client.save_weights_and_get_sampling_client)
        return TinkerSampler(await self._link.answer(pending, "making a sampler of the new weights"), self._link)

    async def save_for_sampling(self, name: str) -> str:
        sent = await self._client.save_weights_for_sampler_async(name)
        return str((await self._link.answer(sent, f"saving {name} to sample from")).path)

    async def encoder(self) -> Callable[[str], Sequence[int]] | None:
        try:
            tokenizer = await asyncio.wait_for(asyncio.to_thread(self._client.get_tokenizer), self._link.timeout_s)
        except Exception as raised:  # transformers is missing, or a hub cannot be reached, in many ways
            log.warning("the served model's tokenizer cannot be loaded: %s", complaint(raised))
            return None

        def encode(text: str) -> Sequence[int]:
            return list(tokenizer.encode(text, add_special_tokens=False))

        return encode

    async def unload(self) -> None:
        if not await self._link.is_there():
            return
        try:
            async with asyncio.timeout(UNLOAD_S):
                await self._client.holder.run_coroutine_threadsafe(self._send_unload())
        except Exception as raised:  # a courtesy: the server drops what is not used any more by itself
            log.info("the adapter was not unloaded: %s", complaint(raised))

    async def _send_unload(self) -> None:
        from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

        with self._client.holder.aclient(ClientConnectionPoolType.TRAIN) as client:
            await client.models.unload(request=api.UnloadModelRequest(model_id=self._client.model_id), max_retries=0)


class TinkerService:
    def __init__(self, link: Link, client: Any) -> None:
        self._link = link
        self._client = client

    @property
    def where(self) -> str:
        return self._link.where

    async def models(self) -> Mapping[str, int | None]:
        answer = await self._link.answer(asyncio.to_thread(self._client.get_server_capabilities), "its models")
        return {each.model_name: each.max_context_length for each in answer.supported_models if each.model_name}

    async def train(
        self, base_model: str, *, rank: int, seed: int, state: str | None = None, with_optimizer: bool = True
    ) -> TinkerTrainee:
        pending = asyncio.to_thread(
            self._client.create_lora_training_client, base_model, rank=rank, seed=seed % (2**31 - 1)
        )
        client = await self._link.answer(pending, f"an adapter of rank {rank} (learner.lora.rank) on {base_model}")
        if state is not None:  # servers take this as an adapter's first request alone
            load = client.load_state_with_optimizer_async if with_optimizer else client.load_state_async
            await self._link.answer(await load(state), f"loading {state}")
        return TinkerTrainee(client, self._link)

    async def watch(self) -> None:
        await self._link.watch()

    async def aclose(self) -> None:
        """The SDK keeps a session alive for as long as its client lives."""
        holder = getattr(self._client, "_session_holder", None)
        if holder is not None:
            await asyncio.to_thread(holder.close)


async def connect(base_url: str, *, timeout_s: float) -> TinkerService:
    """The server at `base_url`, or the service of the SDK's makers if that is empty."""
    link = Link(base_url, timeout_s=timeout_s)
    if not base_url and not os.environ.get("TINKER_API_KEY"):
        raise ConfigError(
            "bridge=tinker: set base_url to a server of your own, or TINKER_API_KEY for the Tinker service"
        )
    if not await link.is_there():
        raise ConfigError(f"nothing answers at base_url={base_url}: start the Tinker server, or correct it")
    known = {"base_url": base_url} if base_url else {}
    key = os.environ.get("TINKER_API_KEY") or _NO_KEY
    client = await link.answer(asyncio.to_thread(tinker.ServiceClient, api_key=key, **known), "opening a session")
    return TinkerService(link, client)


def to_api(datum: Datum, loss: Loss, *, with_weights: bool = True) -> Any:
    """A datum in the SDK's own form, with the fields that the loss reads."""
    imitates = loss.name == "cross_entropy"
    inputs: dict[str, Any] = {"target_tokens": datum.targets.tolist()}
    if imitates or with_weights:
        inputs["weights"] = datum.weights.tolist()
    if not imitates:
        inputs |= {"logprobs": datum.logprobs.tolist(), "advantages": datum.advantages.tolist()}
    return api.Datum(model_input=api.ModelInput.from_ints(datum.inputs.tolist()), loss_fn_inputs=inputs)


def _config(loss: Loss) -> dict[str, float] | None:
    return dict(loss.config) or None


def _passed(output: Any) -> PassResult:
    return PassResult(
        logprobs=[array("f", each["logprobs"].data) for each in output.loss_fn_outputs],
        metrics=dict(output.metrics or {}),
    )
