"""Reads the tensors of a model folder, by their Hugging Face names, one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch

from slipstream.errors import ConfigError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def read_weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise ConfigError("reading a model needs safetensors: pip install 'slipstream[local]'") from None

    for path in _files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is not a dict
                    yield name, file.get_tensor(name)
        except (OSError, SafetensorError) as raised:
            raise ConfigError(f"{path} cannot be read ({raised}): download the model again") from None


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            raise ConfigError(f"{index} is not a safetensors index: download the model again") from None
        return [folder / name for name in names]
    if not (folder / SINGLE).is_file():
        raise ConfigError(f"{folder} has no {SINGLE}: give a Hugging Face model folder with safetensors")
    return [folder / SINGLE]
