"""The trained weights and their optimiser state as named tensors, for a checkpoint.

Invariants: what does not fit the model is refused before anything is changed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from slipstream.errors import ConfigError

WEIGHT = "weight"


def state_tensors(
    parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """`weight/NAME` for each parameter, then `KEY/NAME` for what the optimiser keeps of it, such as `exp_avg`."""
    kept: dict[str, torch.Tensor] = {f"{WEIGHT}/{name}": parameter.detach() for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            kept[f"{key}/{name}"] = value
    return kept


def put_state(
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, torch.Tensor],
    *,
    what: str,
) -> None:
    """Restore what `state_tensors` returned; `what` names its source in errors."""
    state: dict[str, dict[str, torch.Tensor]] = {}
    for full_name, tensor in tensors.items():
        key, _, name = full_name.partition("/")
        if name not in parameters:
            raise ConfigError(f"{what} has {name}, which this model does not train: use the model it was made with")
        if key != "step" and tensor.shape != parameters[name].shape:
            shapes = f"{list(tensor.shape)} and here it is {list(parameters[name].shape)}"
            raise ConfigError(f"{what} has {name} as {shapes}: use the model it was made with")
        state.setdefault(name, {})[key] = tensor
    for name in parameters:
        if WEIGHT not in state.get(name, {}):
            raise ConfigError(f"{what} lacks {name}: use the model it was made with")
    optimizer.state.clear()
    with torch.no_grad():
        for name, parameter in parameters.items():
            own = {key: tensor.to(parameter.device) for key, tensor in state[name].items()}
            parameter.copy_(own.pop(WEIGHT))
            if own:
                optimizer.state[parameter] = own
