"""A Learner on a server of the Tinker API.

Enters: batches. Leaves: a LoRA adapter on the server that has learnt from them, and a completer that samples from it.
Always holds: a version is counted once all of its optimiser steps are made and its sampler is there. Forward-backward
and optimiser step are both sent before either is waited for, and so are those of all minibatches. If anything fails on
the way the adapter's state is unknown: the learner makes no more updates and saves nothing, until `load` goes on from
what was saved. A checkpoint is the path of what the server keeps; the folder has that path, and is written last.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import shutil
import time
import uuid
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from slipstream.aio import outlast, task_group
from slipstream.bridges.tinker.completer import TinkerCompleter
from slipstream.bridges.tinker.data import Datum, Masked, demonstrated, to_datums
from slipstream.bridges.tinker.figures import UpdateFigures, mean_cost, trained_differences
from slipstream.bridges.tinker.order import learning_rate, minibatches, warm_learning_rate, warm_steps
from slipstream.bridges.tinker.seam import AdamStep, Loss, PassResult, Sampler, Service, Trainee
from slipstream.engine.training.config import LearnerConfig, LossConfig, WarmStartConfig
from slipstream.errors import BridgeError, ConfigError
from slipstream.types import Batch, SampleParams, UpdateResult, token_ids

T = TypeVar("T")

log = logging.getLogger(__name__)

CHECKPOINT = "tinker.json"
MAX_DIFFERENCE = 1.0
"""Nats by which the server's sampler and its training may differ on a token, at the start. Rounding is far below it."""
_WARM_AHEAD = 8
"""Optimiser steps of a warm start that are on their way at once."""
_SPOILT = "an update failed on the way, so what the adapter has learnt is unknown: go on from the last checkpoint"
_PROBE_TEXT = 'Text to compare two tokenizers by: don\'t  split\n\t{"x": [1, 23, 456]} def f(a_b): ünï 你好'


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerCheckpoint:
    """What a checkpoint's folder says."""

    state: str
    """The path on the server."""
    version: int
    num_steps: int
    """Optimiser steps so far, which the learning rate goes by."""
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
        """`probe_ids` is a short prompt that the server is tried with; `encode` is the tokenizer used here, to be
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
        self._trainee: Trainee | None = None
        self._num_steps = 0
        self._is_spoilt = False

    @property
    def completer(self) -> TinkerCompleter:
        return self._completer

    async def start(self) -> None:
        """Begin with a fresh adapter, if there is none yet. What the server cannot do is refused here."""
        if self._trainee is None:
            await self._begin(None)

    async def watch(self) -> None:
        """Returns never; raises BridgeError once there is no going on with this server."""
        async with task_group() as group:
            group.create_task(self._service.watch())
            group.create_task(self._completer.watch())

    async def update(self, batch: Batch) -> UpdateResult:
        began = time.perf_counter()
        trainee = await self._sound()
        datums = to_datums(batch.rows)
        tally = UpdateFigures(self._loss, batch.version)
        if datums:
            async with self._completer.paused():
                with self._all_or_spoilt():
                    await self._learn(trainee, datums, tally)
                    sampler = await trainee.sampler()
                self._completer.use(sampler, version=self.version + 1)
        else:
            log.warning("no step: none of the %d rows of this batch has a token to train on", len(batch.rows))
            self._completer.version = self.version + 1
        self.version += 1
        self._num_steps += tally.num_steps
        metrics = tally.metrics() if datums else {}
        metrics |= {
            "learn/learning_rate": learning_rate(max(0, self._num_steps - 1), self._config),
            "learn/steps": float(tally.num_steps),
            "learn/tokens": float(sum(datum.num_trained for datum in datums)),
            "learn/rows": float(len(datums)),
            "learn/rollouts": float(len({datum.rollout for datum in datums})),
            "learn/seconds": time.perf_counter() - began,
        }
        return UpdateResult(version=self.version, metrics=metrics)

    async def _learn(self, trainee: Trainee, datums: Sequence[Datum], tally: UpdateFigures) -> None:
        chance = random.Random(f"minibatches {self._seed} {self.version}")
        parts = list(minibatches(datums, self._config, chance))
        rates = [learning_rate(self._num_steps + number, self._config) for number in range(len(parts))]
        done = await _carry_out(trainee, parts, self._loss, [self._adam(rate) for rate in rates])
        for part, (result, step_metrics) in zip(parts, done, strict=True):
            tally.add(part, result, step_metrics)
        loss = tally.metrics()["learn/loss"]
        if not math.isfinite(loss):
            raise BridgeError(
                f"the loss of version {self.version + 1} is {loss}: lower learner.learning_rate, and go on from the "
                "last checkpoint"
            )

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
        """Imitate `demonstrations`; the version stays as it is, and the optimiser begins anew afterwards. Nothing is
        kept of one that is stopped, in `keep` neither: the next one begins anew."""
        began = time.perf_counter()
        trainee = await self._sound()
        datums = demonstrated(demonstrations)
        if not datums:
            raise ConfigError("no demonstration has a token with mask 1, so there is nothing to learn")
        steps = warm_steps(datums, config)
        costs: list[float] = []
        async with self._completer.paused():
            with self._all_or_spoilt():
                for first in range(0, len(steps), _WARM_AHEAD):
                    if config.limit_s is not None and time.perf_counter() - began > config.limit_s:
                        break
                    some = steps[first : first + _WARM_AHEAD]
                    rates = [warm_learning_rate(first + number, len(steps), config) for number in range(len(some))]
                    costs += await self._imitate(trainee, some, rates, config)
                    on_step(len(costs), len(steps), costs[-1])
                state = await trainee.save_state(_name("warm"))
                await self._begin(state, with_optimizer=False)
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
        self, trainee: Trainee, steps: Sequence[Sequence[Datum]], rates: Sequence[float], config: WarmStartConfig
    ) -> list[float]:
        optimiser = [
            AdamStep(learning_rate=rate, betas=config.betas, eps=1e-8, max_grad_norm=config.max_grad_norm)
            for rate in rates
        ]
        done = await _carry_out(trainee, steps, Loss(name="cross_entropy"), optimiser)
        costs = [mean_cost(step, result) for step, (result, _) in zip(steps, done, strict=True)]
        if not all(map(math.isfinite, costs)):
            raise BridgeError("the loss of the warm start is no number: lower warm_start.learning.learning_rate")
        return costs

    # ---------------------------------------------------------------- keeping

    async def save(self, folder: Path) -> None:
        trainee = await self._sound()
        saved = TinkerCheckpoint(
            state=await trainee.save_state(_name(f"version-{self.version:06d}")),
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
            raise ConfigError(f"{folder} is no checkpoint of bridge=tinker: {raised}") from raised
        if (saved.base_model, saved.rank) != (self._base_model, self._config.lora.rank):
            raise ConfigError(
                f"{folder} is of rank {saved.rank} on {saved.base_model}, and the run's adapter is of rank "
                f"{self._config.lora.rank} on {self._base_model}: serve the same model, with the same learner.lora.rank"
            )
        self.version, self._num_steps = saved.version, saved.num_steps
        await self._begin(saved.state)
        self._is_spoilt = False

    async def export(self, folder: Path) -> None:
        """Where the trained adapter is on the server, as a folder with one small file."""
        trainee = await self._sound()
        path = await trainee.save_for_sampling(_name("trained"))
        _write(folder, {"adapter": path, "base_model": self._base_model, "rank": self._config.lora.rank})

    async def aclose(self) -> None:
        try:
            await self._completer.aclose()
        finally:
            closing = asyncio.ensure_future(self._close())
            await outlast([closing])

    async def _close(self) -> None:
        if self._trainee is not None:
            await self._trainee.unload()
            self._trainee = None
        await self._service.aclose()

    # ---------------------------------------------------------------- beginning

    async def _begin(self, state: str | None, *, with_optimizer: bool = True) -> None:
        """A fresh adapter, or one from what was saved; the one before it is given up."""
        if self._trainee is not None:
            await self._trainee.unload()
            self._trainee = None
        self._trainee = trainee = await self._service.train(
            self._base_model, rank=self._config.lora.rank, seed=self._seed, state=state, with_optimizer=with_optimizer
        )
        await self._compare_tokenizers(trainee)
        sampler = await trainee.sampler()
        await self._try(trainee, sampler)
        self._completer.use(sampler, version=self.version)

    async def _compare_tokenizers(self, trainee: Trainee) -> None:
        if self._encode is None:
            return
        encode = await trainee.encoder()
        if encode is None:
            log.warning("the tokenizer of %s cannot be had here, so it is not compared", self._base_model)
            return
        ours, theirs = list(self._encode(_PROBE_TEXT)), list(encode(_PROBE_TEXT))
        if ours != theirs:
            raise ConfigError(
                f"the tokenizer in model.folder is not that of {self._base_model} at {self._service.where} (a line of "
                f"text is {ours[:6]}... here and {theirs[:6]}... there): name the served model's own folder"
            )

    async def _try(self, trainee: Trainee, sampler: Sampler) -> None:
        """Sample a little, and let the loss look at it: what does not work is to fail now."""
        asked = SampleParams(max_tokens=8, seed=0, stop_ids=(self._probe_ids[0],))
        sampled = await sampler.sample(self._probe_ids, asked)
        if sampled.logprobs is None:
            raise ConfigError(
                f"{self._service.where} samples without logprobs, which training needs: use another server"
            )
        datums = [_probe(self._probe_ids, sampled.ids, sampled.logprobs)]
        try:
            result = await trainee.forward(datums, self._loss)
        except BridgeError as raised:
            raise ConfigError(f"{self._service.where} does not take the loss {self._loss.name}: {raised}") from raised
        worst = max(map(abs, trained_differences(datums, result)), default=0.0)
        log.info("sampled and scored logprobs differ by at most %.2g at the start", worst)
        if not worst <= MAX_DIFFERENCE:
            raise ConfigError(
                f"{self._service.where} samples a token with a logprob that is {worst:.2g} off what it scores it with, "
                "so it does not sample from what it trains: look at its settings"
            )

    async def _sound(self) -> Trainee:
        if self._is_spoilt:
            raise BridgeError(_SPOILT)
        await self.start()
        assert self._trainee is not None
        return self._trainee

    @contextmanager
    def _all_or_spoilt(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._is_spoilt = True
            raise


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


async def _carry_out(
    trainee: Trainee, parts: Sequence[Sequence[Datum]], loss: Loss, optimiser: Sequence[AdamStep]
) -> list[tuple[PassResult, Mapping[str, float]]]:
    """A pass and a step for each part. All are sent before the first is waited for; the first failure ends the wait."""
    passes, steps = [], []
    for part, step in zip(parts, optimiser, strict=True):
        passes.append(await trainee.send_pass(part, loss))
        steps.append(await trainee.send_step(step))
    async with task_group() as group:
        seen = [group.create_task(_awaited(each)) for each in passes]
        made = [group.create_task(_awaited(each)) for each in steps]
    return [(one.result(), other.result()) for one, other in zip(seen, made, strict=True)]


async def _awaited(sent: Awaitable[T]) -> T:
    return await sent


def _name(what: str) -> str:
    """Of something that the server is to keep: never the same twice, so that a save can be tried again."""
    return f"{what}-{uuid.uuid4().hex[:8]}"


def _write(folder: Path, content: Mapping[str, object]) -> None:
    """Whole or not at all."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / CHECKPOINT).write_text(json.dumps(content, indent=2) + "\n")
    partial.rename(folder)
