"""Checkpoints: named tensors and some JSON, on disk.

Input: tensors by name and facts as JSON. Output: a folder with a manifest and safetensors files, none above a
given size; larger tensors are split. Reading gives back the same bits.
Invariants: a checkpoint appears completely or not at all, and the last one stays until then. The manifest has the
sha256 of every file and of itself: what is damaged or incomplete is refused before any of it is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slipstream.atomic import recover_folder, write_synced
from slipstream.engine.model.atomic_folder import whole_folder
from slipstream.errors import ConfigError, LearnerError
from slipstream.types import Json

FORMAT = 1
MANIFEST = "manifest.json"
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    tensors: Mapping[str, torch.Tensor]
    facts: Mapping[str, Json]


def write_checkpoint(folder: Path, kept: Checkpoint, *, part_bytes: int) -> None:
    """Raises LearnerError if the disk refuses; then the checkpoint that was there before still is."""
    save = _safetensors().save
    files: dict[str, Json] = {}
    with whole_folder(folder, what="the checkpoint") as part:
        for number, pieces in enumerate(_parts(kept.tensors, part_bytes), start=1):
            name = f"part-{number:05}.safetensors"
            data = save({key: tensor.cpu() for key, tensor in pieces.items()})
            write_synced(part / name, data)
            files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        body: dict[str, Json] = {
            "format": FORMAT,
            "facts": dict(kept.facts),
            "shapes": {name: list(tensor.shape) for name, tensor in kept.tensors.items()},
            "files": files,
        }
        manifest = {"body": body, "sha256": _digest(body)}
        write_synced(part / MANIFEST, json.dumps(manifest, indent=1).encode())


def read_checkpoint(folder: Path) -> Checkpoint:
    """Raises ConfigError if there is none, or one of another format; LearnerError if it is damaged or incomplete."""
    recover_folder(folder)
    body = _read_manifest(folder)
    load = _safetensors().load
    pieces: dict[str, dict[int, torch.Tensor]] = {}
    for name, facts in body["files"].items():
        try:
            data = (folder / name).read_bytes()
        except OSError as raised:
            raise _damaged(folder, f"{name} cannot be read: {raised.strerror}") from raised
        if hashlib.sha256(data).hexdigest() != facts["sha256"]:
            raise _damaged(folder, f"{name} is not what was written")
        for key, tensor in load(data).items():
            tensor_name, _, number = key.rpartition("#")
            pieces.setdefault(tensor_name, {})[int(number)] = tensor
    tensors = {
        name: torch.cat([pieces[name][number] for number in sorted(pieces[name])]).reshape(shape)
        for name, shape in body["shapes"].items()
    }
    return Checkpoint(tensors=tensors, facts=body["facts"])


def file_digest(path: Path, *, ends_bytes: int) -> str:
    """Of a file's size, beginning and end: enough to tell models apart without reading them completely."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = path.stat().st_size
        digest.update(str(size).encode())
        digest.update(file.read(ends_bytes))
        file.seek(max(0, size - ends_bytes))
        digest.update(file.read(ends_bytes))
    return digest.hexdigest()


def _parts(tensors: Mapping[str, torch.Tensor], part_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    """Pieces named `tensor#number`, in parts of at most `part_bytes` less the header."""
    room = max(_BLOCK // 16, part_bytes - _BLOCK)
    part: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        flat = tensor.detach().contiguous().reshape(-1)
        step = max(1, room // flat.element_size())
        for number, start in enumerate(range(0, max(1, len(flat)), step)):
            piece = flat[start : start + step]
            num_bytes = len(piece) * piece.element_size()
            if part and (size + num_bytes > room or len(part) >= _MAX_IN_A_PART):
                yield part
                part, size = {}, 0
            part[f"{name}#{number}"] = piece.clone() if len(piece) < len(flat) else piece
            size += num_bytes
    if part:
        yield part


_MAX_IN_A_PART = 4_096
"""So that the names of all pieces fit in the space left for the header."""


def _read_manifest(folder: Path) -> Any:
    """The manifest's body: our own JSON, with a checked digest, hence Any."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ConfigError(f"{folder} is no checkpoint, since it has no {MANIFEST}: give the folder of one")
    try:
        manifest = json.loads(path.read_bytes())
        body, digest = manifest["body"], manifest["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as raised:
        raise _damaged(folder, f"{MANIFEST} cannot be read") from raised
    if _digest(body) != digest:
        raise _damaged(folder, f"{MANIFEST} is not what was written")
    if body["format"] != FORMAT:
        raise ConfigError(f"{folder} is a checkpoint of format {body['format']}, and this is {FORMAT}: make a new one")
    return body


def _digest(body: Json) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _damaged(folder: Path, why: str) -> LearnerError:
    return LearnerError(f"the checkpoint {folder} is damaged ({why}): go back to an earlier one")


def _safetensors() -> Any:
    """The module, imported late."""
    try:
        import safetensors.torch
    except ImportError:
        raise ConfigError("checkpoints need safetensors: pip install 'slipstream[local]'") from None
    return safetensors.torch
