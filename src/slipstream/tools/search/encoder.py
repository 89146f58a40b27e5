"""Turns texts into vectors with a BERT-like sentence encoder, in numpy.

Input: a folder with `config.json`, `tokenizer.json` and `model.safetensors`, and texts. Output: a row of length 1 for
each text. Invariants: the weights are memory-mapped, so that processes share them; a text's vector does not depend on
those beside it, except for rounding.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.errors import ConfigError

if TYPE_CHECKING:
    import numpy

    Floats = numpy.typing.NDArray[numpy.float32]

TOKENS_PER_BATCH = 2_048
"""Of one pass, padding included: small enough that what is computed stays in the processor's cache."""
_DTYPES = {"F32": "<f4", "F16": "<f2"}


class TextEncoder:
    def __init__(self, folder: Path) -> None:
        try:
            import numpy
            import tokenizers
        except ImportError:
            raise ConfigError(
                "search by meaning needs numpy and tokenizers: pip install 'slipstream[research]'"
            ) from None
        self._np: Any = numpy  # its arrays' types are too narrow for arithmetic in place
        try:
            config = json.loads((folder / "config.json").read_bytes())
            self._weights = _tensors(folder / "model.safetensors", numpy)
            self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            sentence = folder / "sentence_bert_config.json"
            max_tokens = json.loads(sentence.read_bytes())["max_seq_length"] if sentence.is_file() else 512
            self._num_heads, self._num_layers = int(config["num_attention_heads"]), int(config["num_hidden_layers"])
            self._epsilon = float(config["layer_norm_eps"])
            self.num_dimensions = int(config["hidden_size"])
        except (OSError, ValueError, KeyError) as raised:
            raise ConfigError(f"{folder} holds no encoder that can be read ({raised}): fetch it again") from raised
        self.max_tokens = min(int(max_tokens), int(config.get("max_position_embeddings", 512)))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.max_tokens)

    def encode(self, texts: Sequence[str]) -> Floats:
        """One row for each text, in order."""
        np = self._np
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        made: Floats = np.empty((len(rows), self.num_dimensions), np.float32)
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        batch: list[int] = []
        for place in order:  # from short to long, so that little is padded
            if batch and (len(batch) + 1) * len(rows[place]) > TOKENS_PER_BATCH:
                made[batch] = self._encode([rows[one] for one in batch])
                batch = []
            batch.append(place)
        if batch:
            made[batch] = self._encode([rows[one] for one in batch])
        return made

    def _encode(self, rows: Sequence[Sequence[int]]) -> Floats:
        np, weights = self._np, self._weights
        num_rows, num_tokens = len(rows), max(map(len, rows))
        ids = np.zeros((num_rows, num_tokens), np.int64)
        mask = np.zeros((num_rows, num_tokens), np.float32)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = row
            mask[place, : len(row)] = 1.0
        hidden = weights["embeddings.word_embeddings.weight"][ids]
        hidden += weights["embeddings.position_embeddings.weight"][:num_tokens]
        hidden += weights["embeddings.token_type_embeddings.weight"][0]
        hidden = self._normed(hidden, "embeddings.LayerNorm").reshape(num_rows * num_tokens, -1)
        blocked: Floats = ((1.0 - mask) * -1e9)[:, None, None, :]
        for layer in range(self._num_layers):
            hidden = self._layer(hidden, f"encoder.layer.{layer}", blocked, num_rows, num_tokens)
        rows_of_tokens = hidden.reshape(num_rows, num_tokens, -1)
        means = (rows_of_tokens * mask[:, :, None]).sum(1) / mask.sum(1)[:, None]
        vectors: Floats = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
        return vectors

    def _layer(self, hidden: Floats, name: str, blocked: Floats, num_rows: int, num_tokens: int) -> Floats:
        np = self._np
        heads = (num_rows, num_tokens, self._num_heads, -1)
        query, key, value = (
            self._linear(hidden, f"{name}.attention.self.{part}").reshape(heads).transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        # Any: numpy's types take products for float64.
        scores: Any = query @ key.transpose(0, 1, 3, 2)
        scores *= 1.0 / math.sqrt(query.shape[-1])
        scores += blocked
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        mixed = (scores @ value).transpose(0, 2, 1, 3).reshape(num_rows * num_tokens, -1)
        mixed = self._linear(mixed, f"{name}.attention.output.dense")
        mixed += hidden
        hidden = self._normed(mixed, f"{name}.attention.output.LayerNorm")
        inner = _gelu(self._linear(hidden, f"{name}.intermediate.dense"), np)
        outer = self._linear(inner, f"{name}.output.dense")
        outer += hidden
        return self._normed(outer, f"{name}.output.LayerNorm")

    def _linear(self, given: Floats, name: str) -> Floats:
        found: Floats = given @ self._weights[f"{name}.weight"].T
        found += self._weights[f"{name}.bias"]
        return found

    def _normed(self, given: Floats, name: str) -> Floats:
        np = self._np
        given -= given.mean(-1, keepdims=True)
        given /= np.sqrt(np.square(given).mean(-1, keepdims=True) + self._epsilon)
        given *= self._weights[f"{name}.weight"]
        given += self._weights[f"{name}.bias"]
        return given


def _gelu(given: Floats, np: Any) -> Floats:
    """x times the normal distribution function, in place. The error function is formula 7.1.26 of Abramowitz and
    Stegun, within 1.5e-7."""
    size = np.abs(given)
    size *= math.sqrt(0.5)
    part = size * 0.3275911
    part += 1.0
    np.reciprocal(part, out=part)
    tail = part * 1.061405429
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail += coefficient
        tail *= part
    np.square(size, out=size)
    np.negative(size, out=size)
    np.exp(size, out=size)
    tail *= size  # 1 - erf of the absolute value
    tail *= -1.0
    tail += 1.0
    np.copysign(tail, given, out=tail)
    tail += 1.0
    given *= tail
    given *= 0.5
    return given


def _tensors(path: Path, np: Any) -> Mapping[str, Any]:
    """The tensors of a safetensors file, memory-mapped: float32 as they are, float16 converted. (Any: arrays.)"""
    with path.open("rb") as file:
        num_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(num_bytes))
    found = {}
    for name, about in header.items():
        if name == "__metadata__" or about["dtype"] not in _DTYPES:
            continue
        tensor = np.memmap(
            path,
            dtype=_DTYPES[about["dtype"]],
            mode="r",
            offset=8 + num_bytes + about["data_offsets"][0],
            shape=tuple(about["shape"]),
        ).view(np.ndarray)
        found[name.removeprefix("bert.")] = tensor if about["dtype"] == "F32" else tensor.astype(np.float32)
    return found
