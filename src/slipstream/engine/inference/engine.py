"""The embedded engine: a Completer for small models in this process, with continuous batching in torch.

Input: prompts as token ids, and weights by their Hugging Face names. Output: sampled tokens with the logprobs of the
distribution they were drawn from and the version of the weights that drew them.
Invariants: the event loop never waits for the model; a request ends exactly once, whatever fails; when all slots are
busy, requests wait instead of being refused.

    async with TorchEngine.from_folder(Path("models/smollm2"), EngineConfig()) as engine:
        sampled = await engine.complete(prompt_ids, SampleParams(seed=1), session="rollout-7")
"""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import torch

from slipstream.aio import outlast
from slipstream.engine.inference.config import HEAD_SIZES, EngineConfig
from slipstream.engine.inference.decoder import Decoder
from slipstream.engine.inference.request import Request
from slipstream.engine.inference.worker import EngineCounts, SessionEnd, Update, Worker
from slipstream.engine.model.device import find_device
from slipstream.engine.model.spec import ModelSpec, read_spec
from slipstream.engine.model.weights import read_weights
from slipstream.errors import ConfigError, ContextOverflow, ModelError
from slipstream.types import EngineLoad, EngineWork, Sampled, SampleParams, TokenIds, token_ids

MAX_CONTEXT_TOKENS = 4096
"""Default upper bound of a slot's length."""


class TorchEngine:
    def __init__(
        self, spec: ModelSpec, weights: Iterable[tuple[str, torch.Tensor]], config: EngineConfig, *, version: int = 0
    ) -> None:
        self.spec = spec
        self.config = config
        self.context_tokens = config.context_tokens or min(spec.context_tokens, MAX_CONTEXT_TOKENS)
        if self.context_tokens > spec.context_tokens:
            raise ConfigError(
                f"context_tokens={self.context_tokens} exceeds the model's window: set at most {spec.context_tokens}"
            )
        device = find_device(config.device)
        graphs = _use_kernels(spec, config, device)
        with torch.inference_mode():
            decoder = Decoder(
                spec,
                num_slots=config.num_slots + (1 if config.deterministic or graphs else 0),  # the last is for padding
                context_tokens=self.context_tokens,
                device=device,
                dtype=_dtype(config.dtype, device),
            )
            _check_complete(decoder, decoder.load_weights(weights))
        self._worker = _graph_worker(decoder, config, version) if graphs else Worker(decoder, config, version)
        self._num_open = 0

    @staticmethod
    def from_folder(folder: Path, config: EngineConfig, *, version: int = 0) -> TorchEngine:
        """Open the model of a Hugging Face folder: config.json and safetensors."""
        return TorchEngine(read_spec(folder), read_weights(folder), config, version=version)

    # ---------------------------------------------------------------- the Completer

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
        """See `Completer`. Without a seed, one is drawn. Lower priorities go first."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Sampled] = loop.create_future()
        prompt = token_ids(prompt_ids)

        def deliver(result: Sampled | ModelError) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody is waiting any more
                loop.call_soon_threadsafe(_settle, outcome, result)

        request = Request(
            prompt=prompt,
            params=params,
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            max_tokens=self._max_tokens(prompt, params),
            deliver=deliver,
            session=session,
            priority=priority,
            salt=cache_salt,
        )
        self._worker.put(request)
        self._num_open += 1
        try:
            async with asyncio.timeout(timeout_s) as scope:
                return await outcome
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            request.cancelled = True
            self._num_open -= 1
        raise ModelError(f"the engine took longer than {timeout_s:g} s")

    def end_session(self, session: str) -> None:
        """See `SessionKeeper`."""
        with suppress(ModelError):  # a closed engine keeps nothing
            self._worker.put(SessionEnd(session=session))

    def load(self) -> EngineLoad:
        """Only running requests count as cache in use: what is kept for idle sessions is evicted on demand."""
        kv_tokens = self.config.num_slots * self.context_tokens
        running = self._worker.num_running
        return EngineLoad(
            running=running,
            waiting=max(0, self._num_open - running),
            kv_used=self._worker.num_held / kv_tokens,
            kv_tokens=kv_tokens,
            tokens_per_s=self._worker.tokens_per_s if running else 0.0,
            prefill_tokens_s=self._worker.work.prefill_tokens_s,
            slots=self.config.num_slots,
            contexts=self.config.num_slots,
        )

    def take_work(self) -> tuple[EngineWork, ...]:
        """See `WorkTeller`."""
        return self._worker.work.take()

    async def aclose(self) -> None:
        """Running requests fail with a ModelError."""
        await outlast([asyncio.ensure_future(asyncio.to_thread(self._worker.close))])

    async def __aenter__(self) -> TorchEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # ---------------------------------------------------------------- weights

    @property
    def version(self) -> int:
        """The version of the weights that the next token is sampled with."""
        return self._worker.version

    @property
    def counts(self) -> EngineCounts:
        return self._worker.counts

    def update_weights(self, named: Iterable[tuple[str, torch.Tensor]], *, version: int) -> None:
        """Copy weights in by Hugging Face names, and return when they are in place. Unnamed weights stay.

        It blocks until the current step is over, so on an event loop call it through `asyncio.to_thread`. Running
        requests continue with the new weights from their next token; by default their cache is recomputed first, and
        what is kept for sessions is dropped (`EngineConfig.on_update`). With a wrong name or shape nothing changes.
        """
        done: Future[None] = Future()
        self._worker.put(Update(named=list(named), version=version, done=done))
        done.result()

    def _max_tokens(self, prompt: TokenIds, params: SampleParams) -> int:
        """How many tokens may be sampled. Raises ModelError for an invalid request."""
        if not prompt:
            raise ModelError("the prompt is empty: give at least one token")
        lowest, highest = torch.frombuffer(prompt, dtype=torch.int32).aminmax()
        if lowest < 0 or highest >= self.spec.vocab_size:
            wrong = next(token for token in prompt if not 0 <= token < self.spec.vocab_size)
            raise ModelError(f"token {wrong} of the prompt is outside the model's vocabulary of {self.spec.vocab_size}")
        if not params.temperature >= 0.0 or not 0.0 < params.top_p <= 1.0:
            raise ModelError(
                f"temperature {params.temperature:g} with top_p {params.top_p:g} is invalid: "
                "set temperature to at least 0 and top_p above 0, up to 1"
            )
        max_tokens = min(params.max_tokens, self.context_tokens - len(prompt))
        if max_tokens < 1:
            raise ContextOverflow(
                f"a prompt of {len(prompt)} tokens leaves no room for an answer in a context of {self.context_tokens}"
            )
        return max_tokens


def _settle(outcome: asyncio.Future[Sampled], result: Sampled | ModelError) -> None:
    if outcome.done():
        return
    if isinstance(result, ModelError):
        outcome.set_exception(result)
    else:
        outcome.set_result(result)


def _check_complete(decoder: Decoder, given: set[str]) -> None:
    wanted = set(decoder.targets)
    if decoder.spec.tied:
        wanted.discard("lm_head.weight")
    missing = sorted(wanted - given)
    if missing:
        raise ConfigError(
            f"the model folder lacks {missing[0]} and {len(missing) - 1} more weights: download the model again"
        )


def _use_kernels(spec: ModelSpec, config: EngineConfig, device: torch.device) -> bool:
    if config.kernels == "torch" or config.deterministic or (config.kernels == "auto" and device.type != "cuda"):
        return False
    fits = spec.head_size in HEAD_SIZES
    found = importlib.util.find_spec("triton") is not None
    if config.kernels == "triton" and not (fits and found):
        why = "triton is not installed" if fits else f"head size {spec.head_size} is not one of {HEAD_SIZES}"
        raise ConfigError(f"kernels=triton: {why}; set kernels=torch")
    return fits and found


def _graph_worker(decoder: Decoder, config: EngineConfig, version: int) -> Worker:
    from slipstream.engine.gpu.graph_worker import GraphWorker
    from slipstream.engine.gpu.graphs import GraphDecoder

    passes = GraphDecoder(decoder, num_slots=config.num_slots, num_steps=config.steps_ahead)
    return GraphWorker(decoder, passes, config, version)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
