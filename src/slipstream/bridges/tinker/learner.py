"""A Learner on a server of the Tinker API.

Input: batches. Output: a LoRA adapter on the server that has learnt from them, and a completer that samples from it.
Invariants: a version counts once all of its optimiser steps are made and its sampler is there. Forward-backward and
optimiser step are both sent before either is waited for, and so are those of all minibatches. If anything fails on the
way the adapter's state is unknown: the learner makes no more updates and saves nothing until `load`. A checkpoint is
the path of what the server keeps; its folder holds that path, and is written last.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import time
import uuid
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from slipstream.aio import outlast, task_group
from slipstream.atomic import atomic_folder, write_synced
from slipstream.bridges.tinker.completer import TinkerCompleter
from slipstream.bridges.tinker.data import Datum, demonstration_datums, to_datums
from slipstream.bridges.tinker.figures import UpdateFigures, mean_cost, trained_differences
from slipstream.bridges.tinker.protocols import AdamStep, Adapter, Loss, PassResult, Sampler, Service
from slipstream.bridges.tinker.schedule import minibatches, warm_steps
from slipstream.engine.training.config import LearnerConfig, LossConfig, WarmStartConfig
from slipstream.engine.training.step_plan import Masked
from slipstream.errors import BridgeError, ConfigError, ModelError
from slipstream.types import Batch, SampleParams, UpdateResult, token_ids

T = TypeVar("T")

log = logging.getLogger(__name__)

CHECKPOINT = "tinker.json"
MAX_DIFFERENCE = 1.0
"""Nats by which the server's sampler and its training may differ on a token at the start, well above rounding."""
_WARM_AHEAD = 8
"""Optimiser steps of a warm start that are in flight at once."""
_LOST = "an update failed halfway, so the adapter's state is unknown: resume from the last checkpoint"
_PROBE_TEXT = 'Text to compare two tokenizers by: don\'t  split\n\t{"x": [1, 23, 456]} def f(a_b): ünï 你好'


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerCheckpoint:
    """The content of a checkpoint's folder."""

    state: str
    """The path on the server."""
    version: int
    num_steps: int
    """Optimiser steps so far, which determine the learning rate."""
    base_model: str
    rank: int


def loss_of(config: LossConfig) -> Loss:
    """The API's name for a loss, and its settings."""
    if config.kind == "importance_sampling":
        return Loss(name="importance_sampling")
    if config.kind == "ppo_clip":
        return Loss(
            name="ppo",
            config={"clip_low_threshold": 1 - config.clip_low, "clip_high_threshold": 1 + config.clip_high},
        )
    raise ConfigError(f"learner.loss.kind={config.kind}: bridge=tinker has importance_sampling and ppo_clip")


class TinkerLearner:
    def __init__(
        self,
        service: Service,
        base_model: str,
        config: LearnerConfig,
        *,
        completer: TinkerCompleter,
        seed: int,
        probe_ids: Sequence[int],
        encode: Callable[[str], Sequence[int]] | None = None,
    ) -> None:
        """`probe_ids` is a short prompt to check the server with; `encode` is the tokenizer used here, to be
        compared with the server's."""
        self.version = 0
        self._service = service
        self._base_model = base_model
        self._config = config
        self._loss = loss_of(config.loss)
        self._completer = completer
        self._seed = seed
        self._probe_ids = list(probe_ids)
        self._encode = encode
        self._adapter: Adapter | None = None
        self._num_steps = 0
        self._is_lost = False

    @property
    def completer(self) -> TinkerCompleter:
        return self._completer

    async def start(self) -> None:
        """Open a fresh adapter, if there is none yet. What the server cannot do is refused here."""
        if self._adapter is None:
            await self._open_adapter(None)

    async def watch(self) -> None:
        """Never returns; raises BridgeError once this server is unusable."""
        async with task_group() as group:
            group.create_task(self._service.watch())
            group.create_task(self._completer.watch())

    async def update(self, batch: Batch) -> UpdateResult:
        began = time.perf_counter()
        adapter = await self._usable_adapter()
        datums = to_datums(batch.rows)
        tally = UpdateFigures(self._loss, batch.version)
        if datums:
            async with self._completer.paused():
                with self._all_or_lost():
                    await self._learn(adapter, datums, tally)
                    sampler = await adapter.sampler()
                self._completer.use(sampler, version=self.version + 1)
        else:
            log.warning("no step: none of the %d rows of this batch has a token to train on", len(batch.rows))
            self._completer.version = self.version + 1
        self.version += 1
        self._num_steps += tally.num_steps
        metrics = tally.metrics() if datums else {}
        metrics |= {
            "learn/learning_rate": self._learning_rate(max(0, self._num_steps - 1)),
            "learn/steps": float(tally.num_steps),
            "learn/tokens": float(sum(datum.num_trained for datum in datums)),
            "learn/rows": float(len(datums)),
            "learn/rollouts": float(len({datum.rollout for datum in datums})),
            "learn/seconds": time.perf_counter() - began,
        }
        return UpdateResult(version=self.version, metrics=metrics)

    async def _learn(self, adapter: Adapter, datums: Sequence[Datum], tally: UpdateFigures) -> None:
        chance = random.Random(f"minibatches {self._seed} {self.version}")
        parts = list(minibatches(datums, self._config, chance))
        rates = [self._learning_rate(self._num_steps + number) for number in range(len(parts))]
        done = await _run_steps(adapter, parts, self._loss, [self._adam(rate) for rate in rates])
        for part, (result, step_metrics) in zip(parts, done, strict=True):
            tally.add(part, result, step_metrics)
        loss = tally.metrics()["learn/loss"]
        if not math.isfinite(loss):
            raise BridgeError(
                f"the loss of version {self.version + 1} is {loss}: lower learner.learning_rate, and resume from "
                "the last checkpoint"
            )

    def _learning_rate(self, step: int) -> float:
        return self._config.rate_of("lora") * self._config.rate_factor(step)  # what is trained is always an adapter

    def _adam(self, rate: float) -> AdamStep:
        config = self._config
        return AdamStep(
            learning_rate=rate,
            betas=config.betas,
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
        )

    # ---------------------------------------------------------------- learning by example

    async def warm_start(
        self,
        demonstrations: Sequence[Masked],
        config: WarmStartConfig,
        *,
        on_step: Callable[[int, int, float], None] = lambda step, steps, loss: None,
        keep: Path | None = None,
    ) -> Mapping[str, float]:
        """Imitate `demonstrations`; the version stays as it is, and the optimiser restarts afterwards. A stopped one
        keeps nothing, not in `keep` either: the next one starts over."""
        began = time.perf_counter()
        adapter = await self._usable_adapter()
        datums = demonstration_datums(demonstrations)
        if not datums:
            raise ConfigError("no demonstration has a token with mask 1, so there is nothing to learn")
        steps = warm_steps(datums, config)
        costs: list[float] = []
        async with self._completer.paused():
            with self._all_or_lost():
                for first in range(0, len(steps), _WARM_AHEAD):
                    if config.limit_s is not None and time.perf_counter() - began > config.limit_s:
                        break
                    some = steps[first : first + _WARM_AHEAD]
                    rates = [config.rate_at(first + number, len(steps)) for number in range(len(some))]
                    costs += await self._imitate(adapter, some, rates, config)
                    on_step(len(costs), len(steps), costs[-1])
                state = await adapter.save_state(_name("warm"))
                await self._open_adapter(state, with_optimizer=False)
        last = costs[-max(1, len(costs) // 10) :]
        return {
            "warm/loss_first": costs[0] if costs else 0.0,
            "warm/loss": sum(last) / len(last) if last else 0.0,
            "warm/steps": float(len(costs)),
            "warm/tokens": float(sum(datum.num_trained for step in steps[: len(costs)] for datum in step)),
            "warm/out_of_time": float(len(costs) < len(steps)),
            "warm/seconds": time.perf_counter() - began,
        }

    async def _imitate(
        self, adapter: Adapter, steps: Sequence[Sequence[Datum]], rates: Sequence[float], config: WarmStartConfig
    ) -> list[float]:
        optimiser = [
            AdamStep(learning_rate=rate, betas=config.betas, eps=1e-8, max_grad_norm=config.max_grad_norm)
            for rate in rates
        ]
        done = await _run_steps(adapter, steps, Loss(name="cross_entropy"), optimiser)
        costs = [mean_cost(step, result) for step, (result, _) in zip(steps, done, strict=True)]
        if not all(map(math.isfinite, costs)):
            raise BridgeError("the loss of the warm start is not a number: lower warm_start.learning.learning_rate")
        return costs

    # ---------------------------------------------------------------- keeping

    async def save(self, folder: Path) -> None:
        adapter = await self._usable_adapter()
        saved = TinkerCheckpoint(
            state=await adapter.save_state(_name(f"version-{self.version:06d}")),
            version=self.version,
            num_steps=self._num_steps,
            base_model=self._base_model,
            rank=self._config.lora.rank,
        )
        _write(folder, asdict(saved))

    async def load(self, folder: Path) -> None:
        try:
            saved = TinkerCheckpoint(**json.loads((folder / CHECKPOINT).read_text()))
        except (OSError, ValueError, TypeError) as raised:
            raise ConfigError(f"{folder} is not a checkpoint of bridge=tinker: {raised}") from raised
        if (saved.base_model, saved.rank) != (self._base_model, self._config.lora.rank):
            raise ConfigError(
                f"{folder} is of rank {saved.rank} on {saved.base_model}, and the run's adapter is of rank "
                f"{self._config.lora.rank} on {self._base_model}: serve the same model, with the same learner.lora.rank"
            )
        self.version, self._num_steps = saved.version, saved.num_steps
        await self._open_adapter(saved.state)
        self._is_lost = False

    async def export(self, folder: Path) -> None:
        """Write where the trained adapter is on the server, into a folder with one small file."""
        adapter = await self._usable_adapter()
        path = await adapter.save_for_sampling(_name("trained"))
        _write(folder, {"adapter": path, "base_model": self._base_model, "rank": self._config.lora.rank})

    async def aclose(self) -> None:
        try:
            await self._completer.aclose()
        finally:
            closing = asyncio.ensure_future(self._close())
            await outlast([closing])

    async def _close(self) -> None:
        if self._adapter is not None:
            await self._adapter.unload()
            self._adapter = None
        await self._service.aclose()

    # ---------------------------------------------------------------- beginning

    async def _open_adapter(self, state: str | None, *, with_optimizer: bool = True) -> None:
        """Open a fresh adapter, or one from what was saved; the one before it is unloaded."""
        if self._adapter is not None:
            await self._adapter.unload()
            self._adapter = None
        self._adapter = adapter = await self._service.train(
            self._base_model, rank=self._config.lora.rank, seed=self._seed, state=state, with_optimizer=with_optimizer
        )
        await self._compare_tokenizers(adapter)
        sampler = await adapter.sampler()
        await self._check_server(adapter, sampler)
        self._completer.use(sampler, version=self.version)

    async def _compare_tokenizers(self, adapter: Adapter) -> None:
        if self._encode is None:
            return
        encode = await adapter.encoder()
        if encode is None:
            log.warning("the tokenizer of %s is not available here, so it is not compared", self._base_model)
            return
        ours, theirs = list(self._encode(_PROBE_TEXT)), list(encode(_PROBE_TEXT))
        if ours != theirs:
            raise ConfigError(
                f"the tokenizer in model.folder is not that of {self._base_model} at {self._service.where} (a line of "
                f"text is {ours[:6]}... here and {theirs[:6]}... there): name the served model's own folder"
            )

    async def _check_server(self, adapter: Adapter, sampler: Sampler) -> None:
        """Sample a little and run the loss on it, so that what does not work fails now."""
        asked = SampleParams(max_tokens=8, seed=0, stop_ids=(self._probe_ids[0],))
        try:
            sampled = await sampler.sample(self._probe_ids, asked)
        except ModelError as raised:
            raise ConfigError(f"{self._service.where} cannot be sampled from{_with_sdk()}: {raised}") from raised
        if sampled.logprobs is None:
            raise ConfigError(
                f"{self._service.where} samples without logprobs, which training needs: use another server"
            )
        datums = [_probe(self._probe_ids, sampled.ids, sampled.logprobs)]
        try:
            result = await adapter.forward(datums, self._loss)
        except BridgeError as raised:
            raise ConfigError(f"{self._service.where} does not take the loss {self._loss.name}: {raised}") from raised
        worst = max(map(abs, trained_differences(datums, result)), default=0.0)
        log.info("sampled and scored logprobs differ by at most %.2g at the start", worst)
        if not worst <= MAX_DIFFERENCE:
            raise ConfigError(
                f"{self._service.where} samples a token with a logprob that is {worst:.2g} off what it scores it with, "
                "so it does not sample from what it trains: check its settings"
            )

    async def _usable_adapter(self) -> Adapter:
        if self._is_lost:
            raise BridgeError(_LOST)
        await self.start()
        assert self._adapter is not None
        return self._adapter

    @contextmanager
    def _all_or_lost(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._is_lost = True
            raise


def _with_sdk() -> str:
    try:
        found = metadata.version("tinker")
    except metadata.PackageNotFoundError:
        return ""
    return f" with the SDK tinker {found} (SkyRL's server 0.4.0 needs tinker 0.25 to 0.28)"


def _probe(prompt_ids: Sequence[int], sampled_ids: Sequence[int], logprobs: Sequence[float]) -> Datum:
    given = [0.0] * (len(prompt_ids) - 1)
    weights = array("f", [*given, *([1.0] * len(sampled_ids))])
    ids = token_ids([*prompt_ids, *sampled_ids])
    return Datum(
        rollout="probe",
        inputs=ids[:-1],
        targets=ids[1:],
        logprobs=array("f", [*given, *logprobs]),
        advantages=weights,
        weights=weights,
    )


async def _run_steps(
    adapter: Adapter, parts: Sequence[Sequence[Datum]], loss: Loss, optimiser: Sequence[AdamStep]
) -> list[tuple[PassResult, Mapping[str, float]]]:
    """A pass and a step for each part. All are sent before the first is awaited; the first failure ends the wait."""
    passes, steps = [], []
    for part, step in zip(parts, optimiser, strict=True):
        passes.append(await adapter.send_pass(part, loss))
        steps.append(await adapter.send_step(step))
    async with task_group() as group:
        seen = [group.create_task(_wait_for(each)) for each in passes]
        made = [group.create_task(_wait_for(each)) for each in steps]
    return [(one.result(), other.result()) for one, other in zip(seen, made, strict=True)]


async def _wait_for(sent: Awaitable[T]) -> T:
    return await sent


def _name(what: str) -> str:
    """A name for what the server keeps; never the same twice, so that a save can be retried."""
    return f"{what}-{uuid.uuid4().hex[:8]}"


def _write(folder: Path, content: Mapping[str, object]) -> None:
    """Completely or not at all."""
    with atomic_folder(folder) as part:
        write_synced(part / CHECKPOINT, (json.dumps(content, indent=2) + "\n").encode())
