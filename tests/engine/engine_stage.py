"""Shared by the engine tests: tiny random models, made by transformers, and engines over them."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from slipstream.engine.inference.config import EngineConfig
from slipstream.engine.inference.engine import TorchEngine
from slipstream.types import Sampled

VOCAB = 300
WINDOW = 512
KINDS = ("llama", "qwen2", "qwen3")


@functools.cache
def _root() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="slipstream-engine-tests-")


@functools.cache
def tiny(kind: str = "llama", *, tied: bool = True, seed: int = 0, **options: Any) -> tuple[Path, Any]:
    """A folder with a random model of three layers and grouped heads, and transformers' own model of it."""
    import transformers

    torch.set_num_threads(1)  # so little work is not worth a second one
    configs = {
        "llama": transformers.LlamaConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
    }
    models: dict[str, Any] = {
        "llama": transformers.LlamaForCausalLM,
        "qwen2": transformers.Qwen2ForCausalLM,
        "qwen3": transformers.Qwen3ForCausalLM,
    }
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": WINDOW,
        "initializer_range": 0.15,
        "tie_word_embeddings": tied,
        **{name: dict(value) if isinstance(value, tuple) else value for name, value in options.items()},
    }
    if kind == "qwen3":
        settings["head_dim"] = 16
    torch.manual_seed(seed)
    model = models[kind](configs[kind](**settings)).eval()
    with torch.no_grad():  # biases and norms are made zeros and ones: nothing would tell them apart
        for name, weight in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                weight.add_(0.3 * torch.randn_like(weight))
    folder = Path(_root().name) / f"{kind}-{tied}-{seed}-{abs(hash(tuple(options.items())))}"
    model.save_pretrained(folder)
    return folder, model


def engine(kind: str = "llama", *, tied: bool = True, seed: int = 0, **options: Any) -> TorchEngine:
    folder, _ = tiny(kind, tied=tied, seed=seed)
    settings: dict[str, Any] = {"num_slots": 4, "prefill_tokens": 16, "device": "cpu", "num_threads": 1, **options}
    return TorchEngine.from_folder(folder, EngineConfig(**settings))


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def reference_logprobs(model: Any, prompt_ids: Sequence[int], ids: Sequence[int], temperature: float = 1.0) -> Any:
    """What transformers says of the sampled tokens."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt_ids, *ids]])).logits[0, len(prompt_ids) - 1 : -1].float()
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return logprobs.gather(1, torch.tensor(list(ids))[:, None])[:, 0]


def same(first: Sampled, second: Sampled, *, tolerance: float = 1e-4) -> bool:
    """The same tokens, and the same logprobs up to rounding."""
    assert first.logprobs is not None and second.logprobs is not None
    close = all(abs(a - b) < tolerance for a, b in zip(first.logprobs, second.logprobs, strict=True))
    return first.ids == second.ids and first.stop is second.stop and close
