"""The engine on a GPU, with the same guarantees as on a CPU. Skipped without a GPU."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from engine_stage import KINDS, engine, prompt, reference_logprobs, same, tiny

from slipstream.engine.inference.config import EngineConfig
from slipstream.engine.inference.engine import TorchEngine
from slipstream.types import Sampled, SampleParams

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


async def many(served: TorchEngine, num: int) -> list[Sampled]:
    asked = (
        served.complete(prompt(5 + 23 * (seed % 16), seed), SampleParams(max_tokens=12, seed=seed), session=str(seed))
        for seed in range(num)
    )
    return list(await asyncio.gather(*asked))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_logprobs_are_those_of_the_cpu(kind: str) -> None:
    async def main() -> None:
        _, model = tiny(kind)
        async with engine(kind) as served:
            on_cpu = await many(served, 9)
        async with engine(kind, device="cuda", dtype="float32") as served:
            on_gpu = await many(served, 9)
            ids = [*prompt(5), *on_gpu[0].ids, *prompt(7, 50)]
            again = await served.complete(ids, SampleParams(max_tokens=8, seed=1), session="0")
        assert all(same(first, second) for first, second in zip(on_cpu, on_gpu, strict=True))
        assert again.logprobs is not None
        told = torch.tensor(list(again.logprobs)) - reference_logprobs(model, ids, again.ids)
        assert float(told.abs().max()) < 1e-4

    asyncio.run(main())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deterministic_gives_the_same_bits_whatever_else_is_running(dtype: str) -> None:
    async def main() -> None:
        params = SampleParams(max_tokens=24, seed=1)
        async with engine("qwen3", num_slots=6, deterministic=True, dtype=dtype, device="cuda") as served:
            alone = await served.complete(prompt(45), params)
            again, _ = await asyncio.gather(served.complete(prompt(45), params), many(served, 12))
            _, last = await asyncio.gather(many(served, 5), served.complete(prompt(45), params))
        for sampled in (again, last):
            assert (sampled.ids, sampled.logprobs) == (alone.ids, alone.logprobs)

    asyncio.run(main())


def test_new_weights_are_used_from_the_next_token_on() -> None:
    async def main() -> None:
        _, new = tiny(seed=1)
        async with engine(device="cuda", dtype="float32") as served:
            ids = prompt(30)
            await served.complete(ids, SampleParams(max_tokens=5, seed=1), session="a")
            await asyncio.to_thread(served.update_weights, new.named_parameters(), version=3)
            sampled = await served.complete(ids, SampleParams(max_tokens=20, seed=1), session="a")
        assert set(sampled.versions) == {3}
        assert sampled.logprobs is not None
        told = torch.tensor(list(sampled.logprobs)) - reference_logprobs(new, ids, sampled.ids)
        assert float(told.abs().max()) < 1e-4

    asyncio.run(main())


def test_sampling_changes_nothing_but_its_own_memory() -> None:
    """A kernel that writes past its end would spoil what lies beside it: weights, the noise, other sequences."""

    async def main() -> None:
        folder, model = tiny("qwen3")
        beside = [torch.full((size,), 7.0, device="cuda") for size in (16, 64, 192, 576) for _ in range(40)]
        options: dict[str, Any] = {"num_slots": 70, "device": "cuda", "dtype": "bfloat16"}
        async with TorchEngine.from_folder(folder, EngineConfig(**options)) as served:
            beside += [torch.full((size,), 7.0, device="cuda") for size in (16, 64, 192, 576) for _ in range(40)]
            for num in (1, 9, 70):
                for sampled in await many(served, num):
                    assert sampled.logprobs is not None and min(sampled.logprobs) > -20
            named = list(model.named_parameters())
            decoder = served._worker._decoder
            norm = dict(named)["model.norm.weight"].detach().to("cuda", torch.bfloat16)
            assert torch.equal(decoder.final_norm, norm)
        assert all(bool((one == 7.0).all()) for one in beside)

    asyncio.run(main())
