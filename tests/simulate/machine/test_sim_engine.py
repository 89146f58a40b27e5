import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.aio import task_group
from slipstream.simulate.clock import run_virtual
from slipstream.simulate.machine.engine import EngineSpec, Fleet, SimEngine
from slipstream.simulate.machine.host import FIRST, RunProcess, SimHost

PLAIN = EngineSpec(kv_tokens=1000, step_s=1.0, row_s=0.0, token_s=0.0, prefill_tokens_s=100.0)
"""A token takes a second, whoever else is there; a hundred tokens of a prompt take one."""


async def seconds(work: Coroutine[Any, Any, object]) -> float:
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    await work
    return loop.time() - start_s


def test_a_request_takes_its_prefill_and_a_step_for_each_token() -> None:
    async def main() -> float:
        return await seconds(SimEngine(PLAIN).complete("a", context=300, sampled=7))

    assert run_virtual(main()) == pytest.approx(3 + 7)


def test_what_is_in_the_cache_is_not_computed_again() -> None:
    async def main() -> tuple[float, int, int]:
        engine = SimEngine(PLAIN)
        await engine.complete("a", context=300, sampled=10)
        took_s = await seconds(engine.complete("a", context=360, sampled=1))
        return took_s, engine.counts.num_prefilled, engine.counts.num_again

    assert run_virtual(main()) == pytest.approx((0.5 + 1, 350, 0))


def test_what_was_pushed_out_is_computed_again_and_counted() -> None:
    async def main() -> tuple[float, int, int]:
        engine = SimEngine(PLAIN)
        await engine.complete("a", context=300, sampled=10)
        await engine.complete("b", context=800, sampled=10)
        took_s = await seconds(engine.complete("a", context=360, sampled=1))
        return took_s, engine.counts.num_prefilled, engine.counts.num_again

    assert run_virtual(main()) == pytest.approx((3.6 + 1, 300 + 800 + 360, 310))


def test_the_least_recently_used_goes_first_and_no_more_than_must() -> None:
    async def main() -> list[int]:
        engine = SimEngine(PLAIN)
        for name in ("a", "b", "c", "a"):
            await engine.complete(name, context=299, sampled=1)
        before = engine.counts.num_again
        await engine.complete("d", context=399, sampled=1)  # 100 are free, and b has the other 300
        after = [before]
        for name in ("c", "a", "b"):
            await engine.complete(name, context=299, sampled=1)
            after.append(engine.counts.num_again)
        return after

    assert run_virtual(main()) == [0, 0, 0, 299]


def test_a_cache_is_used_until_its_request_is_over() -> None:
    async def main() -> list[int]:
        engine = SimEngine(PLAIN)
        async with task_group() as group:
            group.create_task(engine.complete("a", context=299, sampled=50))
            await asyncio.sleep(10)
            group.create_task(engine.complete("b", context=299, sampled=1))
        await engine.complete("c", context=499, sampled=1)
        after = []
        for name in ("a", "b"):
            await engine.complete(name, context=299, sampled=1)
            after.append(engine.counts.num_again)
        return after

    assert run_virtual(main()) == [0, 299], "b began later, but was over before a"


def test_a_request_under_way_keeps_its_cache_and_others_wait() -> None:
    async def main() -> tuple[float, int, int]:
        engine = SimEngine(PLAIN)
        async with task_group() as group:
            group.create_task(engine.complete("a", context=600, sampled=100))
            await asyncio.sleep(50)
            waited_s = seconds(engine.complete("b", context=400, sampled=1))
            load = engine.load()
            assert load is not None and (load.running, load.waiting, load.kv_used) == (1, 0, 0.7)
            late = group.create_task(waited_s)
            await asyncio.sleep(1)
            load = engine.load()
            assert load is not None and (load.running, load.waiting) == (1, 1)
        return await late, engine.counts.num_again, engine.counts.peak_kv

    assert run_virtual(main()) == pytest.approx((56 + 4 + 1, 0, 700))


def test_decoding_takes_as_long_as_the_formula_says() -> None:
    spec = replace(PLAIN, step_s=0.5, row_s=0.1, token_s=0.001, prefill_tokens_s=1e12)

    async def main() -> tuple[float, float]:
        engine = SimEngine(spec)
        both = await asyncio.gather(
            seconds(engine.complete("a", context=90, sampled=10)),
            seconds(engine.complete("b", context=180, sampled=20)),
        )
        return both[0], both[1]

    together_s, alone_s = 0.5 + 2 * 0.1 + 300 * 0.001, 0.5 + 0.1 + 200 * 0.001
    assert run_virtual(main()) == pytest.approx((10 * together_s, 10 * together_s + 10 * alone_s))


def test_prompts_and_replies_share_the_engine_and_prompts_go_one_by_one() -> None:
    spec = replace(PLAIN, prefill_share=0.25)

    async def main() -> tuple[float, ...]:
        engine = SimEngine(spec)

        async def later(name: str) -> float:
            await asyncio.sleep(2)
            await engine.complete(name, context=100, sampled=1)
            return asyncio.get_running_loop().time()

        return tuple(
            await asyncio.gather(seconds(engine.complete("a", context=100, sampled=11)), later("b"), later("c"))
        )

    # a: 1 s of prefill, 1 token by 2 s; b's prompt takes 4 s and c's the next 4, in which a gets 6 tokens; the rest is
    # a's alone. b samples in the second of these stretches, c after them.
    assert run_virtual(main()) == pytest.approx((14, 6 + 4 / 3, 11))


# ---------------------------------------------------------------- what is called off


async def room_after(engine: SimEngine, *, at_s: float, context: int, sampled: int) -> float:
    """How long a request that fills the whole cache waits for its turn, if the one before is cancelled at a time."""
    task = asyncio.create_task(engine.complete("gone", context=context, sampled=sampled))
    await asyncio.sleep(0)
    whole = asyncio.create_task(seconds(engine.complete("whole", context=999, sampled=1)))
    await asyncio.sleep(at_s)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return await whole - 9.99 - 1


@pytest.mark.parametrize("at_s", [0.0, 1.0, 50.0])
def test_a_cancelled_request_gives_its_room_back_at_once(at_s: float) -> None:
    async def main() -> float:
        return await room_after(SimEngine(PLAIN), at_s=at_s, context=300, sampled=100)

    assert run_virtual(main()) == pytest.approx(at_s)


def test_of_a_cancelled_reply_the_prompt_stays_in_the_cache() -> None:
    async def main() -> int:
        engine = SimEngine(PLAIN)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(10):
                    await engine.complete("a", context=300, sampled=100)
        return engine.counts.num_prefilled

    assert run_virtual(main()) == 300


def test_who_gives_up_waiting_is_no_longer_in_the_way_of_others() -> None:
    async def main() -> float:
        engine = SimEngine(PLAIN)
        async with task_group() as group:
            group.create_task(engine.complete("a", context=400, sampled=100))
            await asyncio.sleep(10)
            big = asyncio.create_task(engine.complete("big", context=900, sampled=1))
            small = group.create_task(seconds(engine.complete("small", context=400, sampled=1)))
            await asyncio.sleep(10)
            big.cancel()
            await asyncio.gather(big, return_exceptions=True)
            return await small

    assert run_virtual(main()) == pytest.approx(10 + 400 / 50 + 1)


def test_two_that_are_cancelled_at_one_instant_are_both_just_cancelled() -> None:
    async def main() -> list[type]:
        engine = SimEngine(PLAIN)
        tasks = [asyncio.create_task(engine.complete(name, context=900, sampled=50)) for name in ("first", "waits")]
        await asyncio.sleep(20)
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        await engine.complete("next", context=999, sampled=1)
        return [type(end) for end in ends]

    assert run_virtual(main()) == [asyncio.CancelledError, asyncio.CancelledError]


def test_a_session_that_is_over_is_room_for_those_who_wait() -> None:
    async def main() -> tuple[int, int]:
        engine = SimEngine(PLAIN)
        await engine.complete("a", context=500, sampled=1)
        await engine.complete("b", context=400, sampled=1)
        engine.end("a")
        engine.end("nobody")
        await engine.complete("c", context=500, sampled=1)
        await engine.complete("b", context=401, sampled=1)
        return engine.counts.num_again, engine.counts.peak_kv

    assert run_virtual(main()) == (0, 903)


def test_an_engine_that_does_not_report_says_nothing() -> None:
    async def main() -> None:
        assert SimEngine(replace(PLAIN, reports=False)).load() is None
        assert SimEngine(PLAIN).load() is not None

    run_virtual(main())


# ---------------------------------------------------------------- anything


@dataclass(frozen=True, kw_only=True)
class Talk:
    start_s: float
    turns: list[tuple[int, int, float]]
    """New tokens, sampled tokens, seconds until the next."""
    cancel_s: float | None


talks = st.builds(
    Talk,
    start_s=st.sampled_from([0.0, 0.0, 1.0, 7.5]),
    turns=st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 40), st.sampled_from([0.0, 1.0, 30.0])), min_size=1, max_size=5
    ),
    cancel_s=st.sampled_from([None, None, None, 0.0, 0.5, 1.0, 8.0, 40.0]),
)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(talks, min_size=1, max_size=8), st.sampled_from([500, 501, 700, 2000]))
def test_whatever_comes_the_cache_is_never_too_full_and_nothing_is_lost(drawn: list[Talk], kv_tokens: int) -> None:
    async def main() -> SimEngine:
        engine = SimEngine(replace(PLAIN, kv_tokens=kv_tokens, step_s=0.1, row_s=0.01, token_s=1e-4))

        async def talk(name: str, one: Talk) -> None:
            context = 0
            await asyncio.sleep(one.start_s)
            try:
                async with asyncio.timeout(one.cancel_s):
                    for new, sampled, wait_s in one.turns:
                        context += new
                        await engine.complete(name, context=context, sampled=sampled)
                        context += sampled
                        await asyncio.sleep(wait_s)
            except TimeoutError:
                pass
            finally:
                engine.end(name)

        async with task_group() as group:
            for index, one in enumerate(drawn):
                group.create_task(talk(f"talk {index}", one))
        return engine

    engine = run_virtual(main())
    load = engine.load()
    assert load is not None and (load.running, load.waiting, load.kv_used) == (0, 0, 0.0)
    assert engine._kv == 0, "all of the cache is free again"
    assert engine.counts.peak_kv <= kv_tokens
    if all(one.cancel_s is None for one in drawn):
        assert engine.counts.num_sampled == sum(sampled for one in drawn for _, sampled, _ in one.turns)
        new = sum(new for one in drawn for new, _, _ in one.turns)
        assert engine.counts.num_prefilled == new + engine.counts.num_again


# ---------------------------------------------------------------- slots, prefixes, hosts, fleets


def test_more_requests_than_slots_wait_their_turn() -> None:
    spec = replace(PLAIN, slots=2, prefill_tokens_s=1e12)

    async def main() -> list[float]:
        engine = SimEngine(spec)
        return list(
            await asyncio.gather(*(seconds(engine.complete(name, context=10, sampled=10)) for name in ("a", "b", "c")))
        )

    assert run_virtual(main()) == pytest.approx([10, 10, 20])


def test_an_engine_with_a_slot_for_each_context_loses_the_one_used_longest_ago() -> None:
    async def main() -> list[int]:
        engine = SimEngine(replace(PLAIN, contexts=2))
        again = []
        for name in ("a", "b", "a", "c", "a", "b"):
            await engine.complete(name, context=100, sampled=0)
            again.append(engine.counts.num_again)
        return again

    assert run_virtual(main()) == [0, 0, 0, 0, 0, 100], "c took the slot of b, with all the cache to spare"


def test_a_prefix_that_others_have_is_not_computed() -> None:
    async def main() -> tuple[float, int]:
        engine = SimEngine(PLAIN)
        took_s = await seconds(engine.complete("a", context=300, sampled=1, shared=200))
        return took_s, await engine.complete("a", context=301, sampled=1, shared=200)

    assert run_virtual(main()) == pytest.approx((1 + 1, 301))


def test_what_a_rewritten_conversation_kept_alone_is_of_use() -> None:
    async def main() -> tuple[float, int]:
        engine = SimEngine(PLAIN)
        await engine.complete("a", context=300, sampled=100)
        took_s = await seconds(engine.complete("a", context=250, sampled=1, kept=50))
        return took_s, engine.counts.num_again

    assert run_virtual(main()) == pytest.approx((2 + 1, 0)), "what was cut off was not lost by the engine"


def test_a_call_takes_its_way_there_and_back() -> None:
    async def main() -> float:
        return await seconds(SimEngine(replace(PLAIN, call_s=0.5)).complete("a", context=100, sampled=1))

    assert run_virtual(main()) == pytest.approx(2.5)


def test_an_engine_and_sandboxes_on_one_machine_slow_each_other_down() -> None:
    spec = replace(PLAIN, cores=1.0, prefill_tokens_s=1e12)

    async def main(num_cores: float) -> tuple[float, float]:
        host = SimHost(num_cores)
        engine = SimEngine(spec, host)
        both = await asyncio.gather(seconds(engine.complete("a", context=1, sampled=10)), seconds(host.work(4.0)))
        return both[0], both[1]

    assert run_virtual(main(2.0)) == pytest.approx((10, 4))
    assert run_virtual(main(1.0)) == pytest.approx((14, 8)), "each at half its speed, until the other is done"


def test_a_prompt_costs_something_besides_its_tokens() -> None:
    async def main() -> tuple[float, float]:
        engine = SimEngine(replace(PLAIN, prompt_s=0.5))
        first_s = await seconds(engine.complete("a", context=300, sampled=7))
        return first_s, await seconds(engine.complete("a", context=307, sampled=1))

    assert run_virtual(main()) == pytest.approx((3 + 0.5 + 7, 1)), "and nothing where nothing is computed"


@pytest.mark.parametrize(
    ("duty", "engine_s", "front_s"),
    [
        (1.0, 10 + 4 / FIRST - 4 / FIRST * (1 - FIRST), 4 / FIRST),
        (0.05, 10, 4 / 0.95),
        (0.0, 10, 4),
    ],
)
def test_an_engine_in_the_runs_own_process_gives_way_to_its_event_loop(
    duty: float, engine_s: float, front_s: float
) -> None:
    async def main() -> tuple[float, float]:
        front = RunProcess(SimHost(4.0))
        engine = SimEngine(replace(PLAIN, prefill_tokens_s=1e12, duty=duty), front=front)
        both = await asyncio.gather(seconds(engine.complete("a", context=1, sampled=10)), seconds(front.work(4.0)))
        return both[0], both[1]

    assert run_virtual(main()) == pytest.approx((engine_s, front_s), rel=1e-6)


def test_what_the_event_loop_is_asked_for_it_does_in_one_thread() -> None:
    async def main(num_cores: float) -> tuple[float, float]:
        host = SimHost(num_cores)
        front = RunProcess(host)
        took = await asyncio.gather(seconds(front.work(1.0)), seconds(front.work(1.0)), seconds(host.work(2.0)))
        return took[0], took[2]

    assert run_virtual(main(2.0)) == pytest.approx((2, 2)), "two cores: one for the thread, one for the work"
    assert run_virtual(main(1.0)) == pytest.approx((4, 4))


def test_an_engine_and_its_event_loop_want_one_core_between_them() -> None:
    async def main() -> float:
        host = SimHost(2.0)
        front = RunProcess(host)
        engine = SimEngine(replace(PLAIN, prefill_tokens_s=1e12, duty=1.0, cores=1.0), host, front)
        beside = asyncio.gather(engine.complete("a", context=1, sampled=10), front.work(4.0))
        took_s = await seconds(host.work(5.0))
        await beside
        return took_s

    assert run_virtual(main()) == pytest.approx(5.0)


def test_sessions_are_spread_over_engines_and_stay_where_they_are() -> None:
    spec = replace(PLAIN, slots=1, prefill_tokens_s=1e12)

    async def main() -> tuple[list[float], int | None, list[int]]:
        fleet = Fleet([SimEngine(spec), SimEngine(spec)])
        took = await asyncio.gather(*(seconds(fleet.complete(name, context=9, sampled=10)) for name in ("a", "b")))
        await fleet.complete("a", context=19, sampled=1)
        load = fleet.load()
        assert load is not None
        fleet.end("a")
        return list(took), load.kv_tokens, [engine.counts.num_prefilled for engine in fleet.engines]

    took, kv_tokens, prefilled = run_virtual(main())
    assert took == pytest.approx([10, 10])
    assert (kv_tokens, prefilled) == (2_000, [9, 9])
