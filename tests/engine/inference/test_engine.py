"""The engine as its callers see it: results, reuse of the cache, and failures."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Coroutine
from typing import Any

import pytest
import torch
from engine_stage import KINDS, VOCAB, WINDOW, engine, prompt, reference_logprobs, same, tiny

from slipstream.engine.inference.config import EngineConfig, OnUpdate
from slipstream.engine.inference.engine import TorchEngine
from slipstream.engine.inference.sampling import uniform_for
from slipstream.errors import ConfigError, ContextOverflow, ModelError
from slipstream.model.base import Completer, SessionKeeper
from slipstream.types import Sampled, SampleParams, StopReason

EVERY_TOKEN = tuple(range(VOCAB))


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def params(max_tokens: int = 8, seed: int = 1, **options: Any) -> SampleParams:
    return SampleParams(max_tokens=max_tokens, seed=seed, **options)


def worst(sampled: Sampled, reference: Any) -> float:
    assert sampled.logprobs is not None
    return float((torch.tensor(list(sampled.logprobs)) - reference).abs().max())


# ---------------------------------------------------------------- what is returned


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(kind: str, temperature: float) -> None:
    async def main() -> None:
        _, model = tiny(kind)
        async with engine(kind) as served:
            as_protocol: Completer = served
            ids = prompt(37)
            sampled = await as_protocol.complete(ids, params(20, temperature=temperature))
            assert (len(sampled.ids), sampled.stop) == (20, StopReason.LENGTH)
            assert worst(sampled, reference_logprobs(model, ids, sampled.ids, temperature)) < 1e-4

    run(main())


def test_many_requests_on_few_slots_get_what_each_gets_alone() -> None:
    async def main() -> None:
        prompts = [prompt(5 + 11 * number, number) for number in range(11)]
        async with engine(num_slots=3) as served:
            alone = [await served.complete(ids, params(12, seed)) for seed, ids in enumerate(prompts)]
        async with engine(num_slots=3) as served:
            wanted = (served.complete(ids, params(12, seed)) for seed, ids in enumerate(prompts))
            together = await asyncio.gather(*wanted)
        assert all(same(first, second) for first, second in zip(alone, together, strict=True))
        assert len({sampled.ids.tobytes() for sampled in together}) == len(prompts)

    run(main())


def test_a_stop_token_ends_the_sample_and_is_part_of_it() -> None:
    async def main() -> None:
        async with engine() as served:
            free = await served.complete(prompt(9), params(20))
            stop_id = free.ids[6]
            first = free.ids.index(stop_id)
            cut = await served.complete(prompt(9), params(20, stop_ids=(stop_id,)))
            assert (cut.ids, cut.stop) == (free.ids[: first + 1], StopReason.STOP)
            assert cut.logprobs is not None and len(cut.logprobs) == first + 1

    run(main())


def test_greedy_takes_the_likeliest_token_and_gives_no_logprobs() -> None:
    async def main() -> None:
        _, model = tiny()
        async with engine() as served:
            ids = prompt(20)
            sampled = await served.complete(ids, params(6, temperature=0.0))
            with torch.no_grad():
                logits = model(torch.tensor([[*ids, *sampled.ids]])).logits[0, len(ids) - 1 : -1]
            assert list(sampled.ids) == logits.argmax(-1).tolist()
            assert sampled.logprobs is None

    run(main())


def test_top_p_keeps_to_the_likeliest_tokens_and_gives_no_logprobs() -> None:
    async def main() -> None:
        _, model = tiny()
        async with engine() as served:
            sampled = await served.complete(prompt(20), params(12, top_p=0.3))
            assert sampled.logprobs is None
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt(20), *sampled.ids]])).logits[0, 19:-1].float()
            for row, token in zip(logits.softmax(-1), sampled.ids, strict=True):
                assert float(row[row > row[token]].sum()) < 0.3

    run(main())


def test_seeds_repeat_and_differ() -> None:
    async def main() -> None:
        async with engine() as served:
            asked = [served.complete(prompt(9), params(16, seed)) for seed in (2**62, 2**62, 5)]
            first, second, other = await asyncio.gather(*asked)
            assert first.ids == second.ids != other.ids
            unseeded = [await served.complete(prompt(9), SampleParams(max_tokens=16)) for _ in range(2)]
            assert unseeded[0].ids != unseeded[1].ids

    run(main())


def test_the_noise_of_a_token_is_that_of_its_seed_and_its_position() -> None:
    async def main() -> None:
        async with engine() as served:
            flat = torch.zeros(VOCAB, 48)  # every token is as likely as any other
            served.update_weights([("model.embed_tokens.weight", flat)], version=1)
            sampled = await served.complete(prompt(9), params(50, seed=4))
        assert list(sampled.ids) == [int(uniform_for(4, position) * VOCAB) for position in range(9, 59)]

    run(main())


def test_the_frequencies_of_tokens_are_those_of_the_temperature() -> None:
    async def main() -> None:
        _, model = tiny()
        ids = prompt(9)
        with torch.no_grad():
            chances = (model(torch.tensor([ids])).logits[0, -1].float() / 1.5).softmax(-1)
        async with engine(num_slots=16) as served:
            asked = (served.complete(ids, params(1, seed, temperature=1.5)) for seed in range(2000))
            drawn = [sampled.ids[0] for sampled in await asyncio.gather(*asked)]
        counts = torch.bincount(torch.tensor(drawn), minlength=VOCAB)
        likely = chances > 0.01
        spread = (chances * (1 - chances) * 2000).sqrt()
        assert bool(((counts - 2000 * chances).abs() < 4.5 * spread + 1)[likely].all())
        assert abs(int(counts[likely].sum()) - 2000 * float(chances[likely].sum())) < 150

    run(main())


# ---------------------------------------------------------------- sessions


async def _turns(served: TorchEngine, session: str) -> tuple[list[Sampled], list[int]]:
    """Three turns, each prompt the one before with its answer and nine new tokens; and the lengths of the prompts."""
    ids, sampled, lengths = prompt(60), [], []
    for turn in range(3):
        lengths.append(len(ids))
        sampled.append(await served.complete(ids, params(7, turn), session=session))
        ids = [*ids, *sampled[-1].ids, *prompt(9, 100 + turn)]
    return sampled, lengths


def test_a_session_that_comes_back_costs_its_new_tokens_only() -> None:
    async def main() -> None:
        async with engine() as served:
            kept, lengths = await _turns(served, "a")
            # The last token of an answer was never put through the model, so it comes with the nine new ones.
            assert served.counts.num_computed == 60 + 6 + (1 + 9 + 6) + (1 + 9 + 6)
            assert served.counts.num_reused == (lengths[1] - 10) + (lengths[2] - 10)
            assert [each.num_cached for each in kept] == [0, lengths[1] - 10, lengths[2] - 10]
        async with engine(deterministic=True) as served:
            fresh, _ = await _turns(served, "a")
            assert served.counts.num_computed == sum(lengths) + 3 * 6
            assert served.counts.num_reused == 0
        assert all(same(first, second) for first, second in zip(kept, fresh, strict=True))

    run(main())


def test_a_fork_keeps_the_common_prefix_and_the_other_branch() -> None:
    async def main() -> None:
        _, model = tiny()
        async with engine() as served:
            trunk = prompt(50)
            await served.complete(trunk, params(4), session="a")
            before = served.counts.num_computed
            forked = [*trunk[:40], *prompt(5, 7)]
            sampled = await served.complete(forked, params(4), session="a")
            assert served.counts.num_computed - before == 5 + 3
            assert worst(sampled, reference_logprobs(model, forked, sampled.ids)) < 1e-4
            before = served.counts.num_computed
            await served.complete([*trunk, *prompt(6, 8)], params(1), session="a")
            assert served.counts.num_computed - before == 6

    run(main())


def test_samples_of_one_prompt_share_its_computation() -> None:
    async def main() -> None:
        _, model = tiny()
        async with engine(num_slots=8) as served:
            ids = prompt(97)
            asked = (served.complete(ids, params(3, seed), session=f"sample-{seed}") for seed in range(8))
            for sampled in await asyncio.gather(*asked):
                assert worst(sampled, reference_logprobs(model, ids, sampled.ids)) < 1e-4
            assert served.counts.num_computed == 97 + 7 * 1 + 8 * 2

    run(main())


def test_a_salt_keeps_caches_apart() -> None:
    async def main() -> None:
        async with engine() as served:
            for salt in ("v1", "v2"):
                await served.complete(prompt(50), params(1), session="a", cache_salt=salt)
            assert served.counts.num_computed == 100

    run(main())


def test_sessions_give_way_when_slots_are_needed_and_come_back() -> None:
    async def main() -> None:
        async with engine(num_slots=2) as served:
            first = {
                name: await served.complete(prompt(40, seed), params(5), session=name)
                for seed, name in enumerate("abcd")
            }
            assert served.counts.num_evicted == 2
            before = served.counts.num_computed
            await served.complete([*prompt(40, 3), *first["d"].ids, 1], params(1), session="d")
            assert served.counts.num_computed - before == 2
            again = await served.complete(prompt(40, 0), params(5), session="a")
            assert same(first["a"], again)
            assert served.counts.num_computed - before == 2 + 40 + 4

    run(main())


def test_a_session_that_is_over_gives_way_before_one_that_waits_for_its_tools() -> None:
    async def main() -> None:
        async with engine(num_slots=2) as served:
            assert isinstance(served, SessionKeeper)
            waits = await served.complete(prompt(40, 0), params(5), session="waits")
            await served.complete(prompt(40, 1), params(5), session="over")
            served.end_session("over")
            served.end_session("never heard of")
            await served.complete(prompt(40, 2), params(5), session="new")
            before = served.counts.num_computed
            await served.complete([*prompt(40, 0), *waits.ids, 1], params(1), session="waits")
            assert served.counts.num_computed - before == 2
            assert served.counts.num_evicted == 0
        served.end_session("waits")  # and a closed engine takes no offence

    run(main())


def test_a_session_may_end_while_its_request_is_on_its_way_out() -> None:
    async def main() -> None:
        async with engine(num_slots=2) as served:
            waits = await served.complete(prompt(40, 0), params(5), session="waits")
            with pytest.raises(ModelError, match="took longer"):
                await served.complete(prompt(40, 1), params(400), session="over", timeout_s=0.05)
            served.end_session("over")
            await served.complete(prompt(40, 2), params(5), session="new")
            before = served.counts.num_computed
            await served.complete([*prompt(40, 0), *waits.ids, 1], params(1), session="waits")
            assert served.counts.num_computed - before == 2
            assert served.load().running == 0

    run(main())


# ---------------------------------------------------------------- weights


def test_every_token_carries_the_version_that_sampled_it() -> None:
    async def main() -> None:
        _, old = tiny()
        _, new = tiny(seed=1)
        async with engine() as served:
            ids = prompt(30)
            asked = asyncio.create_task(served.complete(ids, params(400)))
            while served.counts.num_sampled < 20:  # noqa: ASYNC110 - it counts in another thread
                await asyncio.sleep(0)
            await asyncio.to_thread(served.update_weights, new.named_parameters(), version=7)
            assert served.version == 7
            sampled = await asked
        num_old = list(sampled.versions).count(0)
        assert list(sampled.versions) == [0] * num_old + [7] * (400 - num_old)
        assert 20 <= num_old < 400
        by_old, by_new = (reference_logprobs(model, ids, sampled.ids) for model in (old, new))
        expected = torch.cat((by_old[:num_old], by_new[num_old:]))
        assert worst(sampled, expected) < 2e-4
        assert float((by_old - by_new).abs().max()) > 1.0

    run(main())


def test_an_update_drops_what_sessions_left_or_keeps_it_on_demand() -> None:
    async def main(on_update: OnUpdate, num_computed: int) -> None:
        _, new = tiny(seed=1)
        async with engine(on_update=on_update) as served:
            await served.complete(prompt(40), params(1), session="a")
            await asyncio.to_thread(served.update_weights, new.named_parameters(), version=1)
            before = served.counts.num_computed
            sampled = await served.complete(prompt(40), params(1), session="a")
            assert list(sampled.versions) == [1]
            assert served.counts.num_computed - before == num_computed

    run(main(OnUpdate.RECOMPUTE, 40))
    run(main(OnUpdate.KEEP, 1))


def test_a_wrong_update_is_refused_and_changes_nothing() -> None:
    async def main() -> None:
        async with engine() as served:
            before = await served.complete(prompt(9), params())
            with pytest.raises(ConfigError, match="no weight 'nothing'"):
                served.update_weights([("nothing", torch.zeros(1))], version=1)
            assert served.version == 0
            assert (await served.complete(prompt(9), params())).ids == before.ids

    run(main())


def test_logits_that_are_not_numbers_are_a_model_error() -> None:
    async def main() -> None:
        _, model = tiny()
        async with engine() as served:
            spoilt = torch.full((48,), float("nan"))
            served.update_weights([("model.norm.weight", spoilt)], version=1)
            for temperature in (1.0, 0.0):
                with pytest.raises(ModelError, match=r"NaN.*version 1"):
                    await served.complete(prompt(9), params(temperature=temperature))
            served.update_weights(model.named_parameters(), version=2)
            assert len((await served.complete(prompt(9), params())).ids) == 8

    run(main())


def test_what_is_not_a_number_does_not_stay_in_the_cache() -> None:
    async def main() -> None:
        _, model = tiny()
        async with engine(num_slots=2, prefill_tokens=100) as served:
            spoilt = torch.full((48,), float("nan"))
            served.update_weights([("model.layers.0.input_layernorm.weight", spoilt)], version=1)
            with pytest.raises(ModelError, match="NaN"):
                await served.complete(prompt(60), params())
            served.update_weights(model.named_parameters(), version=2)
            asked = (served.complete(prompt(length, length), params(20)) for length in (20, 50))  # the first is padded
            short, long = await asyncio.gather(*asked)
            assert worst(short, reference_logprobs(model, prompt(20, 20), short.ids)) < 1e-4
            assert worst(long, reference_logprobs(model, prompt(50, 50), long.ids)) < 1e-4

    run(main())


# ---------------------------------------------------------------- limits, cancellation, failure


def test_a_prompt_that_fills_the_window_is_a_context_overflow_and_the_window_cuts_an_answer() -> None:
    async def main() -> None:
        async with engine() as served:
            with pytest.raises(ContextOverflow):
                await served.complete(prompt(WINDOW), params())
            sampled = await served.complete(prompt(WINDOW - 3), params(10))
            assert (len(sampled.ids), sampled.stop) == (3, StopReason.LENGTH)
            following = await served.complete(prompt(9), params(), session="b")
            assert len(following.ids) == 8

    run(main())


@pytest.mark.parametrize(
    ("ids", "wrong"),
    [([], "empty"), ([1, VOCAB], f"token {VOCAB}"), ([-1], "token -1")],
)
def test_a_prompt_that_is_none_is_refused(ids: list[int], wrong: str) -> None:
    async def main() -> None:
        async with engine() as served:
            with pytest.raises(ModelError, match=wrong):
                await served.complete(ids, params())

    run(main())


def test_cancelling_frees_the_slot() -> None:
    async def main() -> None:
        async with engine(num_slots=1) as served:
            endless = asyncio.create_task(served.complete(prompt(9), params(500)))
            waiting = asyncio.create_task(served.complete(prompt(9, 1), params(500)))
            while served.counts.num_sampled < 2:  # noqa: ASYNC110 - it counts in another thread
                await asyncio.sleep(0)
            load = served.load()
            assert (load.running, load.waiting, load.kv_tokens) == (1, 1, WINDOW)
            assert load.kv_used is not None and 9 / WINDOW <= load.kv_used < 1
            for task in (endless, waiting):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            sampled = await served.complete(prompt(9, 2), params(3))
            assert len(sampled.ids) == 3
            assert served.counts.num_sampled < 500

    run(main())


def test_a_request_that_takes_too_long_is_a_model_error() -> None:
    async def main() -> None:
        async with engine(num_slots=1) as served:
            with pytest.raises(ModelError, match="took longer than 0 s"):
                await served.complete(prompt(9), params(500), timeout_s=0)
            assert len((await served.complete(prompt(9), params(3))).ids) == 3

    run(main())


def test_lower_priorities_go_first() -> None:
    async def main() -> None:
        async with engine(num_slots=1) as served:
            ended: list[str] = []

            async def ask(name: str, priority: int) -> None:
                num = 200 if name == "first" else 10  # all others are there long before it has ended
                await served.complete(prompt(9), params(num), priority=priority)
                ended.append(name)

            async with asyncio.TaskGroup() as group:
                for name, priority in (("first", 0), ("late", 5), ("later", 5), ("early", -1)):
                    group.create_task(ask(name, priority))
                    await asyncio.sleep(0)
            assert ended[-3:] == ["early", "late", "later"] or ended == ["early", "first", "late", "later"]

    run(main())


def test_a_step_that_fails_ends_its_requests_and_not_the_engine() -> None:
    async def main() -> None:
        async with engine() as served:
            hopeless = SampleParams(max_tokens=3, seed=1, stop_ids=5)  # type: ignore[arg-type]  # raises in the step
            with pytest.raises(ModelError, match="a step of the engine failed: TypeError"):
                await served.complete(prompt(9), hopeless)
            assert len((await served.complete(prompt(9), params(3))).ids) == 3

    run(main())


def test_closing_fails_what_is_under_way_and_closing_twice_is_fine() -> None:
    async def main() -> None:
        served = engine(num_slots=1)
        tasks = [asyncio.create_task(served.complete(prompt(9), params(500))) for _ in range(3)]
        while served.counts.num_sampled < 2:  # noqa: ASYNC110 - it counts in another thread
            await asyncio.sleep(0)
        await served.aclose()
        for task in tasks:
            with pytest.raises(ModelError, match="closed"):
                await task
        await served.aclose()
        with pytest.raises(ModelError, match="closed"):
            await served.complete(prompt(9), params())
        with pytest.raises(ModelError, match="closed"):
            served.update_weights([], version=1)

    run(main())


# ---------------------------------------------------------------- the same bits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deterministic_gives_the_same_bits_whatever_else_is_running(dtype: str) -> None:
    async def main() -> None:
        ids = prompt(45)
        async with engine("qwen3", num_slots=6, deterministic=True, dtype=dtype) as served:
            alone = await served.complete(ids, params(24))
            others = [served.complete(prompt(3 + 17 * seed, seed), params(9 + seed, seed)) for seed in range(12)]
            again, *_ = await asyncio.gather(served.complete(ids, params(24)), *others)
            *_, last = await asyncio.gather(*others_of(served), served.complete(ids, params(24)))
        assert alone.logprobs is not None
        for sampled in (again, last):
            assert (sampled.ids, sampled.logprobs) == (alone.ids, alone.logprobs)

    def others_of(served: TorchEngine) -> list[Coroutine[Any, Any, Sampled]]:
        return [served.complete(prompt(5 + 7 * seed, seed), params(9 + seed, seed)) for seed in range(5)]

    run(main())


def test_bfloat16_logprobs_are_close_to_those_of_float32() -> None:
    async def main() -> None:
        _, model = tiny()
        async with engine(dtype="bfloat16") as served:
            ids = prompt(20)
            sampled = await served.complete(ids, params(20))
            assert worst(sampled, reference_logprobs(model, ids, sampled.ids)) < 0.3
            assert isinstance(sampled.logprobs, array)

    run(main())


def test_a_context_larger_than_the_models_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="set at most 512"):
        engine(context_tokens=513)
    with pytest.raises(ConfigError, match="num_slots=0"):
        EngineConfig(num_slots=0)
    with pytest.raises(ConfigError, match="dtype=float8"):
        EngineConfig(dtype="float8")
    with pytest.raises(ConfigError, match="device=gpu"):
        engine(device="gpu")
