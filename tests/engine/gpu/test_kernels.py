"""The GPU's kernels and passes against torch's operations, on a CPU in Triton's interpreter: `make kernels`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":  # Triton reads it when it is first imported, by whatever imports it
    pytest.skip("make kernels runs these", allow_module_level=True)

import torch
from engine_stage import KINDS, prompt, reference_logprobs, same, tiny

from slipstream.engine.inference.config import EngineConfig
from slipstream.engine.inference.engine import TorchEngine
from slipstream.errors import ModelError
from slipstream.types import Sampled, SampleParams, StopReason

SHAPE = {"head_dim": 16, "num_hidden_layers": 1}
"""One layer, since the interpreter takes its time."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The interpreter counts with numpy, which has something to say on every overflow."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def engine(kind: str = "llama", *, kernels: str = "triton", **options: Any) -> TorchEngine:
    folder, _ = tiny(kind, **SHAPE)
    settings: dict[str, Any] = {"num_slots": 4, "prefill_tokens": 48, "device": "cpu", "num_threads": 1, **options}
    return TorchEngine.from_folder(folder, EngineConfig(kernels=kernels, **settings))


async def many(served: TorchEngine, num: int) -> list[Sampled]:
    asked = (
        served.complete(prompt(5 + 17 * seed, seed), SampleParams(max_tokens=3 + seed, seed=seed), session=str(seed))
        for seed in range(num)
    )
    return list(await asyncio.gather(*asked))


async def begun(served: TorchEngine) -> None:
    """A token was sampled."""
    for _ in range(60_000):
        if served.counts.num_sampled:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("nothing was sampled")


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_on_kernels_samples_what_the_plain_one_does(kind: str) -> None:
    async def main() -> None:
        async with engine(kind, num_slots=5) as served:
            told = await many(served, 5)
            ids = [*prompt(5), *told[0].ids, *prompt(7, 50)]
            before = served.counts
            again = await served.complete(ids, SampleParams(max_tokens=6, seed=1), session="0")
            assert served.counts.num_reused - before.num_reused == len(told[0].ids) + 4
        async with engine(kind, kernels="torch") as served:
            plain = await many(served, 5)
        assert all(same(first, second) for first, second in zip(told, plain, strict=True))
        assert again.logprobs is not None
        _, model = tiny(kind, **SHAPE)
        apart = torch.tensor(list(again.logprobs)) - reference_logprobs(model, ids, again.ids)
        assert float(apart.abs().max()) < 1e-4

    asyncio.run(main())


def test_what_comes_after_the_end_of_an_answer_is_left_out() -> None:
    async def main() -> None:
        async with engine() as served:
            whole = await served.complete(prompt(9), SampleParams(max_tokens=7, seed=3), session="a")
            assert (len(whole.ids), whole.stop) == (7, StopReason.LENGTH)
            stop = whole.ids[2]
            short = await served.complete(prompt(9), SampleParams(max_tokens=7, seed=3, stop_ids=(stop,)), session="b")
            assert (short.stop, list(short.ids)) == (StopReason.STOP, list(whole.ids[: whole.ids.index(stop) + 1]))
            longer = await served.complete([*prompt(9), *short.ids, 5], SampleParams(max_tokens=4, seed=4), session="b")
        async with engine(kernels="torch") as served:
            plain = await served.complete([*prompt(9), *short.ids, 5], SampleParams(max_tokens=4, seed=4))
        assert same(longer, plain)

    asyncio.run(main())


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.7}, {"top_p": 0.6}])
def test_temperature_and_nucleus_are_those_of_the_plain_engine(params: dict[str, float]) -> None:
    async def main() -> None:
        told = []
        for kernels in ("triton", "torch"):
            async with engine(kernels=kernels) as served:
                asked = (
                    served.complete(prompt(20, seed), SampleParams(max_tokens=6, seed=seed, **params))  # type: ignore[arg-type]
                    for seed in range(3)
                )
                told.append(
                    await asyncio.gather(*asked, served.complete(prompt(8), SampleParams(max_tokens=9, seed=1)))
                )
        for first, second in zip(*told, strict=True):
            assert first.ids == second.ids
            assert (first.logprobs is None) == (second.logprobs is None)

    asyncio.run(main())


def test_new_weights_are_used_from_the_next_token_on_and_old_ones_are_told_apart() -> None:
    async def main() -> None:
        _, new = tiny(seed=1, **SHAPE)
        async with engine() as served:
            long = asyncio.create_task(served.complete(prompt(30), SampleParams(max_tokens=40, seed=1)))
            await begun(served)
            await asyncio.to_thread(served.update_weights, list(new.named_parameters()), version=3)
            sampled = await long
        assert set(sampled.versions) == {0, 3}
        first = list(sampled.versions).index(3)
        assert list(sampled.versions) == [0] * first + [3] * (40 - first)
        assert sampled.logprobs is not None
        told = torch.tensor(list(sampled.logprobs)) - reference_logprobs(new, prompt(30), sampled.ids)
        assert float(told[first:].abs().max()) < 1e-4 < float(told[:first].abs().max())

    asyncio.run(main())


def test_a_cancelled_request_leaves_its_slot_to_others() -> None:
    async def main() -> None:
        async with engine(num_slots=1) as served:
            long = asyncio.create_task(served.complete(prompt(30), SampleParams(max_tokens=400, seed=1)))
            await begun(served)
            long.cancel()
            told = await served.complete(prompt(12, 3), SampleParams(max_tokens=5, seed=2))
        async with engine(num_slots=1, kernels="torch") as served:
            assert same(told, await served.complete(prompt(12, 3), SampleParams(max_tokens=5, seed=2)))

    asyncio.run(main())


def test_logits_that_are_no_numbers_end_the_request_alone() -> None:
    async def main() -> None:
        _, model = tiny(**SHAPE)
        async with engine() as served:
            weights = {name: value.detach().clone() for name, value in model.named_parameters()}
            weights["model.embed_tokens.weight"][7] = float("nan")
            await asyncio.to_thread(served.update_weights, list(weights.items()), version=1)
            with pytest.raises(ModelError, match="logits are NaN"):
                await served.complete([7, 7, 7], SampleParams(max_tokens=4, seed=1))

    asyncio.run(main())


def test_attention_in_parts_is_attention() -> None:
    from slipstream.engine.gpu import kernels

    torch.manual_seed(0)
    cache = torch.randn(2, 3, 2, 512, 16)
    queries = torch.randn(3, 6, 16)
    slots = torch.tensor([2, 0, 1], dtype=torch.int32)
    positions = torch.tensor([511, 0, 200], dtype=torch.int32)
    for num_parts in (1, 4, 32):
        told = kernels.attend_one(queries, cache, slots, positions, num_parts=num_parts)
        for row in range(3):
            keys, values = cache[:, slots[row], :, : positions[row] + 1].repeat_interleave(3, dim=1)
            plain = torch.nn.functional.scaled_dot_product_attention(queries[row, :, None], keys, values)[:, 0]
            assert torch.allclose(told[row], plain, atol=1e-5)


def test_tokens_are_drawn_as_often_as_their_logprobs_say_across_blocks_of_the_vocabulary() -> None:
    from slipstream.engine.gpu import sampling_kernels
    from slipstream.engine.inference.sampling import DrawSpec, draw, splitmix64, uniform_for

    torch.manual_seed(0)
    num, vocab = 24, 2 * sampling_kernels.DRAW_BLOCK + 77
    logits = 3 * torch.randn(num, vocab)
    logits[3, : sampling_kernels.DRAW_BLOCK] = float("-inf")
    seeds = list(range(num))
    state = sampling_kernels.SlotState(
        tokens=torch.zeros(num, dtype=torch.int32),
        positions=torch.zeros(num, dtype=torch.int32),
        seeds=torch.tensor([bits - (1 << 64) if (bits := splitmix64(seed)) >= 1 << 63 else bits for seed in seeds]),
        temperatures=torch.ones(num),
        last_position=99,
    )
    told = sampling_kernels.SampledRing(
        counter=torch.zeros(1, dtype=torch.int32),
        tokens=torch.zeros(1, num, dtype=torch.int32),
        logprobs=torch.zeros(1, num),
    )
    slots, positions = torch.arange(num, dtype=torch.int32), torch.full((num,), 40, dtype=torch.int32)
    sampling_kernels.draw(logits, slots, positions, state, told)
    plain = draw(
        logits.clone(), [DrawSpec(temperature=1.0, top_p=1.0, uniform=uniform_for(seed, 41)) for seed in seeds]
    )
    assert told.tokens[0].tolist() == [one.token for one in plain]
    assert told.logprobs[0].tolist() == pytest.approx([one.logprob for one in plain], abs=1e-5)
    assert state.positions.tolist() == [41] * num and state.tokens.tolist() == told.tokens[0].tolist()
