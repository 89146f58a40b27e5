"""Reads a model folder's config.json into a ModelSpec.

Invariants: any setting that would change the arithmetic and is not supported here is refused, so a model runs either as
its authors meant it or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import ConfigError

ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
ROPE_KINDS = ("default", "linear", "llama3", "yarn")
REMEDY = (
    "to evaluate it, serve it with vLLM and set model.kind=tokens; to train it, set bridge=tinker, or train inside "
    "verl or SkyRL (docs/bridges.md)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """How positions become rotation angles."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 0
    """The window of the first training, for `llama3` and `yarn`."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """The factor of cosines and sines under `yarn`; None is yarn's own formula."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    architecture: str
    num_layers: int
    hidden_size: int
    inner_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    context_tokens: int
    norm_eps: float
    tied: bool
    """Whether the embedding is also the output layer."""
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    head_norms: bool
    """Whether the query and key heads are normalised."""
    rope: RopeSpec


def read_spec(folder: Path) -> ModelSpec:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as raised:
        raise ConfigError(f"{path} cannot be read ({raised.strerror}): give a Hugging Face model folder") from None
    except ValueError:
        raise ConfigError(f"{path} is not valid JSON: download the model again") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path} is not a JSON object: download the model again")
    return spec_of(config, str(path))


def spec_of(config: Mapping[str, Any], where: str = "config.json") -> ModelSpec:
    """`Any` because it is a file's JSON: every value is checked by its conversion."""
    named = config.get("architectures") or ["none"]
    if named[0] not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ConfigError(f"{where}: the embedded engine supports {known}, not {named[0]}; {REMEDY}")
    architecture = ARCHITECTURES[named[0]]
    _refuse(config, where)
    try:
        heads = int(config["num_attention_heads"])
        attention_bias = bool(config.get("attention_bias", False))
        return ModelSpec(
            architecture=architecture,
            num_layers=int(config["num_hidden_layers"]),
            hidden_size=int(config["hidden_size"]),
            inner_size=int(config["intermediate_size"]),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_size=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
            vocab_size=int(config["vocab_size"]),
            context_tokens=int(config["max_position_embeddings"]),
            norm_eps=float(config["rms_norm_eps"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=architecture == "qwen2" or attention_bias,
            output_bias=architecture != "qwen2" and attention_bias,
            mlp_bias=architecture == "llama" and bool(config.get("mlp_bias", False)),
            head_norms=architecture == "qwen3",
            rope=_rope(config, where),
        )
    except KeyError as raised:
        raise ConfigError(f"{where} lacks {raised.args[0]}: download the model again") from None
    except (TypeError, ValueError) as raised:
        raise ConfigError(f"{where} has a value of the wrong type ({raised}): download the model again") from None


def _refuse(config: Mapping[str, Any], where: str) -> None:
    """Refuse what this engine does not compute."""
    if config.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"{where}: hidden_act {config['hidden_act']!r} is not supported, only silu; {REMEDY}")
    if config.get("quantization_config"):
        raise ConfigError(f"{where}: quantised weights are not supported: use an unquantised model; {REMEDY}")
    layer_kinds = set(config.get("layer_types") or ()) - {"full_attention"}
    if config.get("use_sliding_window") or layer_kinds:
        raise ConfigError(f"{where}: sliding-window attention is not supported; {REMEDY}")
    if config.get("pretraining_tp", 1) not in (None, 1):
        raise ConfigError(f"{where}: pretraining_tp {config['pretraining_tp']} is not supported; {REMEDY}")


def _rope(config: Mapping[str, Any], where: str) -> RopeSpec:
    """Newer folders have `rope_parameters`, older ones `rope_theta` and `rope_scaling`."""
    scaling: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind not in ROPE_KINDS:
        raise ConfigError(f"{where}: rope scaling {kind!r} is not one of {', '.join(ROPE_KINDS)}; {REMEDY}")
    partial = scaling.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise ConfigError(f"{where}: partial_rotary_factor {partial} is not supported; {REMEDY}")
    unsupported = [name for name in ("mscale", "mscale_all_dim", "truncate") if name in scaling]
    if kind == "yarn" and unsupported:
        raise ConfigError(f"{where}: yarn with {unsupported[0]} is not supported; {REMEDY}")
    theta = scaling.get("rope_theta", config.get("rope_theta", 10_000.0))
    original = scaling.get("original_max_position_embeddings") or config["max_position_embeddings"]
    attention_factor = scaling.get("attention_factor")
    return RopeSpec(
        theta=float(theta),
        kind=kind,
        factor=float(scaling.get("factor", 1.0)),
        original_context=int(original),
        low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
        high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
        beta_fast=float(scaling.get("beta_fast") or 32.0),
        beta_slow=float(scaling.get("beta_slow") or 1.0),
        attention_factor=None if attention_factor is None else float(attention_factor),
    )
