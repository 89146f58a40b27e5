"""Writes weights as a Hugging Face model folder, which transformers, vLLM and the embedded engine can read.

Input: the folder that the model came from, and weights by name. Output: a new folder with safetensors, the
configuration with the dtype changed, and the tokenizer's files unchanged. It appears complete or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import torch

from slipstream.atomic import write_synced
from slipstream.engine.model.atomic_folder import whole_folder
from slipstream.errors import ConfigError

Dtype = Literal["float32", "bfloat16"]
_SHARD_BYTES = 1 << 30
_COPIED = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
    "generation_config.json",
)


def write_model_folder(
    target: Path, *, source: Path, weights: Iterable[tuple[str, torch.Tensor]], dtype: Dtype = "float32"
) -> None:
    """Raises LearnerError if the folder cannot be written."""
    if target.resolve() == source.resolve():
        raise ConfigError(f"{target} is the folder that the model came from: export to another folder")
    try:
        import safetensors.torch
    except ImportError:
        raise ConfigError("writing a model needs safetensors: pip install 'slipstream[local]'") from None

    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    config["dtype"] = dtype
    with whole_folder(target, what="the model") as part:
        for path in sorted({path for pattern in _COPIED for path in source.glob(pattern)}):
            if path.is_file():
                write_synced(part / path.name, path.read_bytes())
        write_synced(part / "config.json", (json.dumps(config, indent=2) + "\n").encode())
        if (family := _family(source)) is not None:
            write_synced(part / "slipstream.json", (json.dumps({"family": family}) + "\n").encode())
        places: dict[str, str] = {}
        num_bytes = 0
        for number, shard in enumerate(_shards(weights, getattr(torch, dtype)), start=1):
            name = f"model-{number:05}.safetensors"
            write_synced(part / name, safetensors.torch.save(shard, metadata={"format": "pt"}))
            places |= dict.fromkeys(shard, name)
            num_bytes += sum(tensor.nbytes for tensor in shard.values())
        if len(set(places.values())) == 1:
            (part / "model-00001.safetensors").rename(part / "model.safetensors")
        else:
            index = {"metadata": {"total_size": num_bytes}, "weight_map": places}
            write_synced(part / "model.safetensors.index.json", json.dumps(index, indent=2).encode())


def _family(source: Path) -> str | None:
    """The chat format that the folder names. Its other entries say where the weights came from, and no longer hold."""
    path = source / "slipstream.json"
    named = json.loads(path.read_text(encoding="utf-8")).get("family") if path.is_file() else None
    return named if isinstance(named, str) else None


def _shards(weights: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype) -> Iterator[dict[str, torch.Tensor]]:
    shard: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in weights:
        ready = tensor.detach().to("cpu", dtype).contiguous()
        if shard and size + ready.nbytes > _SHARD_BYTES:
            yield shard
            shard, size = {}, 0
        shard[name] = ready
        size += ready.nbytes
    if shard:
        yield shard
