"""A checkpoint as few bytes, to carry it from one machine to another.

Input: a checkpoint's folder. Output: bytes, and from them a checkpoint again. The tensors of a kind (weights, and each
of the optimiser's moments) are put in a line and cut into planes: all first bytes, all second bytes, and so on. The
planes that hold exponents say little and shrink to half; the others are kept as they are.
Invariants: weights and counts come back bit for bit; moments too, or rounded to bfloat16 if asked for. What is damaged
is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from slipstream.bounded import inflate
from slipstream.engine.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from slipstream.engine.training.state import WEIGHT
from slipstream.errors import LearnerError
from slipstream.types import Json

Moments = Literal["float32", "bfloat16"]
_MAGIC = b"slipstream-compact-1\n"
_LENGTH = struct.Struct("<Q")
_PART_BYTES = 16 << 20
_MAX_PLANE_BYTES = 8 << 30
_KEPT, _DEFLATED = 0, 1
_DTYPES = {
    str(each).removeprefix("torch."): each
    for each in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32)
}


def compact(folder: Path, *, moments: Moments = "float32", weights: Moments = "float32") -> bytes:
    """The checkpoint in `folder`. Rounded `weights` are for a start that everything else begins from."""
    kept = read_checkpoint(folder)
    groups: dict[str, dict[str, torch.Tensor]] = {}
    for full_name, tensor in kept.tensors.items():
        groups.setdefault(full_name.partition("/")[0], {})[full_name] = tensor
    headers: list[Json] = []
    body: list[bytes] = []
    for kind, tensors in groups.items():
        wanted = weights if kind == WEIGHT else moments
        for dtype, members in _by_dtype(tensors):
            is_rounded = dtype == "float32" and wanted == "bfloat16" and kind != "step"
            line = torch.cat([tensor.reshape(-1) for tensor in members.values()])
            stored = line.to(torch.bfloat16) if is_rounded else line
            planes = [_packed(plane) for plane in _planes(stored)]
            headers.append(
                {
                    "names": list(members),
                    "shapes": [list(tensor.shape) for tensor in members.values()],
                    "dtype": dtype,
                    "stored": _name(stored.dtype),
                    "planes": [len(plane) for plane in planes],
                }
            )
            body += planes
    header = json.dumps({"facts": dict(kept.facts), "groups": headers}).encode()
    data = b"".join([_LENGTH.pack(len(header)), header, *body])
    return b"".join([_MAGIC, hashlib.sha256(data).digest(), data])


def expand(data: bytes, folder: Path) -> None:
    """Write the checkpoint that `compact` was given, or its rounding. Raises LearnerError if it is damaged."""
    try:
        tensors, facts = _read(data)
    except (ValueError, KeyError, TypeError, struct.error, zlib.error, RuntimeError) as raised:
        raise LearnerError(
            f"the compact checkpoint for {folder} is damaged ({raised}): bring it over again"
        ) from raised
    write_checkpoint(folder, Checkpoint(tensors=tensors, facts=facts), part_bytes=_PART_BYTES)


def _read(data: bytes) -> tuple[dict[str, torch.Tensor], Mapping[str, Json]]:
    start = len(_MAGIC) + hashlib.sha256().digest_size
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(data[start:]).digest() != data[len(_MAGIC) : start]:
        raise ValueError("it is not what was written")
    (length,) = _LENGTH.unpack_from(data, start)
    place = start + _LENGTH.size
    header: Any = json.loads(data[place : place + length])
    place += length
    found: dict[str, torch.Tensor] = {}
    for group in header["groups"]:
        planes = []
        for size in group["planes"]:
            planes.append(_unpacked(data[place : place + size]))
            place += size
        line = _joined(planes, _DTYPES[group["stored"]]).to(_DTYPES[group["dtype"]])
        sizes = [math.prod(shape) for shape in group["shapes"]]
        for name, shape, piece in zip(group["names"], group["shapes"], torch.split(line, sizes), strict=True):
            found[name] = piece.reshape(shape).clone()
    return found, header["facts"]


def _by_dtype(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        found.setdefault(_name(tensor.dtype), {})[name] = tensor
    yield from found.items()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _planes(line: torch.Tensor) -> list[bytes]:
    parts = line.contiguous().view(torch.uint8).reshape(len(line), line.element_size())
    return [parts[:, place].contiguous().numpy().tobytes() for place in range(line.element_size())]


def _joined(planes: list[bytes], dtype: torch.dtype) -> torch.Tensor:
    parts = [torch.frombuffer(bytearray(plane), dtype=torch.uint8) for plane in planes if plane]
    if not parts:
        return torch.empty(0, dtype=dtype)
    return torch.stack(parts, dim=1).contiguous().view(dtype).reshape(-1)


def _packed(plane: bytes) -> bytes:
    """A flag, then the plane, coded by how often each byte occurs if that is worth it. There is no pattern beyond."""
    coder = zlib.compressobj(level=1, strategy=zlib.Z_HUFFMAN_ONLY)
    coded = coder.compress(plane) + coder.flush()
    return bytes([_DEFLATED]) + coded if len(coded) < 0.97 * len(plane) else bytes([_KEPT]) + plane


def _unpacked(stored: bytes) -> bytes:
    if stored[:1] == bytes([_KEPT]):
        return stored[1:]
    return inflate(stored[1:], _MAX_PLANE_BYTES, "a plane of a compact checkpoint")
