"""Float32 tensors to a `.safetensors` file of a chosen dtype.

The format is a length (8 bytes, little-endian), a JSON header of that length, and the tensors' bytes one after the
other. It is written here rather than by a library because numpy has no bfloat16, because one tensor at a time is in
memory, and because a full disk then is a plain OSError.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.atomic import sync
from slipstream.errors import ConfigError
from slipstream.hub.origin import Dtype

if TYPE_CHECKING:
    import numpy
    import numpy.typing

    from slipstream.hub.gguf import Floats

NUM_BYTES = {Dtype.BFLOAT16: 2, Dtype.FLOAT16: 2, Dtype.FLOAT32: 4}
TAGS = {Dtype.BFLOAT16: "BF16", Dtype.FLOAT16: "F16", Dtype.FLOAT32: "F32"}
CHUNK_VALUES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor that is read when its turn comes."""

    name: str
    shape: tuple[int, ...]
    read: Callable[[], Floats]

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)


def num_data_bytes(tensors: Sequence[Tensor], dtype: Dtype) -> int:
    return sum(tensor.num_values for tensor in tensors) * NUM_BYTES[dtype]


def write_safetensors(path: Path, tensors: Sequence[Tensor], dtype: Dtype, *, on_bytes: Callable[[int], None]) -> None:
    """Write the tensors and hand them to the disk; `on_bytes` gets how many bytes are written so far."""
    num_done = 0
    with path.open("wb") as file:
        file.write(_header(tensors, dtype))
        for tensor in tensors:
            values = tensor.read().reshape(-1)
            if values.size != tensor.num_values:
                raise ValueError(f"{tensor.name} has {values.size} values, not {tensor.num_values}")
            for start in range(0, values.size, CHUNK_VALUES):
                num_done += file.write(_encode(values[start : start + CHUNK_VALUES], dtype, tensor.name))
                on_bytes(num_done)
    sync(path)


def to_bfloat16(values: Floats) -> numpy.typing.NDArray[numpy.uint16]:
    """The upper halves of the floats' bits, rounded to nearest, ties to even."""
    import numpy

    bits = values.view(numpy.uint32)
    odd = (bits >> 16) & 1
    rounded = ((bits + 0x7FFF + odd) >> 16).astype(numpy.uint16)
    # Rounding could carry a NaN over into another number: keep its upper half and mark it quiet.
    return numpy.where(numpy.isnan(values), (bits >> 16).astype(numpy.uint16) | 0x40, rounded).astype(numpy.uint16)


def _header(tensors: Sequence[Tensor], dtype: Dtype) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # without it transformers refuses the file
    start = 0
    for tensor in tensors:
        end = start + tensor.num_values * NUM_BYTES[dtype]
        entries[tensor.name] = {"dtype": TAGS[dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data is aligned
    return len(text).to_bytes(8, "little") + text


def _encode(values: Floats, dtype: Dtype, name: str) -> bytes:
    import numpy

    if dtype is Dtype.FLOAT32:
        return values.astype("<f4").tobytes()
    if dtype is Dtype.BFLOAT16:
        return to_bfloat16(values).astype("<u2").tobytes()
    with numpy.errstate(over="ignore"):
        halves = values.astype("<f2")
    if not numpy.array_equal(numpy.isinf(halves), numpy.isinf(values)):
        raise ConfigError(f"{name} has values that float16 cannot hold: use bfloat16 or float32")
    return halves.tobytes()
