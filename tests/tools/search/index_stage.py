"""A tiny random encoder in the form of the real one, and an index that is made with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy
import numpy.typing
import tokenizers
from safetensors.numpy import save_file

from slipstream.tools.search.build import make_index
from slipstream.tools.search.index import AboutIndex

Floats = numpy.typing.NDArray[numpy.float32]

HIDDEN, HEADS, INNER, LAYERS, POSITIONS = 16, 2, 32, 2, 64
WORDS = tuple(
    "paris berlin cats dogs capital river france germany small planet sun is the of a and near".split()  # noqa: SIM905
)

DOCUMENTS = {
    "d-paris": "Paris is the capital of France.",
    "d-berlin": "Berlin is the capital of Germany.",
    "d-cats": "Cats and dogs, small.",
    "d-sun": "A planet near the sun.",
}


def weights(seed: int = 0) -> dict[str, Floats]:
    chance = numpy.random.default_rng(seed)

    def drawn(*shape: int) -> Floats:
        return chance.normal(0.0, 0.3, shape).astype(numpy.float32)

    found = {
        "embeddings.word_embeddings.weight": drawn(len(WORDS) + 4, HIDDEN),
        "embeddings.position_embeddings.weight": drawn(POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": drawn(2, HIDDEN),
        "embeddings.LayerNorm.weight": 1 + drawn(HIDDEN),
        "embeddings.LayerNorm.bias": drawn(HIDDEN),
    }
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        for part, num_out, num_in in (
            *((f"attention.self.{each}", HIDDEN, HIDDEN) for each in ("query", "key", "value")),
            ("attention.output.dense", HIDDEN, HIDDEN),
            ("intermediate.dense", INNER, HIDDEN),
            ("output.dense", HIDDEN, INNER),
        ):
            found[f"{name}.{part}.weight"], found[f"{name}.{part}.bias"] = drawn(num_out, num_in), drawn(num_out)
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            found[f"{name}.{part}.weight"], found[f"{name}.{part}.bias"] = 1 + drawn(HIDDEN), drawn(HIDDEN)
    return found


def make_encoder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": POSITIONS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights(), folder / "model.safetensors")
    vocabulary = {word: place for place, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_rows(path: Path, documents: Mapping[str, str] = DOCUMENTS) -> Path:
    path.write_text("".join(json.dumps({"docid": docid, "text": text}) + "\n" for docid, text in documents.items()))
    return path


def made_index(folder: Path, documents: Mapping[str, str] = DOCUMENTS) -> Path:
    """An index of words and meaning, made with the tiny encoder."""
    source = write_rows(folder / "documents.jsonl", documents)
    about = make_index(source, folder / "index", encoder=str(make_encoder(folder / "encoder")))
    assert isinstance(about, AboutIndex)
    return folder / "index"
