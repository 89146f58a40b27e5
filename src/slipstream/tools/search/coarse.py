"""A short copy of the vectors of a large index, to find candidates in: reading all of them takes most of a search.

Each vector is projected onto the directions in which all of them are longest, which keeps inner products as well as so
few numbers can. The candidates found there are compared in full.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy

    Floats = numpy.typing.NDArray[numpy.float32]

MIN_PASSAGES = 20_000
"""A smaller index is read in full."""
NUM_DIMENSIONS = 96
NUM_CANDIDATES = 1_000
SAMPLE, BLOCK = 20_000, 8_192
COARSE, PROJECTION = "coarse.npy", "projection.npy"


def write_coarse(folder: Path, vectors: Floats) -> None:
    """Write the short copy of `vectors` into the folder of their index."""
    import numpy

    sample = vectors[:: max(1, len(vectors) // SAMPLE)]
    _, directions = numpy.linalg.eigh(sample.T @ sample)  # from short to long
    projection = numpy.ascontiguousarray(directions[:, -NUM_DIMENSIONS:], dtype=numpy.float32)
    shape = (len(vectors), projection.shape[1])
    coarse = numpy.lib.format.open_memmap(folder / COARSE, mode="w+", dtype=numpy.float32, shape=shape)
    for start in range(0, len(vectors), BLOCK):
        coarse[start : start + BLOCK] = vectors[start : start + BLOCK] @ projection
    coarse.flush()
    numpy.save(folder / PROJECTION, projection)


class CoarseVectors:
    """The short copy, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        import numpy

        self._vectors: Floats = numpy.load(folder / COARSE, mmap_mode="r").view(numpy.ndarray)
        self._projection: Floats = numpy.load(folder / PROJECTION)

    def scores(self, queries: Floats) -> Floats:
        """The approximate inner products of every passage, a row each, with every query."""
        found: Floats = self._vectors @ (queries @ self._projection).T
        return found
