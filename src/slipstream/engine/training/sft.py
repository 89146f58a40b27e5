"""Supervised training: cross entropy on the masked tokens, for a start that already knows the form of a task.

Input: a trainable model and samples with ids and mask. Output: the changed model, and metrics.
Invariants: it has its own optimiser, so reinforcement learning begins with a clean one; the same samples and seed give
the same weights, unless a limit in seconds ended it; on any exception, or if told to stop, the weights are restored.
With a folder for its progress, a stopped one is resumed, and ends with the weights of one that was never stopped.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from slipstream.engine.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from slipstream.engine.training.config import WarmStartConfig
from slipstream.engine.training.memory import MicrobatchBudget, memory_guard
from slipstream.engine.training.microbatches import TrainRow, collate, plan, sample_rows
from slipstream.engine.training.optimizer_step import all_or_nothing, make_optimizer, make_step
from slipstream.engine.training.state import put_state, state_tensors
from slipstream.engine.training.step_plan import Masked
from slipstream.engine.training.trainable import Trainable
from slipstream.errors import ConfigError, LearnerError
from slipstream.types import Json

_LOG = logging.getLogger(__name__)
_PART_BYTES = 512 << 20

KEEP_EVERY_S = 30.0
"""Between two checkpoints of a warm start; longer if writing one takes long (`KEEP_SHARE`)."""
KEEP_SHARE = 0.1
"""Largest share of the time that goes into checkpoints."""


@dataclass(slots=True)
class _Progress:
    """Progress of a warm start, earlier sessions included."""

    losses: list[float] = field(default_factory=list)
    num_tokens: int = 0
    seconds: float = 0.0


def warm_start(
    model: Trainable,
    samples: Iterable[Masked],
    config: WarmStartConfig,
    *,
    device: torch.device,
    budget: MicrobatchBudget,
    should_stop: Callable[[], bool] = lambda: False,
    on_step: Callable[[int, int, float], None] = lambda step, steps, loss: None,
    keep: Path | None = None,
    keep_every_s: float = KEEP_EVERY_S,
) -> dict[str, float]:
    """Losses are per token, in nats. `should_stop` is called before every optimiser step; if true, LearnerError.
    `on_step` gets the number of the finished step, how many there are, and its loss. Progress is saved in the folder
    `keep` now and then, and when told to stop; what an earlier session saved there is resumed."""
    began = time.perf_counter()
    rows = sample_rows(samples, vocab_size=model.vocab_size)
    if not rows:
        raise ConfigError("no sample has a token with mask 1, so there is nothing to learn: check the masks")
    optimizer = make_optimizer(model.parameters, learning_rate=config.learning_rate, betas=config.betas)
    steps = order_of_steps([len(row.inputs) for row in rows], config)
    out_of_time = False
    with all_or_nothing(model.parameters.values(), optimizer, num_steps=len(steps)):
        kept = (
            None
            if keep is None
            else _WarmCheckpoint(keep, model, optimizer, _digest(rows, config), every_s=keep_every_s)
        )
        done = _Progress() if kept is None else kept.load()
        before_s = done.seconds
        for step in steps[len(done.losses) :]:
            done.seconds = before_s + time.perf_counter() - began
            if should_stop():
                if kept is not None:
                    kept.save(done)
                raise LearnerError(f"the warm start was stopped after {len(done.losses)} of {len(steps)} steps")
            out_of_time = config.limit_s is not None and done.seconds > config.limit_s
            if out_of_time:
                break
            chosen = [rows[place] for place in step]
            loss = budget.fitting(
                partial(_backward, model, chosen, budget, device), undo=partial(optimizer.zero_grad, set_to_none=True)
            )
            make_step(
                optimizer,
                loss=loss,
                learning_rate=config.rate_at(len(done.losses), len(steps)),
                max_grad_norm=config.max_grad_norm,
                what=f"warm start step {len(done.losses) + 1}",
            )
            done.losses.append(loss)
            done.num_tokens += sum(row.num_tokens for row in chosen)
            if kept is not None:
                kept.save_if_due(done)
            on_step(len(done.losses), len(steps), loss)
    last = done.losses[-max(1, len(done.losses) // 10) :]
    return {
        "warm/loss_first": done.losses[0] if done.losses else 0.0,
        "warm/loss": sum(last) / len(last) if last else 0.0,
        "warm/steps": float(len(done.losses)),
        "warm/tokens": float(done.num_tokens),
        "warm/out_of_time": float(out_of_time),
        "warm/seconds": before_s + time.perf_counter() - began,
    }


class _WarmCheckpoint:
    """The checkpoint of a warm start under way."""

    def __init__(
        self,
        folder: Path,
        model: Trainable,
        optimizer: torch.optim.Optimizer,
        digest: str,
        *,
        every_s: float,
    ) -> None:
        """`digest` is of everything that determines the steps: a checkpoint with another is ignored."""
        self._folder = folder
        self._model = model
        self._optimizer = optimizer
        self._digest = digest
        self._every_s = every_s
        self._due_s = time.perf_counter() + every_s

    def load(self) -> _Progress:
        """Restore model and optimiser; nothing changes without a checkpoint, or if it is damaged or of other steps."""
        if not self._folder.exists():
            return _Progress()
        try:
            found = read_checkpoint(self._folder)
            facts: Any = found.facts
            if facts["digest"] != self._digest:
                raise LearnerError("it is of other demonstrations or settings")
            put_state(self._model.parameters, self._optimizer, found.tensors, what=f"the checkpoint {self._folder}")
        except (LearnerError, ConfigError) as raised:
            _LOG.warning("the warm start starts over, as its checkpoint cannot be used: %s", raised)
            return _Progress()
        return _Progress(losses=list(facts["losses"]), num_tokens=facts["num_tokens"], seconds=facts["seconds"])

    def save_if_due(self, done: _Progress) -> None:
        if time.perf_counter() >= self._due_s:
            self.save(done)

    def save(self, done: _Progress) -> None:
        began = time.perf_counter()
        facts: dict[str, Json] = {
            "digest": self._digest,
            "losses": list(done.losses),
            "num_tokens": done.num_tokens,
            "seconds": done.seconds,
        }
        kept = Checkpoint(tensors=state_tensors(self._model.parameters, self._optimizer), facts=facts)
        write_checkpoint(self._folder, kept, part_bytes=_PART_BYTES)
        now = time.perf_counter()
        self._due_s = now + max(self._every_s, (now - began) / KEEP_SHARE)


def _digest(rows: Sequence[TrainRow], config: WarmStartConfig) -> str:
    digest = hashlib.sha256(repr(config).encode())
    for row in rows:
        digest.update(row.inputs.numpy().tobytes())
        digest.update(row.targets.numpy().tobytes())
        digest.update(row.positions.numpy().tobytes())
    return digest.hexdigest()


def _backward(model: Trainable, rows: Sequence[TrainRow], budget: MicrobatchBudget, device: torch.device) -> float:
    """Accumulate the gradient of the mean over the step's tokens, and return that mean."""
    scale = 1 / sum(row.num_tokens for row in rows)
    total = 0.0
    for group in plan([len(row.inputs) for row in rows], budget.tokens, pack=model.packs):
        chosen = [rows[place] for place in group]
        batch = collate(chosen, [scale] * len(chosen), device, pack=model.packs)
        with memory_guard(batch):
            scores = model.score_batch(batch, temperature=1.0, entropy="none")
            loss = -scores.logprobs.sum() * scale
            torch.autograd.backward(loss)
        total += float(loss.detach())
    return total


def order_of_steps(lengths: Sequence[int], config: WarmStartConfig) -> list[list[int]]:
    """Which rows each step has, by place. Every epoch deals them again: similar lengths together, in random order."""
    chance = random.Random(config.seed)
    return list(itertools.islice(_epochs(lengths, config, chance), config.max_steps))


def _epochs(lengths: Sequence[int], config: WarmStartConfig, chance: random.Random) -> Iterator[list[int]]:
    for _ in range(config.num_epochs):
        order = list(range(len(lengths)))
        chance.shuffle(order)
        steps = plan([lengths[place] for place in order], config.tokens_per_step)
        chance.shuffle(steps)
        for step in steps:
            yield [order[place] for place in step]
