"""Tiny models made from scratch in a second: random weights, and a tokenizer for given texts.

Input: a folder, texts to cut into tokens, a seed. Output: a model folder as a hub would give it, with the random
weights of a Qwen3. The same input gives the same bytes. Any text survives the tokenizer; the given ones are just short
in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.errors import ConfigError
from slipstream.hub.origin import ORIGIN_NAME, Dtype
from slipstream.hub.tensors import Tensor, write_safetensors
from slipstream.types import Json

if TYPE_CHECKING:
    from slipstream.hub.gguf import Floats

END_OF_TEXT, END_OF_MESSAGE = "<|endoftext|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, "<|im_start|>", END_OF_MESSAGE)
MAX_TOKENS = 1_024
"""Of the vocabulary; training stops earlier, when every piece of the texts is one token."""
WORDS = r" ?[A-Za-z]+| ?[0-9]"
"""A word, with the space before it, and each digit are pieces of their own, so that a choice is one token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape:
    """The sizes of a tiny model."""

    hidden: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head: int = 32
    """Of one head."""
    inner: int = 512
    """Of the feed-forward layers."""


TINY_SHAPE = TinyShape()
"""Two layers are the fewest that can copy a word from where it was read, and learn that soonest."""


def make_tiny_model(
    folder: Path,
    texts: Iterable[str],
    *,
    seed: int,
    shape: TinyShape = TINY_SHAPE,
    pieces: str = WORDS,
    family_args: Mapping[str, Json] | None = None,
) -> Path:
    """Write a model with random weights into `folder`, which is made if it is not there. What matches `pieces`, a
    regular expression, and what stands between two matches are cut apart before the tokenizer is trained;
    `family_args` are stored with the model, for its prompts."""
    tokenizer = train_tokenizer(texts, pieces=pieces)
    num_tokens: int = tokenizer.get_vocab_size()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config())
    tensors = _tensors(shape, num_tokens, seed)
    write_safetensors(folder / "model.safetensors", tensors, Dtype.FLOAT32, on_bytes=lambda num: None)
    _write_json(folder / "config.json", _config(shape, num_tokens, tokenizer.token_to_id))
    _write_json(
        folder / ORIGIN_NAME, {"family": "chatml", **({"family_args": dict(family_args)} if family_args else {})}
    )
    return folder


def train_tokenizer(texts: Iterable[str], *, pieces: str = WORDS) -> Any:
    """A byte-level BPE in which the texts are cut into few tokens. (Any: the library ships no types.)"""
    try:
        import tokenizers
    except ImportError:
        raise ConfigError("making a model needs tokenizers: pip install 'slipstream[local]'") from None
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Split(tokenizers.Regex(pieces), "isolated"), byte_level]
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=MAX_TOKENS,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _tokenizer_config() -> dict[str, Json]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_MESSAGE,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }


def _config(shape: TinyShape, num_tokens: int, id_of: Any) -> dict[str, Json]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": num_tokens,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "max_position_embeddings": 2_048,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": id_of(END_OF_MESSAGE),
        "pad_token_id": id_of(END_OF_TEXT),
        "torch_dtype": "float32",
    }


def _tensors(shape: TinyShape, num_tokens: int, seed: int) -> list[Tensor]:
    try:
        import numpy
    except ImportError:
        raise ConfigError("making a model needs numpy: pip install 'slipstream[local]'") from None
    chance = numpy.random.default_rng(seed)

    def drawn(name: str, num_out: int, num_in: int, scale: float) -> Tensor:
        def read() -> Floats:
            return chance.normal(0.0, scale, (num_out, num_in)).astype(numpy.float32)

        return Tensor(name=f"model.{name}.weight", shape=(num_out, num_in), read=read)

    def linear(name: str, num_out: int, num_in: int) -> Tensor:
        return drawn(name, num_out, num_in, 1.0 / math.sqrt(num_in))

    def norm(name: str, size: int) -> Tensor:
        return Tensor(name=f"model.{name}.weight", shape=(size,), read=lambda: numpy.ones(size, numpy.float32))

    hidden, inner = shape.hidden, shape.inner
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    tensors = [drawn("embed_tokens", num_tokens, hidden, 0.02)]
    for index in range(shape.layers):
        layer = f"layers.{index}"
        tensors += [
            norm(f"{layer}.input_layernorm", hidden),
            linear(f"{layer}.self_attn.q_proj", queries, hidden),
            linear(f"{layer}.self_attn.k_proj", keys, hidden),
            linear(f"{layer}.self_attn.v_proj", keys, hidden),
            linear(f"{layer}.self_attn.o_proj", hidden, queries),
            norm(f"{layer}.self_attn.q_norm", shape.head),
            norm(f"{layer}.self_attn.k_norm", shape.head),
            norm(f"{layer}.post_attention_layernorm", hidden),
            linear(f"{layer}.mlp.gate_proj", inner, hidden),
            linear(f"{layer}.mlp.up_proj", inner, hidden),
            linear(f"{layer}.mlp.down_proj", hidden, inner),
        ]
    return [*tensors, norm("norm", hidden)]


def _write_json(path: Path, value: dict[str, Json]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
