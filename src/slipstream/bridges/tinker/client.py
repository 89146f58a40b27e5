"""A Tinker server through the official SDK: the only file that imports it.

Invariants: nothing of the SDK blocks the event loop, and no answer is waited for longer than `timeout_s`, nor for long
once the server is gone: the SDK itself would retry for minutes or for ever. The server's error message is quoted.
The SDK reads the API key from TINKER_API_KEY; your own server needs none.
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
from slipstream.bridges.tinker.protocols import AdamStep, Completion, Loss, PassResult
from slipstream.errors import BridgeError, ConfigError, ModelError, SlipstreamError
from slipstream.types import SampleParams, StopReason

T = TypeVar("T")

log = logging.getLogger(__name__)

CHECK_EVERY_S = 5.0
"""Between two checks whether a server is reachable."""
LOST_AFTER_S = 15.0
"""A server that accepts no connection for this long is gone."""
CONNECT_S = 5.0
UNLOAD_S = 10.0
_NO_KEY = "tml-none"
"""The SDK requires a key; your own server ignores it."""
_MAX_COMPLAINT_CHARS = 600


class ServerConnection:
    """A server: whether it is reachable, and how long an answer may take.

    If the server is unreachable, sampling requests block and the watcher ends the run, so that rollouts under way can
    be resumed; had they failed, they could not.
    """

    def __init__(self, base_url: str, *, timeout_s: float) -> None:
        self.where = f"the Tinker server at {base_url}" if base_url else "the Tinker service"
        self.timeout_s = timeout_s
        parts = urlsplit(base_url)
        if base_url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ConfigError(f"base_url={base_url}: write it like http://127.0.0.1:8000")
        # Behind a proxy or a load balancer, a connection says nothing.
        self._address = (parts.hostname, parts.port or 80) if parts.scheme == "http" and parts.hostname else None
        self._last_seen_s = -1.0
        self._last_checked_s = -1.0

    async def is_reachable(self) -> bool:
        if self._address is None:
            return True
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(*self._address)
        except (OSError, TimeoutError):
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True

    async def answer(
        self, pending: Awaitable[T], what: str, *, error: type[ModelError | BridgeError] = BridgeError
    ) -> T:
        """Wait for an answer; whatever goes wrong is an `error` that says what was asked."""
        loop = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(_result(pending))
        until_s = loop.time() + self.timeout_s
        self._last_seen_s = max(self._last_seen_s, loop.time())
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=min(CHECK_EVERY_S, max(0.0, until_s - loop.time())))
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
        self._last_seen_s = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            await self.check("watching")

    async def check(self, what: str) -> None:
        if await self._seconds_unseen() >= LOST_AFTER_S:
            raise BridgeError(f"{what}: {self.where} is gone: restart it")

    async def _seconds_unseen(self) -> float:
        """How long the server has accepted no connection. Checked once in a while, however many wait."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._last_checked_s >= CHECK_EVERY_S / 2:
            self._last_checked_s = loop.time()
            if await self.is_reachable():
                self._last_seen_s = loop.time()
        return loop.time() - self._last_seen_s


class PendingRequest(Generic[T]):
    """A request under way. Its answer may be awaited once, or never."""

    def __init__(self, result: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._result = result

    def __await__(self) -> Generator[Any, None, T]:
        return self._result().__await__()


async def _result(pending: Awaitable[T]) -> T:
    return await pending


def complaint(raised: BaseException) -> str:
    """The error of a server or of the SDK, in one line."""
    body = getattr(raised, "body", None)
    detail = body.get("detail") if isinstance(body, dict) else None
    text = str(detail or raised) or type(raised).__name__
    return " ".join(text.split())[:_MAX_COMPLAINT_CHARS]


class TinkerSampler:
    def __init__(self, client: Any, connection: ServerConnection) -> None:
        self._client = client
        self._connection = connection

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
        response = await self._connection.answer(pending, "sampling", error=ModelError)
        (sequence,) = response.sequences
        stop = StopReason.STOP if sequence.stop_reason == "stop" else StopReason.LENGTH
        if sequence.logprobs is not None and len(sequence.logprobs) != len(sequence.tokens):
            raise ModelError(
                f"{self._connection.where} gave {len(sequence.logprobs)} logprobs for {len(sequence.tokens)} tokens"
            )
        return Completion(ids=sequence.tokens, logprobs=sequence.logprobs, stop=stop)


class TinkerAdapter:
    def __init__(self, client: Any, connection: ServerConnection) -> None:
        self._client = client
        self._connection = connection
        self._sends_weights = True

    async def forward(self, datums: Sequence[Datum], loss: Loss) -> PassResult:
        """Also finds out whether the loss takes weights. If not, an advantage of 0 is mask enough."""
        try:
            return await self._forward(datums, loss)
        except BridgeError:
            self._sends_weights = False
            return await self._forward(datums, loss)

    async def _forward(self, datums: Sequence[Datum], loss: Loss) -> PassResult:
        data = [to_api(datum, loss, with_weights=self._sends_weights) for datum in datums]
        sent = await self._client.forward_async(data, loss.name, _config(loss))
        return _to_pass_result(await self._connection.answer(sent, f"a forward pass with {loss.name}"))

    async def send_pass(self, datums: Sequence[Datum], loss: Loss) -> Awaitable[PassResult]:
        data = [to_api(datum, loss, with_weights=self._sends_weights) for datum in datums]
        sent = await self._client.forward_backward_async(data, loss.name, _config(loss))

        async def result() -> PassResult:
            return _to_pass_result(await self._connection.answer(sent, f"a forward-backward pass with {loss.name}"))

        return PendingRequest(result)

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
            response = await self._connection.answer(sent, "an optimiser step")
            return dict(getattr(response, "metrics", None) or {})

        return PendingRequest(result)

    async def save_state(self, name: str) -> str:
        response = await self._connection.answer(await self._client.save_state_async(name), f"saving {name}")
        return str(response.path)

    async def sampler(self) -> TinkerSampler:
        # The SDK's asynchronous form of this waits for the server without giving way to the loop.
        pending = asyncio.to_thread(self._client.save_weights_and_get_sampling_client)
        return TinkerSampler(
            await self._connection.answer(pending, "making a sampler of the new weights"), self._connection
        )

    async def save_for_sampling(self, name: str) -> str:
        sent = await self._client.save_weights_for_sampler_async(name)
        return str((await self._connection.answer(sent, f"saving {name} to sample from")).path)

    async def encoder(self) -> Callable[[str], Sequence[int]] | None:
        try:
            tokenizer = await asyncio.wait_for(
                asyncio.to_thread(self._client.get_tokenizer), self._connection.timeout_s
            )
        except Exception as raised:  # transformers is missing, or a hub cannot be reached, in many ways
            log.warning("the served model's tokenizer cannot be loaded: %s", complaint(raised))
            return None

        def encode(text: str) -> Sequence[int]:
            return list(tokenizer.encode(text, add_special_tokens=False))

        return encode

    async def unload(self) -> None:
        if not await self._connection.is_reachable():
            return
        try:
            async with asyncio.timeout(UNLOAD_S):
                await self._client.holder.run_coroutine_threadsafe(self._send_unload())
        except Exception as raised:  # a courtesy: the server drops unused adapters by itself
            log.info("the adapter was not unloaded: %s", complaint(raised))

    async def _send_unload(self) -> None:
        from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

        with self._client.holder.aclient(ClientConnectionPoolType.TRAIN) as client:
            await client.models.unload(request=api.UnloadModelRequest(model_id=self._client.model_id), max_retries=0)


class TinkerService:
    def __init__(self, connection: ServerConnection, client: Any) -> None:
        self._connection = connection
        self._client = client

    @property
    def where(self) -> str:
        return self._connection.where

    async def models(self) -> Mapping[str, int | None]:
        answer = await self._connection.answer(asyncio.to_thread(self._client.get_server_capabilities), "its models")
        return {each.model_name: each.max_context_length for each in answer.supported_models if each.model_name}

    async def train(
        self, base_model: str, *, rank: int, seed: int, state: str | None = None, with_optimizer: bool = True
    ) -> TinkerAdapter:
        pending = asyncio.to_thread(
            self._client.create_lora_training_client, base_model, rank=rank, seed=seed % (2**31 - 1)
        )
        client = await self._connection.answer(
            pending, f"an adapter of rank {rank} (learner.lora.rank) on {base_model}"
        )
        if state is not None:  # servers accept this only as an adapter's first request
            load = client.load_state_with_optimizer_async if with_optimizer else client.load_state_async
            await self._connection.answer(await load(state), f"loading {state}")
        return TinkerAdapter(client, self._connection)

    async def watch(self) -> None:
        await self._connection.watch()

    async def aclose(self) -> None:
        """The SDK keeps a session alive for as long as its client lives."""
        holder = getattr(self._client, "_session_holder", None)
        if holder is not None:
            await asyncio.to_thread(holder.close)


async def connect(base_url: str, *, timeout_s: float) -> TinkerService:
    """The server at `base_url`, or the Tinker service if that is empty."""
    connection = ServerConnection(base_url, timeout_s=timeout_s)
    if not base_url and not os.environ.get("TINKER_API_KEY"):
        raise ConfigError(
            "bridge=tinker: set base_url to a server of your own, or TINKER_API_KEY for the Tinker service"
        )
    if not await connection.is_reachable():
        raise ConfigError(f"nothing answers at base_url={base_url}: start the Tinker server, or correct base_url")
    known = {"base_url": base_url} if base_url else {}
    key = os.environ.get("TINKER_API_KEY") or _NO_KEY
    client = await connection.answer(asyncio.to_thread(tinker.ServiceClient, api_key=key, **known), "opening a session")
    return TinkerService(connection, client)


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


def _to_pass_result(output: Any) -> PassResult:
    return PassResult(
        logprobs=[array("f", each["logprobs"].data) for each in output.loss_fn_outputs],
        metrics=dict(output.metrics or {}),
    )
