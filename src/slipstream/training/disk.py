"""Whether the checkpoints of a run fit on its disk, checked before anything is computed.

Input: the model's folder, the settings, the run's folder. Output: a sentence with the sizes, or a ConfigError. Sizes
come from the headers of the model's safetensors files; a server's checkpoints (`bridge=tinker`) take no space here.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.settings import TrainConfig

_LENGTH = struct.Struct("<Q")
_WEIGHT_BYTES, _MOMENTS_BYTES = 4, 8
_HEADS = ("embed_tokens", "wte", "lm_head", "embed_out")
"""Embeddings and heads, which get no adapter unless they are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskNeeds:
    """What a run needs on its disk, in bytes."""

    checkpoint: int
    """One of them, with the optimiser's moments."""
    num_kept: int
    """The newest ones, and the one being written. The first is kept too; it has no moments yet."""
    first: int
    trained: int
    """The model folder at the end."""

    @property
    def total(self) -> int:
        return self.first + self.num_kept * self.checkpoint + self.trained


def disk_needs(config: TrainConfig, model: Path) -> DiskNeeds:
    shapes = tensor_shapes(model)
    num_parameters = sum(math.prod(shape) for shape in shapes.values())
    lora = config.learner.method == "lora"
    num_trained = _num_in_adapter(shapes, config) if lora else num_parameters
    return DiskNeeds(
        checkpoint=num_trained * (_WEIGHT_BYTES + _MOMENTS_BYTES),
        num_kept=config.keep_checkpoints + 1,
        first=num_trained * _WEIGHT_BYTES,
        trained=num_parameters * _WEIGHT_BYTES,
    )


def check_disk(config: TrainConfig, model: Path, run: Path, *, free_bytes: int) -> str:
    """What the run will take, in a sentence. Raises ConfigError if that is more than is free; what already lies in the
    run's folder counts as free."""
    needs = disk_needs(config, model)
    used = sum(_size(run / name) for name in ("checkpoints", "trained"))
    sentence = (
        f"a checkpoint takes {_format_bytes(needs.checkpoint)} and the last {config.keep_checkpoints} are kept: up to "
        f"{_format_bytes(needs.total)} with the trained model, and {_format_bytes(free_bytes)} of the disk are free"
    )
    if needs.total > free_bytes + used:
        fewer = "lower keep_checkpoints, " if config.keep_checkpoints > 1 else ""
        raise ConfigError(f"{sentence}: {fewer}free some space, or put the run on another disk with --runs")
    return sentence


def tensor_shapes(folder: Path) -> dict[str, list[int]]:
    """Of every weight of a model, by its name."""
    found: dict[str, list[int]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
                header = json.loads(file.read(length))
            found |= {name: facts["shape"] for name, facts in header.items() if name != "__metadata__"}
        except (OSError, ValueError, KeyError, struct.error) as raised:
            raise ConfigError(f"{path} cannot be read ({raised}): fetch the model again") from raised
    return found


def _num_in_adapter(shapes: dict[str, list[int]], config: TrainConfig) -> int:
    """An adapter adds two matrices of its rank to every linear layer that it is on."""
    lora, total = config.learner.lora, 0
    for name, shape in shapes.items():
        layer = name.removesuffix(".weight").rpartition(".")[2]
        is_target = layer in lora.targets if lora.targets else layer not in _HEADS
        if is_target and len(shape) == 2 and name.endswith(".weight"):
            total += lora.rank * sum(shape)
    return total


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0


def _format_bytes(num_bytes: int) -> str:
    """`6.4 MB`, `18.5 GB`."""
    unit = next(unit for unit in (1e9, 1e6, 1e3) if num_bytes >= unit or unit == 1e3)
    return f"{num_bytes / unit:.1f} {({1e9: 'GB', 1e6: 'MB', 1e3: 'kB'})[unit]}"
