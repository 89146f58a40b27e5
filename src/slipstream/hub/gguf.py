"""A GGUF file, opened: its metadata as checked Python values, its tensors as float32 arrays.

Invariants: a key that is missing or of another kind is a ConfigError that names it; a tensor is read, and dequantised,
only on request.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slipstream.errors import ConfigError

if TYPE_CHECKING:
    import gguf
    import numpy
    import numpy.typing

    Floats = numpy.typing.NDArray[numpy.float32]

T = TypeVar("T")


class GgufFile:
    def __init__(self, path: Path) -> None:
        import gguf

        self.name = path.name
        try:
            self._reader = gguf.GGUFReader(path)
        except (ValueError, IndexError) as raised:
            raise ConfigError(f"{path.name} is not a GGUF file ({raised}): fetch the model again") from raised
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def find(self, key: str, kind: type[T]) -> T | None:
        """The value at `key`, or None if the file does not have the key."""
        field = self._reader.fields.get(key)
        if field is None:
            return None
        value: Any = field.contents()
        if not isinstance(value, kind):
            raise self.unreadable(f"its {key} is {type(value).__name__}, not {kind.__name__}")
        return value

    def get(self, key: str, kind: type[T]) -> T:
        value = self.find(key, kind)
        if value is None:
            raise self.unreadable(f"it has no {key}")
        return value

    def get_float(self, key: str) -> float:
        """A float32, as the shortest decimal that means it: 1e-05, not 9.999999747378752e-06."""
        import numpy

        return float(str(numpy.float32(self.get(key, float))))

    def tensor_names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Rows first: GGUF writes the dimensions the other way round."""
        return tuple(int(size) for size in reversed(self._tensor(tensor).shape))

    def read(self, tensor: str) -> Floats:
        import gguf
        import numpy

        found = self._tensor(tensor)
        try:
            values = gguf.quants.dequantize(found.data, found.tensor_type)
        except NotImplementedError:
            raise self.unreadable(f"{tensor} is stored as {found.tensor_type.name}") from None
        return numpy.asarray(values, dtype=numpy.float32).reshape(self.shape(tensor))

    def quantisation(self) -> str:
        """What most tensors are stored as: `Q4_1`."""
        return Counter(tensor.tensor_type.name for tensor in self._tensors.values()).most_common(1)[0][0]

    def _tensor(self, name: str) -> gguf.ReaderTensor:
        if name not in self._tensors:
            raise self.unreadable(f"it has no tensor {name}")
        return self._tensors[name]

    def unreadable(self, why: str) -> ConfigError:
        return ConfigError(f"{self.name} cannot be turned into a model folder: {why}: choose another model")
