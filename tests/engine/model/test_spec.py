"""config.json: what is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_stage import KINDS, tiny

from slipstream.engine.inference.config import EngineConfig
from slipstream.engine.inference.engine import TorchEngine
from slipstream.engine.inference.load import open_engine
from slipstream.engine.model.spec import read_spec, spec_of
from slipstream.errors import ConfigError

SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}


def test_the_older_way_to_write_rope_is_read() -> None:
    spec = spec_of(SMOLLM2)
    assert (spec.head_size, spec.num_kv_heads, spec.rope.theta, spec.rope.kind) == (64, 3, 100000.0, "default")
    scaled = spec_of({**SMOLLM2, "rope_scaling": {"type": "linear", "factor": 2.0}})
    assert (scaled.rope.kind, scaled.rope.factor, scaled.rope.theta) == ("linear", 2.0, 100000.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": None}, "none"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"use_sliding_window": True}, "sliding"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, "mscale"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_vllm_as_the_remedy(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as raised:
        spec_of({**SMOLLM2, **change})
    assert "vLLM" in str(raised.value) and "model.kind=tokens" in str(raised.value)


@pytest.mark.parametrize(
    ("change", "said"), [({"hidden_size": None}, "wrong type"), ({"vocab_size": "many"}, "wrong type")]
)
def test_a_value_of_the_wrong_type_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        spec_of({**SMOLLM2, **change})


def test_a_missing_value_is_named() -> None:
    with pytest.raises(ConfigError, match="lacks vocab_size"):
        spec_of({name: value for name, value in SMOLLM2.items() if name != "vocab_size"})


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        read_spec(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        read_spec(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**SMOLLM2, "num_hidden_layers": 1, "vocab_size": 10}))
    with pytest.raises(ConfigError, match=r"no model\.safetensors"):
        open_engine(tmp_path, EngineConfig(device="cpu"))
    (tmp_path / "model.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(ConfigError, match="download the model again"):
        open_engine(tmp_path, EngineConfig(device="cpu", context_tokens=16))


def test_missing_weights_are_named() -> None:
    folder, model = tiny()
    named = [(name, value) for name, value in model.named_parameters() if name != "model.norm.weight"]
    with pytest.raises(ConfigError, match=r"lacks model\.norm\.weight"):
        TorchEngine(read_spec(folder), named, EngineConfig(device="cpu"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_in_several_files_is_read_whole(kind: str, tmp_path: Path) -> None:
    from slipstream.engine.model.weights import read_weights

    folder, model = tiny(kind)
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    single, several = dict(read_weights(folder)), dict(read_weights(tmp_path))
    assert single.keys() == several.keys()
    assert all(torch.equal(single[name], several[name]) for name in single)
