"""A GGUF file of the llama or qwen2 architecture in Hugging Face's terms: config.json and named tensors.

Invariants: sizes and constants come from the file; what the file says and Hugging Face's plain model of that
architecture cannot express is refused, never left out.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from slipstream.hub.gguf import GgufFile
from slipstream.hub.origin import Dtype
from slipstream.hub.tensors import Tensor
from slipstream.types import Json

if TYPE_CHECKING:
    from slipstream.hub.gguf import Floats

OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_A_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
BIASES = {
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
}
"""What qwen2 has in addition."""
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
SPECIAL_IDS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def architecture_of(file: GgufFile) -> str:
    name = file.get("general.architecture", str)
    if name not in CLASSES:
        raise file.unreadable(f"its architecture is {name}, and only {' and '.join(CLASSES)} are understood")
    return name


def special_ids(file: GgufFile) -> dict[str, int]:
    """`{"bos_token": 1, ...}`: those that the file names."""
    found = {name: file.find(key, int) for name, key in SPECIAL_IDS.items()}
    return {name: index for name, index in found.items() if index is not None}


def num_tokens(file: GgufFile) -> int:
    """The size of the vocabulary, which the file states up to three times."""
    number = len(file.get("tokenizer.ggml.tokens", list))
    stated = file.find(f"{architecture_of(file)}.vocab_size", int)
    num_rows = file.shape(EMBEDDING)[0]
    if {number, num_rows, number if stated is None else stated} != {number}:
        raise file.unreadable(f"it has {number} tokens, {num_rows} embeddings and a vocabulary of {stated}")
    return number


def config(file: GgufFile, dtype: Dtype, *, is_tied: bool = False) -> dict[str, Json]:
    """What goes into config.json. `is_tied`: the published model is, whatever the file stores."""
    name = architecture_of(file)
    scaling = file.find(f"{name}.rope.scaling.type", str)
    if scaling not in (None, "none"):
        raise file.unreadable(f"its positions are scaled ({scaling})")
    hidden = file.get(f"{name}.embedding_length", int)
    num_heads = file.get(f"{name}.attention.head_count", int)
    ids = special_ids(file)
    found: dict[str, Json] = {
        "architectures": [CLASSES[name]],
        "model_type": name,
        "attention_dropout": 0.0,
        "bos_token_id": ids.get("bos_token"),
        "eos_token_id": ids.get("eos_token"),
        "head_dim": _head_dim(file, hidden // num_heads),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": file.get(f"{name}.feed_forward_length", int),
        "max_position_embeddings": file.get(f"{name}.context_length", int),
        "num_attention_heads": num_heads,
        "num_hidden_layers": file.get(f"{name}.block_count", int),
        "num_key_value_heads": _num_kv_heads(file),
        "pad_token_id": ids.get("pad_token"),
        "rms_norm_eps": file.get_float(f"{name}.attention.layer_norm_rms_epsilon"),
        "rope_theta": file.get_float(f"{name}.rope.freq_base"),
        "tie_word_embeddings": is_tied or OUTPUT not in file.tensor_names(),
        "torch_dtype": dtype.value,
        "use_cache": True,
        "vocab_size": num_tokens(file),
    }
    if name == "llama":
        found |= {"attention_bias": False, "mlp_bias": False}
    return found


def tensors(file: GgufFile, *, is_tied: bool = False) -> list[Tensor]:
    """All weights under Hugging Face's names, in the file's order."""
    name = architecture_of(file)
    num_layers = file.get(f"{name}.block_count", int)
    in_a_layer = IN_A_LAYER | (BIASES if name == "qwen2" else {})
    heads: dict[str, int] = {}
    if name == "llama":  # qwen2's rows are stored as Hugging Face has them
        heads = {"attn_q.weight": file.get("llama.attention.head_count", int), "attn_k.weight": _num_kv_heads(file)}
    stored = file.tensor_names()
    is_stored_twice = is_tied and OUTPUT in stored
    found = []
    for tensor in stored:
        in_layer = re.fullmatch(r"blk\.(\d+)\.(.+)", tensor)
        short = in_layer[2] if in_layer else tensor
        if in_layer and short in in_a_layer and int(in_layer[1]) < num_layers:
            new_name = f"model.layers.{in_layer[1]}.{in_a_layer[short]}"
        elif not in_layer and tensor in OUTSIDE:
            new_name = OUTSIDE[tensor]
        else:
            raise file.unreadable(f"it has a tensor {tensor}, which a plain {name} has not")
        if is_stored_twice and tensor == OUTPUT:
            continue
        source = OUTPUT if is_stored_twice and tensor == EMBEDDING else tensor
        found.append(
            Tensor(name=new_name, shape=file.shape(source), read=partial(_read, file, source, heads.get(short)))
        )
    num_outside = len(OUTSIDE) - (is_stored_twice or OUTPUT not in stored)
    num_expected = num_outside + num_layers * len(in_a_layer)
    if len(found) != num_expected:
        raise file.unreadable(f"it has {len(found)} tensors, not {num_expected}")
    return found


def undo_permutation(weights: Floats, num_heads: int) -> Floats:
    """The rows of a query or key matrix in Hugging Face's order.

    The rotation of positions turns pairs of rows. GGUF keeps a pair side by side (row 2i and row 2i + 1 of a head);
    Hugging Face keeps the first of every pair, then the second of every pair.
    """
    num_rows, width = weights.shape
    pairs = weights.reshape(num_heads, num_rows // num_heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(num_rows, width)


def _read(file: GgufFile, name: str, num_heads: int | None) -> Floats:
    weights = file.read(name)
    return weights if num_heads is None else undo_permutation(weights, num_heads)


def _num_kv_heads(file: GgufFile) -> int:
    prefix = f"{architecture_of(file)}.attention"
    number = file.find(f"{prefix}.head_count_kv", int)
    return file.get(f"{prefix}.head_count", int) if number is None else number


def _head_dim(file: GgufFile, usual: int) -> int:
    """The size of a head, which every key that names it must agree on."""
    keys = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    stated = {key: size for key in keys if (size := file.find(f"{architecture_of(file)}.{key}", int)) is not None}
    sizes = set(stated.values()) or {usual}
    if len(sizes) != 1:
        raise file.unreadable(f"its heads have several sizes ({stated})")
    return sizes.pop()
