"""A GGUF file to a Hugging Face model folder, and the folder to its place.

Invariants: a model folder appears under its name whole or not at all. It is made in a folder beside its place, given
to the disk, and renamed. What a killed process left behind is cleared away by the next one that gets a model there.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

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
    _write_text(folder / "tokenizer.json", build_tokenizer(file).to_str(pretty=True))
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
    _sync_folder(folder)


@contextmanager
def workplace(target: Path) -> Iterator[Path]:
    """A folder beside `target`, on the same disk, that is gone afterwards."""
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.part-"
    _clear_leftovers(target.parent, prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        with (folder / "lock").open("wb") as lock:
            with suppress(OSError):  # a disk without locks: what a kill leaves here is then not cleared away
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put_in_place(made: Path, target: Path, *, aside: Path) -> None:
    """Rename `made` to `target`; a folder that is there goes `aside`, and comes back if the renaming fails."""
    replaced = target.is_dir() and any(target.iterdir())
    if replaced:
        target.rename(aside)
    try:
        made.rename(target)
    except OSError:
        if replaced:
            aside.rename(target)
        raise
    _sync_folder(target.parent)


def _clear_leftovers(parent: Path, prefix: str) -> None:
    """Remove what killed processes left: their locks are free. One without a lock file is only just being made."""
    for folder in parent.glob(f"{prefix}*"):
        try:
            with (folder / "lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue


def _write_json(path: Path, value: Mapping[str, Json]) -> None:
    _write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
