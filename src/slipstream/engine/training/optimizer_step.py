"""One optimiser step, shared by updates and the warm start. A gradient that is not finite changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from slipstream.engine.training.memory import is_out_of_memory
from slipstream.errors import ConfigError, LearnerError


def make_optimizer(
    parameters: Mapping[str, torch.nn.Parameter],
    *,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> torch.optim.AdamW:
    """Weight decay is for matrices; norms and biases have none."""
    matrices = [parameter for parameter in parameters.values() if parameter.dim() > 1]
    others = [parameter for parameter in parameters.values() if parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=learning_rate, betas=betas, eps=eps, fused=True
    )


def make_step(
    optimizer: torch.optim.Optimizer, *, loss: float, learning_rate: float, max_grad_norm: float | None, what: str
) -> float:
    """Step with the accumulated gradients, and return their norm before clipping.

    Raises LearnerError, with all weights unchanged, if the loss or the norm is not finite.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
    for name, value in (("loss", loss), ("gradient norm", float(norm))):
        if not math.isfinite(value):
            raise LearnerError(
                f"the {name} of {what} is {value}, so the step was skipped and the weights are unchanged: "
                "lower the learning rate, and check the weights and the logprobs"
            )
    if max_grad_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    try:
        optimizer.step()
    except (MemoryError, RuntimeError) as raised:
        if not is_out_of_memory(raised):
            raise
        raise ConfigError(
            f"the optimiser's moments do not fit in memory at {what}: resume with a lower model.engine.num_slots, as "
            "its cache takes memory too, or start a new run with learner.method=lora"
        ) from raised
    optimizer.zero_grad(set_to_none=True)
    return float(norm)


@dataclass(frozen=True, slots=True)
class WeightsBackup:
    """A copy of the trained parameters, to restore."""

    weights: list[torch.Tensor]
    state: dict[torch.Tensor, dict[str, torch.Tensor]]


@contextmanager
def all_or_nothing(
    parameters: Iterable[torch.nn.Parameter], optimizer: torch.optim.Optimizer, *, num_steps: int
) -> Iterator[None]:
    """On any exception weights and optimiser state are restored.

    One step needs no copy for that, since it happens last; several cost a copy of weights and moments.
    """
    trained = list(parameters)
    kept = _back_up(trained, optimizer) if num_steps > 1 else None
    try:
        yield
    except BaseException:
        if kept is not None:
            _restore(trained, optimizer, kept)
        raise
    finally:
        optimizer.zero_grad(set_to_none=True)


def _back_up(trained: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> WeightsBackup:
    return WeightsBackup(
        weights=[parameter.detach().clone() for parameter in trained],
        state={
            parameter: {name: value.clone() for name, value in optimizer.state[parameter].items()}
            for parameter in trained
            if parameter in optimizer.state
        },
    )


def _restore(trained: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer, kept: WeightsBackup) -> None:
    with torch.no_grad():
        for parameter, weight in zip(trained, kept.weights, strict=True):
            parameter.copy_(weight)
    optimizer.state.clear()
    optimizer.state.update(kept.state)
