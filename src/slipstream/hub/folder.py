"""A GGUF file to a Hugging Face model folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from slipstream.atomic import write_synced
from slipstream.hub import architectures
from slipstream.hub.gguf import GgufFile
from slipstream.hub.origin import ORIGIN_NAME, Dtype, Origin
from slipstream.hub.progress import FetchProgress, OnProgress
from slipstream.hub.registry import KnownModel
from slipstream.hub.tensors import num_data_bytes, write_safetensors
from slipstream.hub.tokenizer import build_tokenizer, special_tokens, tokenizer_config
from slipstream.types import Json

FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    ORIGIN_NAME,
)


def write_folder(
    folder: Path, source: Path, *, name: str, model: KnownModel, dtype: Dtype, on_progress: OnProgress
) -> None:
    """Make `folder`, with all of FILES in it, from the GGUF file `source`."""
    file = GgufFile(source)
    tensors = architectures.tensors(file, is_tied=model.is_tied)
    num_total = num_data_bytes(tensors, dtype)
    config = architectures.config(file, dtype, is_tied=model.is_tied)
    ids: dict[str, Json] = {f"{token}_id": index for token, index in architectures.special_ids(file).items()}
    ids.pop("unk_token_id", None)
    origin = Origin(
        name=name,
        family=model.family,
        dtype=dtype,
        package=model.parts[0].package,
        version=model.parts[0].version,
        sha256=model.sha256,
        file=model.parts[0].member,
        quantisation=file.quantisation(),
    )
    folder.mkdir()
    write_synced(folder / "tokenizer.json", build_tokenizer(file).to_str(pretty=True).encode())
    _write_json(folder / "tokenizer_config.json", tokenizer_config(file))
    _write_json(folder / "special_tokens_map.json", special_tokens(file))
    write_safetensors(
        folder / "model.safetensors",
        tensors,
        dtype,
        on_bytes=lambda num: on_progress(FetchProgress(doing=f"writing {dtype}", num_done=num, num_total=num_total)),
    )
    _write_json(folder / "generation_config.json", ids)
    _write_json(folder / "config.json", config)
    _write_json(folder / ORIGIN_NAME, origin.to_json())


def _write_json(path: Path, value: Mapping[str, Json]) -> None:
    write_synced(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())
