"""The short copy of the vectors finds what the vectors themselves find."""

from __future__ import annotations

from pathlib import Path

import numpy

from slipstream.tools.search.coarse import CoarseVectors, write_coarse
from slipstream.tools.search.index import VECTORS, LocalIndex

from .index_stage import Floats, made_index


def vectors(num: int, dimensions: int) -> Floats:
    """Longest in a few directions, as embeddings are."""
    chance = numpy.random.default_rng(5)
    strength = 1.0 / (1.0 + numpy.arange(dimensions) / 8)
    made = (chance.normal(size=(num, dimensions)) * strength).astype(numpy.float32)
    made /= numpy.linalg.norm(made, axis=1, keepdims=True)
    return made


def test_candidates_hold_the_best_matches(tmp_path: Path) -> None:
    everything = vectors(6_000, 256)
    write_coarse(tmp_path, everything)
    queries = everything[:40] + 0.5 * everything[100:140]
    exact, approximate = everything @ queries.T, CoarseVectors(tmp_path).scores(queries)
    assert approximate.shape == exact.shape
    kept = 0
    for column in range(40):
        best = set(numpy.argsort(-exact[:, column])[:10].tolist())
        kept += len(best & set(numpy.argsort(-approximate[:, column])[:200].tolist()))
    assert kept >= 0.98 * 400


def test_an_index_answers_the_same_with_the_short_copy(tmp_path: Path) -> None:
    folder = made_index(tmp_path)
    queries = ["capital of france", "sun", "cats"]
    before = LocalIndex(folder).search(queries, limit=4)
    write_coarse(folder, numpy.load(folder / VECTORS))
    assert LocalIndex(folder).search(queries, limit=4) == before
