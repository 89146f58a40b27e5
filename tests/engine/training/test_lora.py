"""Adapters: what is published is base and adapter, and the base stays what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from learner_stage import batch, learner, model_folder, row, same_bits, transformers_model, weights

from slipstream.engine.model.weights import read_weights
from slipstream.engine.training.checkpoint import read_checkpoint
from slipstream.engine.training.config import LoraConfig
from slipstream.errors import ConfigError

GIVEN = batch(
    row([5, 6, 7, 8], [0, 0, 1, 1], advantage=1.0),
    row([20, 21, 22], [0, 1, 1], advantage=-1.0, rollout=1),
)


def adapted(**settings: Any) -> Any:
    return learner(method="lora", learning_rate=1e-2, lora=LoraConfig(rank=4, alpha=6.0), **settings)


def test_before_the_first_update_the_folder_s_own_weights_are_published() -> None:
    on_disk = dict(read_weights(model_folder()))
    assert same_bits(weights(adapted()), on_disk)
    assert same_bits(weights(learner()), on_disk)


def test_published_weights_are_those_that_peft_merges(tmp_path: Path) -> None:
    import peft

    taught = adapted()
    for _ in range(3):
        taught.update(GIVEN)
    taught.save(tmp_path / "saved")
    kept = read_checkpoint(tmp_path / "saved").tensors
    plain = transformers_model(model_folder())
    other: Any = peft.get_peft_model(
        plain, peft.LoraConfig(r=4, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    adapter = {f"base_model.model.{name.removeprefix('weight/')}": kept[name] for name in kept if "weight/" in name[:7]}
    missing = other.load_state_dict(adapter, strict=False)
    assert not missing.unexpected_keys
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        expected = torch.log_softmax(other(ids).logits[0], dim=-1)
    assert taught.logprobs([5, 6, 7, 8])[3] == pytest.approx(float(expected[2, 8]), abs=1e-5)
    merged = dict(other.merge_and_unload().named_parameters())
    published = weights(taught)
    assert published.keys() == merged.keys()
    for name, tensor in published.items():
        assert torch.allclose(tensor, merged[name], atol=1e-6), name


def test_the_published_weights_compute_what_the_learner_computes(tmp_path: Path) -> None:
    taught = adapted()
    before = taught.logprobs([5, 6, 7, 8])
    taught.update(GIVEN)
    taught.export_folder(tmp_path / "merged")
    model = transformers_model(tmp_path / "merged")
    with torch.no_grad():
        expected = torch.log_softmax(model(torch.tensor([[5, 6, 7, 8]])).logits[0], dim=-1)
    found = taught.logprobs([5, 6, 7, 8])
    assert found[1:] == pytest.approx([float(expected[at - 1, 4 + at + 1]) for at in range(1, 4)], abs=1e-5)
    assert found != before


def test_publishing_never_writes_to_the_base(tmp_path: Path) -> None:
    taught = adapted()
    taught.save(tmp_path / "start")
    for _ in range(5):
        taught.update(GIVEN)
        weights(taught)
    taught.load(tmp_path / "start")
    assert same_bits(weights(taught), dict(read_weights(model_folder())))


def test_only_the_adapter_is_trained_and_saved(tmp_path: Path) -> None:
    taught = adapted()
    before = weights(taught)
    taught.update(GIVEN)
    after = weights(taught)
    assert torch.equal(before["model.embed_tokens.weight"], after["model.embed_tokens.weight"])
    assert not torch.equal(before["model.layers.1.mlp.down_proj.weight"], after["model.layers.1.mlp.down_proj.weight"])
    taught.save(tmp_path / "saved")
    assert all(".lora_" in name for name in read_checkpoint(tmp_path / "saved").tensors)


def test_targets_choose_the_layers() -> None:
    taught = learner(method="lora", learning_rate=1e-2, lora=LoraConfig(rank=2, targets=("v_proj",)))
    before = weights(taught)
    taught.update(GIVEN)
    changed = {name for name, tensor in taught.named_weights() if not torch.equal(tensor, before[name])}
    assert changed == {f"model.layers.{number}.self_attn.v_proj.weight" for number in (0, 1)}
    with pytest.raises(ConfigError, match=r"lora\.targets=w_proj"):
        learner(method="lora", lora=LoraConfig(targets=("w_proj",)))


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")
@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_an_adapter_may_not_part_weights_that_embedding_and_head_share(kind: str, target: str, tmp_path: Path) -> None:
    lora = LoraConfig(rank=4, targets=("q_proj", target))
    with pytest.raises(ConfigError, match=rf"lora\.targets=q_proj, {target}: .* leave {target} out"):
        learner(kind, method="lora", lora=lora)
    apart = learner(kind, tied=False, method="lora", lora=lora, learning_rate=1e-2)
    apart.update(GIVEN)
    apart.export_folder(tmp_path / "merged")
    with torch.no_grad():
        logits = transformers_model(tmp_path / "merged")(torch.tensor([[5, 6, 7, 8]])).logits[0]
    assert apart.logprobs([5, 6, 7, 8])[3] == pytest.approx(float(torch.log_softmax(logits, dim=-1)[2, 8]), abs=1e-5)


def test_the_seed_decides_the_adapter_s_start_and_nothing_global_is_touched() -> None:
    state = torch.get_rng_state()
    found = []
    for seed in (0, 0, 1):
        taught = adapted(seed=seed)
        taught.update(GIVEN)
        found.append(weights(taught))
    assert same_bits(found[0], found[1])
    assert not same_bits(found[0], found[2])
    assert torch.equal(state, torch.get_rng_state())


def test_an_adapter_learns_under_gradient_checkpointing_and_bfloat16() -> None:
    taught = adapted(gradient_checkpointing=True, compute="bfloat16")
    before = sum(taught.logprobs([5, 6, 7, 8])[2:])
    for _ in range(3):
        taught.update(batch(row([5, 6, 7, 8], [0, 0, 1, 1])))
    assert sum(taught.logprobs([5, 6, 7, 8])[2:]) > before + 0.5
