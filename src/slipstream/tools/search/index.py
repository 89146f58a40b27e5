"""A local index: BM25 and dense vectors over passages, fused by rank.

Input: a folder that `make_index` made, and queries. Output: hits, one per document. Invariants: the vectors, the
postings and the documents are memory-mapped, so that processes share them; the same query gets the same answer, beside
whatever others; an index of another version is refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.errors import ConfigError
from slipstream.hub import find_encoder
from slipstream.tools.search.base import Hit
from slipstream.tools.search.corpus import Corpus
from slipstream.tools.search.encoder import TextEncoder

if TYPE_CHECKING:
    import numpy

    Floats = numpy.typing.NDArray[numpy.float32]
    Ints = numpy.typing.NDArray[numpy.int64]

VERSION = 1
ABOUT, CORPUS, VECTORS, POSTINGS = "index.json", "corpus.sqlite", "vectors.npy", "bm25"
NUM_FUSED = 100
"""Passages of each ranking that are fused."""
FUSION_RANK = 60
"""A passage counts 1 / (FUSION_RANK + its rank) in each ranking (Cormack, Clarke and Buettcher, 2009)."""
SNIPPET_CHARS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutIndex:
    """What an index says of itself: its `index.json`."""

    version: int
    encoder: str
    """The name or folder of the encoder; empty: words only."""
    num_documents: int
    num_passages: int
    num_dimensions: int
    source: str
    """A digest of the names, sizes and times of what it was made of."""

    @staticmethod
    def read(folder: Path) -> AboutIndex:
        path = folder / ABOUT
        try:
            found = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigError(
                f"{folder} is no index: make one with slipstream index make SOURCE --out {folder}"
            ) from None
        except (OSError, ValueError) as raised:
            raise ConfigError(f"{path} cannot be read ({raised}): make the index again") from raised
        version = found.get("version") if isinstance(found, dict) else None
        if version != VERSION:
            raise ConfigError(
                f"the index {folder} is of version {version}, and this Slipstream reads version {VERSION}: make it "
                f"again with slipstream index make SOURCE --out {folder} --force"
            )
        try:
            return AboutIndex(**found)
        except TypeError as raised:
            raise ConfigError(f"{path} is not complete ({raised}): make the index again") from raised

    def to_bytes(self) -> bytes:
        return (json.dumps(asdict(self), indent=2) + "\n").encode()


class LocalIndex:
    """Answers batches of queries. Not for several threads at once."""

    def __init__(self, folder: Path) -> None:
        import_bm25s()
        self.folder = folder
        self.about = AboutIndex.read(folder)

    @cached_property
    def encoder(self) -> TextEncoder | None:
        if not self.about.encoder:
            return None
        encoder = TextEncoder(find_encoder(self.about.encoder))
        if encoder.num_dimensions != self.about.num_dimensions:
            raise ConfigError(
                f"the index {self.folder} has vectors of {self.about.num_dimensions} numbers and its encoder "
                f"{self.about.encoder} gives {encoder.num_dimensions}: make the index again"
            )
        return encoder

    def search(self, queries: Sequence[str], *, limit: int, snippet_chars: int = SNIPPET_CHARS) -> list[list[Hit]]:
        rankings = [[ranked] for ranked in self._by_words(queries)]
        if self.encoder is not None:
            for own, ranked in zip(rankings, self._by_meaning(self.encoder.encode(queries)), strict=True):
                own.append(ranked)
        return [self._hits(fused(own), limit, snippet_chars) for own in rankings]

    def text(self, docid: str) -> str | None:
        return self._corpus.text(docid)

    def _hits(self, scores: Mapping[int, float], limit: int, snippet_chars: int) -> list[Hit]:
        found: dict[str, Hit] = {}
        for number, score in sorted(scores.items(), key=lambda item: (-item[1], item[0])):
            if len(found) == limit:
                break
            passage = self._corpus.passage(number)
            snippet = " ".join(passage.text.split())[:snippet_chars]
            found.setdefault(
                passage.docid, Hit(docid=passage.docid, score=round(score, 6), snippet=snippet, title=passage.title)
            )
        return list(found.values())

    def _by_words(self, queries: Sequence[str]) -> list[list[int]]:
        ranked = []
        for tokens in words(queries):
            ids = self._postings.get_tokens_ids(tokens)
            scores = self._postings.get_scores_from_ids(ids) if ids else None
            ranked.append([] if scores is None else [int(place) for place in _best(scores) if scores[place] > 0])
        return ranked

    def _by_meaning(self, vectors: Floats) -> list[list[int]]:
        scores = self._vectors @ vectors.T
        return [[int(place) for place in _best(scores[:, column])] for column in range(len(vectors))]

    @cached_property
    def _corpus(self) -> Corpus:
        return Corpus(self.folder / CORPUS)

    @cached_property
    def _vectors(self) -> Floats:
        import numpy

        mapped = numpy.load(self.folder / VECTORS, mmap_mode="r")
        plain: Floats = mapped.view(numpy.ndarray)
        return plain

    @cached_property
    def _postings(self) -> Any:
        """Any: bm25s has no types."""
        return import_bm25s().BM25.load(self.folder / POSTINGS, mmap=True, show_progress=False)


def fused(rankings: Sequence[Sequence[int]]) -> dict[int, float]:
    """Reciprocal rank fusion: the score of everything that is in a ranking."""
    scores: dict[int, float] = {}
    for ranked in rankings:
        for rank, number in enumerate(ranked, 1):
            scores[number] = scores.get(number, 0.0) + 1.0 / (FUSION_RANK + rank)
    return scores


def words(texts: Sequence[str]) -> list[list[str]]:
    """What BM25 counts: words of two letters or more in lower case, without the commonest of English."""
    found: list[list[str]] = import_bm25s().tokenize(list(texts), stopwords="en", return_ids=False, show_progress=False)
    return found


def import_bm25s() -> Any:
    try:
        import bm25s
    except ImportError:
        raise ConfigError("a local index needs bm25s and numpy: pip install 'slipstream[research]'") from None
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it logs every step, and asks for all of that to be shown
    return bm25s


def _best(scores: Floats) -> Ints:
    """The places of the best NUM_FUSED scores, the best first, and the earlier one first among equals."""
    import numpy

    if len(scores) > NUM_FUSED:
        places = numpy.argpartition(scores, len(scores) - NUM_FUSED)[-NUM_FUSED:]
    else:
        places = numpy.arange(len(scores))
    places.sort()
    order: Ints = places[numpy.argsort(-scores[places], kind="stable")]
    return order
