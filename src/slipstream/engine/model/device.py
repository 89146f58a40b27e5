"""Resolves a device name to a torch device that is available."""

from __future__ import annotations

import torch

from slipstream.errors import ConfigError


def find_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device={name}: give auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name}, but torch finds no GPU: give auto or cpu")
    return device
