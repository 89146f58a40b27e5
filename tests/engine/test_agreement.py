"""Engine and learner compute the same model: what one samples, the other finds just as likely, update after update."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from learner_stage import batch, learner, model_folder, row

from slipstream.engine.inference.config import EngineConfig
from slipstream.engine.inference.engine import TorchEngine
from slipstream.types import SampleParams

PROMPT = [3, 4, 5]


@pytest.mark.parametrize(
    ("kind", "tied", "settings"),
    [("qwen3", True, {"learning_rate": 1e-2}), ("llama", False, {"method": "lora", "learning_rate": 3e-2})],
)
def test_sampled_logprobs_are_the_learner_s_and_rewards_rise(kind: str, tied: bool, settings: Any) -> None:
    async def run() -> tuple[list[float], list[float]]:
        taught = learner(kind, tied=tied, temperature=0.8, **settings)
        config = EngineConfig(num_slots=16, device="cpu", context_tokens=32)
        rewards, differences = [], []
        async with TorchEngine.from_folder(model_folder(kind, tied=tied), config) as engine:
            for step in range(6):
                params = [SampleParams(max_tokens=4, temperature=0.8, seed=100 * step + n) for n in range(16)]
                samples = await asyncio.gather(*(engine.complete(PROMPT, each) for each in params))
                scores = [sum(token < 40 for token in sampled.ids) / 4 for sampled in samples]
                mean = sum(scores) / len(scores)
                rows = []
                for place, (sampled, score) in enumerate(zip(samples, scores, strict=True)):
                    assert sampled.logprobs is not None
                    assert set(sampled.versions) == {taught.version}
                    rows.append(
                        row(
                            [*PROMPT, *sampled.ids],
                            [0, 0, 0, 1, 1, 1, 1],
                            logprobs=[0.0, 0.0, 0.0, *sampled.logprobs],
                            advantage=score - mean,
                            rollout=place,
                        )
                    )
                result = taught.update(batch(*rows))
                engine.update_weights(taught.named_weights(), version=result.version)
                rewards.append(mean)
                differences.append(result.metrics["learn/engine_diff_max"])
        return rewards, differences

    rewards, differences = asyncio.run(run())
    assert max(differences) < 1e-4
    assert rewards[-1] > rewards[0] + 0.2
