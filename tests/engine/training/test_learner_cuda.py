"""The learner on a GPU. Left out where there is none."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from learner_stage import VOCAB, learner, model_folder, row

from slipstream.bridges.local import LocalLearner
from slipstream.engine.inference.config import EngineConfig
from slipstream.engine.inference.engine import TorchEngine
from slipstream.engine.training.config import LearnerConfig
from slipstream.engine.training.learner import TorchLearner
from slipstream.engine.training.microbatches import collate, train_rows
from slipstream.engine.training.process import LearnerProcess
from slipstream.types import Batch, Row, SampleParams

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def rows(num: int = 24) -> tuple[Row, ...]:
    chance = random.Random(0)
    found = []
    for number in range(num):
        length = chance.randint(3, 100)
        ids = [chance.randrange(VOCAB) for _ in range(length)]
        found.append(row(ids, [0, *([1] * (length - 1))], advantage=chance.uniform(-1, 1), rollout=number))
    return tuple(found)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_packed_rows_have_the_logprobs_and_gradients_of_padded_ones(kind: str) -> None:
    taught = TorchLearner(model_folder(kind), LearnerConfig(), device="cuda")
    model, device = taught._model, torch.device("cuda")
    assert model.packs
    made = train_rows(rows(), vocab_size=VOCAB)
    found = []
    for pack in (True, False):
        scores = model.score_batch(collate(made, [1.0] * len(made), device, pack=pack), temperature=1.0)
        torch.autograd.backward(scores.logprobs.sum())
        grads = {name: one.grad.clone() for name, one in model.parameters.items() if one.grad is not None}
        for one in model.parameters.values():
            one.grad = None
        found.append((scores.logprobs.detach(), grads))
    (packed, packed_grads), (padded, padded_grads) = found
    assert float((packed - padded).abs().mean()) < 0.02
    for name, grad in padded_grads.items():
        gap = float((packed_grads[name] - grad).norm() / (grad.norm() + 1e-6))
        assert gap < 0.1, name
    exact = learner(kind)._model.score_batch(collate(made, [1.0] * len(made), torch.device("cpu")), temperature=1.0)
    assert float((packed.cpu() - exact.logprobs.detach()).abs().mean()) < 0.03


def test_a_learner_in_its_own_process_hands_its_weights_to_the_engine_on_the_device() -> None:
    async def main() -> None:
        config = LearnerConfig(learning_rate=1e-2)
        engine = TorchEngine.from_folder(
            model_folder(), EngineConfig(num_slots=2, device="cuda", dtype="float32", kernels="torch")
        )
        apart = await LearnerProcess.open(model_folder(), config, device="cuda", seed=0, num_threads=None)
        local = LocalLearner(apart, engine)
        try:
            before = await engine.complete([1, 2, 3], SampleParams(max_tokens=8, seed=1))
            await local.update(Batch(rows=rows(), metrics={}))
            after = await engine.complete([1, 2, 3], SampleParams(max_tokens=8, seed=1))
            assert before.logprobs != after.logprobs
            assert set(after.versions) == {1}
            named = dict(await apart.weights())
            assert all(tensor.is_cuda for tensor in named.values())
            name = "model.embed_tokens.weight"
            kept = named[name].clone()
            await apart.run(TorchLearner.update, Batch(rows=rows(), metrics={}))
            assert not torch.equal(kept, dict(await apart.weights())[name])
        finally:
            await local.aclose()

    asyncio.run(main())
