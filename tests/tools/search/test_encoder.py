"""The encoder against torch's own transformer layers, on the same random weights."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch

from slipstream.errors import ConfigError
from slipstream.tools.search.encoder import TextEncoder

from .index_stage import HEADS, HIDDEN, INNER, LAYERS, make_encoder, weights

TEXTS = ["Paris is the capital of France", "cats", "the unknown word", "a small planet near the sun and a river"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    return TextEncoder(make_encoder(tmp_path_factory.mktemp("encoder")))


def expected(ids: list[int]) -> list[float]:
    """The mean of torch's last layer over one sequence, of length 1."""
    tensors = {name: torch.from_numpy(value) for name, value in weights().items()}
    embedded = tensors["embeddings.word_embeddings.weight"][ids]
    embedded = embedded + tensors["embeddings.position_embeddings.weight"][: len(ids)]
    embedded = embedded + tensors["embeddings.token_type_embeddings.weight"][0]
    norm = (tensors["embeddings.LayerNorm.weight"], tensors["embeddings.LayerNorm.bias"])
    hidden = torch.nn.functional.layer_norm(embedded, (HIDDEN,), *norm, eps=1e-12)[None]
    for number in range(LAYERS):
        name = f"encoder.layer.{number}"
        layer = torch.nn.TransformerEncoderLayer(
            HIDDEN, HEADS, INNER, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
        )
        state = {}
        for kind in ("weight", "bias"):
            state[f"self_attn.in_proj_{kind}"] = torch.cat(
                [tensors[f"{name}.attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
            )
            for ours, theirs in (
                ("attention.output.dense", "self_attn.out_proj"),
                ("attention.output.LayerNorm", "norm1"),
                ("intermediate.dense", "linear1"),
                ("output.dense", "linear2"),
                ("output.LayerNorm", "norm2"),
            ):
                state[f"{theirs}.{kind}"] = tensors[f"{name}.{ours}.{kind}"]
        layer.load_state_dict(state)
        with torch.no_grad():
            hidden = layer.train()(hidden)  # without dropout the same, and without the fast path
    mean = hidden[0].mean(0)
    found: list[float] = (mean / mean.norm()).tolist()
    return found


def test_vectors_are_those_of_torchs_layers(encoder: TextEncoder) -> None:
    found = encoder.encode(TEXTS)
    ids = [[2, 4, 15, 16, 8, 17, 10, 3], [2, 6, 3], [2, 16, 1, 1, 3]]
    for row, known in zip(found, ids, strict=False):
        assert row.tolist() == pytest.approx(expected(known), abs=2e-6)


def test_a_text_has_the_same_vector_alone_and_beside_others(encoder: TextEncoder) -> None:
    together = encoder.encode([text for _ in range(100) for text in TEXTS])
    alone = numpy.concatenate([encoder.encode([text]) for text in TEXTS])
    assert numpy.abs(together[-len(TEXTS) :] - alone).max() < 1e-5
    assert numpy.abs(numpy.linalg.norm(together, axis=1) - 1).max() < 1e-5


def test_a_folder_without_an_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no encoder that can be read"):
        TextEncoder(tmp_path)
