"""What the learner tests share: tiny random models, rows, and a slow loss written down a second time."""

from __future__ import annotations

import functools
import math
import tempfile
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from slipstream.engine.training.checkpoint import read_checkpoint
from slipstream.engine.training.config import LearnerConfig
from slipstream.engine.training.learner import TorchLearner
from slipstream.types import Batch, JobKey, Row, Sample, token_ids

VOCAB = 97
torch.set_num_threads(1)  # more threads than that cost time on models this small


@functools.cache
def _root() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="slipstream-learner-tests-")


@functools.cache
def model_folder(kind: str = "qwen3", *, tied: bool = True) -> Path:
    """A random model of two layers."""
    import transformers

    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
        "tie_word_embeddings": tied,
    }
    torch.manual_seed(0)
    made: Any = transformers
    if kind == "qwen3":
        model = made.Qwen3ForCausalLM(made.Qwen3Config(head_dim=8, **settings))
    else:
        model = made.LlamaForCausalLM(made.LlamaConfig(**settings))
    folder = Path(_root().name) / f"{kind}-{tied}"
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def learner(kind: str = "qwen3", *, tied: bool = True, seed: int = 0, **settings: Any) -> TorchLearner:
    return TorchLearner(model_folder(kind, tied=tied), LearnerConfig(**settings), device="cpu", seed=seed)


def transformers_model(folder: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def row(
    ids: Sequence[int],
    mask: Sequence[int],
    *,
    logprobs: Sequence[float] | None = None,
    advantage: float = 1.0,
    rollout: int = 0,
    in_loss: bool = True,
) -> Row:
    """Without logprobs every sampled token has -3.0."""
    sampled = [-3.0 * bit for bit in mask] if logprobs is None else list(logprobs)
    return Row(
        sample=Sample(
            key=JobKey(phase="train", step=0, task_id="t", sample=rollout),
            branch=0,
            ids=token_ids(ids),
            mask=array("b", mask),
            logprobs=array("f", sampled),
            versions=array("i", [0 if bit else -1 for bit in mask]),
            turns=(0,),
        ),
        advantage=advantage,
        in_loss=in_loss,
    )


def batch(*rows: Row) -> Batch:
    return Batch(rows=rows)


def on_policy(teacher: TorchLearner, given: Batch, *, shift: float = 0.0) -> Batch:
    """The same rows with the learner's own logprobs, plus `shift`."""
    made = []
    for each in given.rows:
        known = teacher.logprobs(each.sample.ids)
        logprobs = [bit * (value + shift) for bit, value in zip(each.sample.mask, known, strict=True)]
        made.append(
            row(
                each.sample.ids,
                each.sample.mask,
                logprobs=logprobs,
                advantage=each.advantage,
                rollout=each.sample.key.sample,
                in_loss=each.in_loss,
            )
        )
    return Batch(rows=tuple(made))


def weights(of: TorchLearner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in of.named_weights()}


def same_bits(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def gradient(given: Batch, tmp_path: Path, **settings: Any) -> dict[str, torch.Tensor]:
    """What one update followed. With a first beta of 0 the optimiser's first moment is the gradient itself."""
    taught = learner(betas=(0.0, 0.999), max_grad_norm=None, **settings)
    taught.update(given)
    taught.save(tmp_path / "gradient")
    kept = read_checkpoint(tmp_path / "gradient").tensors
    return {name.removeprefix("exp_avg/"): kept[name] for name in kept if name.startswith("exp_avg/")}


def slow_gradient(
    given: Batch, *, kind: str, normaliser: str, fixed_length: int = 1, temperature: float = 1.0, cap: float = 2.0
) -> dict[str, torch.Tensor]:
    """The gradient of one on-policy step, a row and a token at a time, from whole logits."""
    model = transformers_model(model_folder())
    tokens = Counter({each.sample.key: 0 for each in given.rows if each.in_loss})
    for each in given.rows:
        tokens[each.sample.key] += sum(each.sample.mask[1:]) * each.in_loss
    num_rollouts = sum(number > 0 for number in tokens.values())
    total = torch.zeros(())
    for each in given.rows:
        if not each.in_loss or not sum(each.sample.mask[1:]):
            continue
        logits = model(torch.tensor([list(each.sample.ids)])).logits[0]
        logprobs = torch.log_softmax(logits / temperature, dim=-1)
        at = [place for place, bit in enumerate(each.sample.mask) if bit and place > 0]
        own = [logprobs[place - 1, each.sample.ids[place]] for place in at]
        gaps = [float(value.detach()) - each.sample.logprobs[place] for value, place in zip(own, at, strict=True)]
        if kind == "sequence":
            gaps = [sum(gaps) / len(gaps)] * len(gaps)
        divisor = {
            "token": tokens.total(),
            "sequence": num_rollouts * tokens[each.sample.key],
            "fixed": num_rollouts * fixed_length,
        }[normaliser]
        for value, gap in zip(own, gaps, strict=True):
            total = total - min(math.exp(gap), cap) * each.advantage * value / divisor
    torch.autograd.backward(total)
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_close(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor], *, share: float = 1e-4) -> None:
    """Each tensor differs by at most `share` of the largest number in all of them."""
    assert first.keys() == second.keys()
    largest = max(float(tensor.abs().max()) for tensor in second.values())
    for name, tensor in first.items():
        assert float((tensor - second[name]).abs().max()) <= share * largest, name
