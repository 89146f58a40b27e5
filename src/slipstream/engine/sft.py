"""Supervised training: cross entropy on the masked tokens, for a start that already knows the form of a task.

Enters: a trainable model and samples with ids and mask. Leaves: the model, changed, and what it came to.
Always holds: it has an optimiser of its own, so that reinforcement learning begins with a clean one; the same samples
and seed give the same weights, unless a limit in seconds ended it; if anything is raised, or it is told to stop, the
weights are as they were.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from slipstream.engine.learner_config import WarmStartConfig
from slipstream.engine.microbatches import Masked, TrainRow, collate, plan, sample_rows
from slipstream.engine.steps import all_or_nothing, make_optimizer, make_step, memory_guard
from slipstream.engine.trainable import Trainable
from slipstream.errors import ConfigError, LearnerError


def warm_start(
    model: Trainable,
    samples: Iterable[Masked],
    config: WarmStartConfig,
    *,
    device: torch.device,
    tokens_per_microbatch: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """Losses are per token, in nats. `should_stop` is asked before every optimiser step; at a yes, LearnerError."""
    began = time.perf_counter()
    rows = sample_rows(samples, vocab_size=model.vocab_size)
    if not rows:
        raise ConfigError("no sample has a token with mask 1, so there is nothing to learn: look at the masks")
    optimizer = make_optimizer(model.parameters, learning_rate=config.learning_rate, betas=config.betas)
    steps = order_of_steps([len(row.inputs) for row in rows], config)
    losses: list[float] = []
    num_tokens, out_of_time = 0, False
    with all_or_nothing(model.parameters.values(), optimizer, num_steps=len(steps)):
        for step in steps:
            if should_stop():
                raise LearnerError(f"the warm start was told to stop, after {len(losses)} of {len(steps)} steps")
            out_of_time = config.limit_s is not None and time.perf_counter() - began > config.limit_s
            if out_of_time:
                break
            chosen = [rows[place] for place in step]
            loss = _backward(model, chosen, tokens_per_microbatch, device)
            make_step(
                optimizer,
                loss=loss,
                learning_rate=config.learning_rate * rate_height(len(losses), len(steps), config.warmup_steps),
                max_grad_norm=config.max_grad_norm,
                what=f"warm start step {len(losses) + 1}",
            )
            losses.append(loss)
            num_tokens += sum(row.num_tokens for row in chosen)
    last = losses[-max(1, len(losses) // 10) :]
    return {
        "warm/loss_first": losses[0] if losses else 0.0,
        "warm/loss": sum(last) / len(last) if last else 0.0,
        "warm/steps": float(len(losses)),
        "warm/tokens": float(num_tokens),
        "warm/out_of_time": float(out_of_time),
        "warm/seconds": time.perf_counter() - began,
    }


def _backward(model: Trainable, rows: Sequence[TrainRow], tokens_per_microbatch: int, device: torch.device) -> float:
    """Adds up the gradient of the mean over the step's tokens, and returns that mean."""
    scale = 1 / sum(row.num_tokens for row in rows)
    total = 0.0
    for group in plan([len(row.inputs) for row in rows], tokens_per_microbatch, pack=model.packs):
        chosen = [rows[place] for place in group]
        batch = collate(chosen, [scale] * len(chosen), device, pack=model.packs)
        with memory_guard(batch, tokens_per_microbatch):
            scores = model.score_batch(batch, temperature=1.0, with_entropy=False)
            loss = -scores.logprobs.sum() * scale
            torch.autograd.backward(loss)
        total += float(loss.detach())
    return total


def order_of_steps(lengths: Sequence[int], config: WarmStartConfig) -> list[list[int]]:
    """Which rows each step has, by place. Every epoch deals them out anew: like lengths together, in random order."""
    chance = random.Random(config.seed)
    return list(itertools.islice(_epochs(lengths, config, chance), config.max_steps))


def rate_height(step: int, num_steps: int, warmup_steps: int) -> float:
    """Of the learning rate: up to 1 at the end of the warm-up, then down to 0.1 at the last step."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 1 - 0.9 * (step - warmup_steps) / max(1, num_steps - 1 - warmup_steps)


def _epochs(lengths: Sequence[int], config: WarmStartConfig, chance: random.Random) -> Iterator[list[int]]:
    for _ in range(config.num_epochs):
        order = list(range(len(lengths)))
        chance.shuffle(order)
        steps = plan([lengths[place] for place in order], config.tokens_per_step)
        chance.shuffle(steps)
        for step in steps:
            yield [order[place] for place in step]
