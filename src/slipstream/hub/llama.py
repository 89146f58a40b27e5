"""A GGUF file of the llama architecture in Hugging Face's terms: config.json and named tensors.

Always holds: sizes and constants come from the file; what the file says and Hugging Face's plain llama cannot is
refused, never left out.
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
SPECIAL_IDS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def special_ids(file: GgufFile) -> dict[str, int]:
    """`{"bos_token": 1, ...}`: those that the file names."""
    found = {name: file.find(key, int) for name, key in SPECIAL_IDS.items()}
    return {name: index for name, index in found.items() if index is not None}


def num_tokens(file: GgufFile) -> int:
    """The size of the vocabulary, which the file says up to three times."""
    number = len(file.get("tokenizer.ggml.tokens", list))
    said = file.find("llama.vocab_size", int)
    num_rows = file.shape("token_embd.weight")[0]
    if {number, num_rows, number if said is None else said} != {number}:
        raise file.unreadable(f"it has {number} tokens, {num_rows} embeddings and a vocabulary of {said}")
    return number


def config(file: GgufFile, dtype: Dtype) -> dict[str, Json]:
    """What goes into config.json."""
    architecture = file.get("general.architecture", str)
    if architecture != "llama":
        raise file.unreadable(f"its architecture is {architecture}, and only llama is understood")
    scaling = file.find("llama.rope.scaling.type", str)
    if scaling not in (None, "none"):
        raise file.unreadable(f"its positions are scaled ({scaling})")
    hidden = file.get("llama.embedding_length", int)
    num_heads = file.get("llama.attention.head_count", int)
    head_dim = _head_dim(file, hidden // num_heads)
    ids = special_ids(file)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": ids.get("bos_token"),
        "eos_token_id": ids.get("eos_token"),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": file.get("llama.feed_forward_length", int),
        "max_position_embeddings": file.get("llama.context_length", int),
        "mlp_bias": False,
        "num_attention_heads": num_heads,
        "num_hidden_layers": file.get("llama.block_count", int),
        "num_key_value_heads": _num_kv_heads(file),
        "pad_token_id": ids.get("pad_token"),
        "rms_norm_eps": file.get_float("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": file.get_float("llama.rope.freq_base"),
        "tie_word_embeddings": "output.weight" not in file.tensor_names(),
        "torch_dtype": dtype.value,
        "use_cache": True,
        "vocab_size": num_tokens(file),
    }


def tensors(file: GgufFile) -> list[Tensor]:
    """All weights under Hugging Face's names, in the file's order."""
    num_layers = file.get("llama.block_count", int)
    heads = {"attn_q.weight": file.get("llama.attention.head_count", int), "attn_k.weight": _num_kv_heads(file)}
    found = []
    for name in file.tensor_names():
        in_layer = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        short = in_layer[2] if in_layer else name
        if in_layer and short in IN_A_LAYER and int(in_layer[1]) < num_layers:
            new_name = f"model.layers.{in_layer[1]}.{IN_A_LAYER[short]}"
        elif not in_layer and name in OUTSIDE:
            new_name = OUTSIDE[name]
        else:
            raise file.unreadable(f"it has a tensor {name}, which a plain llama has not")
        found.append(Tensor(name=new_name, shape=file.shape(name), read=partial(_read, file, name, heads.get(short))))
    num_expected = len(OUTSIDE) - ("output.weight" not in file.tensor_names()) + num_layers * len(IN_A_LAYER)
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
    number = file.find("llama.attention.head_count_kv", int)
    return file.get("llama.attention.head_count", int) if number is None else number


def _head_dim(file: GgufFile, usual: int) -> int:
    """The size of a head, which every key that names it must agree on."""
    keys = ("llama.attention.key_length", "llama.attention.value_length", "llama.rope.dimension_count")
    said = {key: size for key in keys if (size := file.find(key, int)) is not None}
    sizes = set(said.values()) or {usual}
    if len(sizes) != 1:
        raise file.unreadable(f"its heads have several sizes ({said})")
    return sizes.pop()
