"""The embedded learner: updates the weights from batches, in this process.

Input: a Hugging Face model folder, then batches. Output: metrics for each batch, weights by their Hugging Face names
for an engine, checkpoints. All methods are synchronous: call them in a thread, one at a time.
Invariants: an update happens completely or not at all; on an exception weights, optimiser and version are restored.
`version` grows by one whenever the weights change. Rows outside the loss and tokens after the last trained one are not
computed. The gradient does not depend on how rows are split into micro-batches, up to rounding. On a CPU the
same folder, seed and batches give the same bits. No global state is set.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from slipstream.engine.model.device import find_device
from slipstream.engine.model.folder import Dtype, write_model_folder
from slipstream.engine.training.checkpoint import Checkpoint, file_digest, read_checkpoint, write_checkpoint
from slipstream.engine.training.config import LearnerConfig, WarmStartConfig
from slipstream.engine.training.losses import row_scales, token_losses
from slipstream.engine.training.memory import MicrobatchBudget, estimate_tokens, fixed_bytes, free_memory, memory_guard
from slipstream.engine.training.metrics import UpdateMetrics
from slipstream.engine.training.microbatches import TrainRow, collate, plan, train_rows
from slipstream.engine.training.optimizer_step import all_or_nothing, make_optimizer, make_step
from slipstream.engine.training.sft import warm_start
from slipstream.engine.training.state import put_state, state_tensors
from slipstream.engine.training.step_plan import Masked, deal_out
from slipstream.engine.training.trainable import Trainable
from slipstream.errors import ConfigError
from slipstream.types import Batch, Json, UpdateResult

T = TypeVar("T")
_LOG = logging.getLogger(__name__)

_ADAPTER_PART_BYTES = 16 << 20
_FULL_PART_BYTES = 512 << 20
_MODEL_ENDS_BYTES = 1 << 20


class TorchLearner:
    def __init__(
        self,
        folder: Path,
        config: LearnerConfig,
        *,
        device: str = "auto",
        seed: int = 0,
        model: Trainable | None = None,
    ) -> None:
        """`device` is `auto`, `cpu` or `cuda`. `seed` is for the adapter's start and the order of mini-batches.
        `model` is the folder's, if it is loaded already."""
        self._folder = folder
        self._config = config
        self._device = find_device(device)
        self._model = model or Trainable(folder, config, device=self._device, seed=seed)
        self._rate = config.rate_of(config.method, self._model.num_parameters)
        self._budget = MicrobatchBudget(self._first_budget(), checkpoints_layers=config.gradient_checkpointing)
        self._optimizer = make_optimizer(
            self._model.parameters,
            learning_rate=self._rate,
            betas=config.betas,
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
        )
        self._random = random.Random(seed)
        self._num_steps = 0
        self._version = 0

    @property
    def version(self) -> int:
        """How often updates and warm starts have changed the weights."""
        return self._version

    # ---------------------------------------------------------------- learning

    def update(self, batch: Batch) -> UpdateResult:
        """Learn from a batch. Without any token to train on nothing happens: `learn/steps` is 0, the version stays.

        Raises LearnerError if the loss or the gradient is not finite, ConfigError if a pass does not fit in memory.
        """
        began, config = time.perf_counter(), self._config
        rows = train_rows(batch.rows, vocab_size=self._model.vocab_size, version=batch.version)
        tally = UpdateMetrics()
        if rows:
            chance = random.Random()
            chance.setstate(self._random.getstate())
            rollouts = [row.rollout for row in rows]
            epochs = [deal_out(rollouts, config.num_minibatches, chance) for _ in range(config.num_epochs)]
            steps = [step for epoch in epochs for step in epoch]
            with all_or_nothing(self._model.parameters.values(), self._optimizer, num_steps=len(steps)):
                recomputes = len(steps) > 1 or config.recompute_proximal
                proximal = self._fitting(partial(self._fixed_logprobs, rows)) if recomputes else None
                reference = None
                if config.loss.kl:
                    with self._model.reference():
                        reference = self._fitting(partial(self._fixed_logprobs, rows))
                for step in steps:
                    tally.add(self._fitting(partial(self._step, rows, step, proximal, reference, tally.num_steps)))
            self._random = chance
            self._num_steps += tally.num_steps
            self._version += 1
        else:
            _LOG.warning("no step: none of the %d rows of this batch has a token to train on", len(batch.rows))
        metrics = tally.metrics(weight_cap=config.loss.weight_cap) if rows else {}
        metrics |= {
            "learn/learning_rate": self._learning_rate(max(0, self._num_steps - 1)),
            "learn/steps": float(tally.num_steps),
            "learn/tokens": float(sum(row.num_tokens for row in rows)),
            "learn/rows": float(len(rows)),
            "learn/rollouts": float(len({row.rollout for row in rows})),
            "learn/seconds": time.perf_counter() - began,
        }
        return UpdateResult(version=self._version, metrics=metrics)

    def warm_start(
        self,
        samples: Iterable[Masked],
        config: WarmStartConfig | None = None,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        on_step: Callable[[int, int, float], None] = lambda step, steps, loss: None,
        keep: Path | None = None,
    ) -> Mapping[str, float]:
        """Supervised training on the tokens with mask 1, with its own optimiser. If `should_stop` says so between two
        steps, LearnerError, and the weights are restored. `on_step` and `keep`: see `sft`."""
        metrics = warm_start(
            self._model,
            samples,
            config or WarmStartConfig(),
            device=self._device,
            budget=self._budget,
            should_stop=should_stop,
            on_step=on_step,
            keep=keep,
        )
        self._version += bool(metrics["warm/steps"])
        return metrics

    def _fitting(self, work: Callable[[], T]) -> T:
        """Do work made of passes, in micro-batches that fit."""
        return self._budget.fitting(work, undo=partial(self._optimizer.zero_grad, set_to_none=True))

    def _step(
        self,
        rows: Sequence[TrainRow],
        step: Sequence[int],
        proximal: Mapping[int, torch.Tensor] | None,
        reference: Mapping[int, torch.Tensor] | None,
        num_before: int,
    ) -> UpdateMetrics:
        """One optimiser step on the rows at these places, after `num_before` of the same update."""
        settings, tally = self._config.loss, UpdateMetrics()
        scales = row_scales(
            [rows[place].rollout for place in step],
            [rows[place].num_tokens for place in step],
            settings.normaliser,
            fixed_length=settings.fixed_length,
        )
        scale_of = dict(zip(step, scales, strict=True))
        total = 0.0
        for group in self._groups(rows, step):
            chosen = [rows[place] for place in group]
            batch = collate(chosen, [scale_of[place] for place in group], self._device, pack=self._model.packs)
            with memory_guard(batch):
                scores = self._model.score_batch(
                    batch,
                    temperature=self._config.temperature,
                    entropy="gradient" if settings.entropy_bonus else "value",
                )
                current = scores.logprobs
                known = torch.cat([proximal[place] for place in group]) if proximal else current.detach()
                terms = token_losses(
                    current=current,
                    proximal=known,
                    behaviour=batch.behaviour,
                    advantages=batch.advantages,
                    rows=batch.rows,
                    config=settings,
                    reference=torch.cat([reference[place] for place in group]) if reference else None,
                    entropy=scores.entropy,
                )
                loss = (terms.loss * batch.scales).sum()
                torch.autograd.backward(loss)
            total += float(loss.detach())
            assert scores.entropy is not None
            tally.add_tokens(terms, batch, current=current, proximal=known, entropy=scores.entropy)
        norm = make_step(
            self._optimizer,
            loss=total,
            learning_rate=self._learning_rate(self._num_steps + num_before),
            max_grad_norm=self._config.max_grad_norm,
            what=f"step {num_before + 1} of update {self._version + 1}",
        )
        tally.add_step(total, norm)
        return tally

    def _fixed_logprobs(self, rows: Sequence[TrainRow]) -> dict[int, torch.Tensor]:
        """The logprobs of every row's trained tokens under the present weights, by the row's place; no gradient."""
        found: dict[int, torch.Tensor] = {}
        for group in self._groups(rows, range(len(rows))):
            chosen = [rows[place] for place in group]
            batch = collate(chosen, [0.0] * len(chosen), self._device, pack=self._model.packs)
            with torch.no_grad(), memory_guard(batch):
                scores = self._model.score_batch(batch, temperature=self._config.temperature, entropy="none")
            found |= zip(group, torch.split(scores.logprobs, [row.num_tokens for row in chosen]), strict=True)
        return found

    def _groups(self, rows: Sequence[TrainRow], places: Sequence[int]) -> list[list[int]]:
        """The micro-batches of these rows, by place."""
        lengths = [len(rows[place].inputs) for place in places]
        groups = plan(lengths, self._budget.tokens, pack=self._model.packs)
        return [[places[number] for number in group] for group in groups]

    def _first_budget(self) -> int:
        """Tokens of a micro-batch at first: as set, or by the free memory."""
        config, most = self._config, self._config.tokens_on(self._device.type)
        if config.tokens_per_microbatch is not None:
            return most
        fixed = fixed_bytes(
            sum(parameter.numel() for parameter in self._model.parameters.values()),
            num_steps=config.num_epochs * config.num_minibatches,
            rounds=config.rounds_on(self._device.type),
            num_parameters=self._model.num_parameters,
        )
        tokens = estimate_tokens(
            most=most,
            bytes_per_token=self._model.activation_bytes(),
            fixed_bytes=fixed,
            free_bytes=free_memory(self._device),
        )
        if tokens < most:
            _LOG.warning(
                "learner.tokens_per_microbatch is %d instead of %d, so that passes fit in memory", tokens, most
            )
        return tokens

    def _learning_rate(self, step: int) -> float:
        return self._rate * self._config.rate_factor(step)

    # ---------------------------------------------------------------- inspection

    def logprobs(self, ids: Sequence[int], *, temperature: float | None = None) -> list[float]:
        """Of each token after those before it; 0.0 for the first. The temperature is that of training if not given."""
        if len(ids) < 2:
            return [0.0] * len(ids)
        whole = torch.tensor(list(ids), device=self._device)
        with torch.no_grad():
            scores = self._model.score(
                whole[None, :-1],
                torch.arange(len(ids) - 1, device=self._device),
                whole[1:],
                temperature=self._config.temperature if temperature is None else temperature,
                entropy="none",
            )
        return [0.0, *(float(value) for value in scores.logprobs)]

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All weights by their Hugging Face names, in float32, an adapter merged in; a tied head is left out.

        They may be the learner's own memory: copy them before the next update.
        """
        return self._model.named_weights()

    # ---------------------------------------------------------------- checkpoints

    def save(self, folder: Path) -> None:
        """Write a checkpoint from which training resumes bit for bit. With an adapter, only the adapter.

        Raises LearnerError if the disk refuses; then the checkpoint that was there before still is.
        """
        lora = self._config.method == "lora"
        write_checkpoint(
            folder,
            Checkpoint(tensors=state_tensors(self._model.parameters, self._optimizer), facts=self._facts()),
            part_bytes=_ADAPTER_PART_BYTES if lora else _FULL_PART_BYTES,
        )

    def load(self, folder: Path) -> None:
        """Load what `save` wrote. The settings stay this learner's own, but method and adapter must be the same."""
        kept = read_checkpoint(folder)
        own: Mapping[str, Any] = self._facts()
        for name in ("method", "lora", "base"):
            if kept.facts[name] != own[name]:
                raise ConfigError(
                    f"the checkpoint {folder} was made with another {_LABELS[name]} "
                    f"({kept.facts[name]}, here {own[name]}): use the same"
                )
        facts: Mapping[str, Any] = kept.facts
        put_state(self._model.parameters, self._optimizer, kept.tensors, what=f"the checkpoint {folder}")
        self._version = facts["version"]
        self._num_steps = facts["num_steps"]
        if self._config.tokens_per_microbatch is None:  # what fitted then, so a resumed run makes the same passes
            self._budget.tokens = facts.get("tokens_per_microbatch", self._budget.tokens)
        kind, numbers, spare = facts["random"]
        self._random.setstate((kind, tuple(numbers), spare))

    def export_folder(self, folder: Path, *, dtype: Dtype = "float32") -> None:
        """Write a Hugging Face model folder with these weights, an adapter merged in, and the tokenizer's files."""
        write_model_folder(folder, source=self._folder, weights=self.named_weights(), dtype=dtype)

    def _facts(self) -> dict[str, Json]:
        lora = self._config.method == "lora"
        kind, numbers, spare = self._random.getstate()
        return {
            "method": self._config.method,
            "lora": {**dataclasses.asdict(self._config.lora), "targets": list(self._config.lora.targets)}
            if lora
            else None,
            "base": _model_digest(self._folder) if lora else None,
            "version": self._version,
            "num_steps": self._num_steps,
            "tokens_per_microbatch": self._budget.tokens,
            "random": [kind, list(numbers), spare],
        }


_LABELS = {"method": "method", "lora": "adapter", "base": "model underneath"}


def _model_digest(folder: Path) -> str:
    """An adapter is useless on another model than its own."""
    files = sorted(folder.glob("*.safetensors"))
    return " ".join(file_digest(path, ends_bytes=_MODEL_ENDS_BYTES)[:16] for path in files)
