"""The engine's benchmark, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from slipstream.bench.engine import EngineBenchLoad, run
from slipstream.engine.inference.decoder import Decoder
from slipstream.engine.model.spec import spec_of

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 24,
    "max_position_embeddings": 1024,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 256,
}


def model_folder(folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    decoder = Decoder(spec_of(CONFIG), num_slots=1, context_tokens=8, device=torch.device("cpu"), dtype=torch.float32)
    weights = {name: 0.1 * torch.randn(target.shape) for name, target in decoder.targets.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_speeds_are_told_and_coming_back_costs_the_new_tokens_only(tmp_path: Path) -> None:
    load = EngineBenchLoad(
        requests=(1, 3),
        prompt_tokens=20,
        new_tokens=4,
        rounds=1,
        dtypes=("float32",),
        rollouts=2,
        turns=3,
        tool_tokens=7,
        against_transformers=False,
        num_threads=1,
    )
    told = run(model_folder(tmp_path), load)
    for what in ("1", "3", "2_rollouts"):
        speed = told[f"float32_{what}_engine_tokens_per_s"]
        assert isinstance(speed, float) and speed > 0
    # The last token of an answer comes with the tool's: it was never put through the model.
    assert told["reentry_computed_last"] == 8
    assert told["reentry_computed_total"] == 20 + 8 + 8
    assert told["reentry_prompt_total"] == 20 + (20 + 23) + (20 + 46)
