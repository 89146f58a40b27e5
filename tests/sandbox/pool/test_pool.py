"""The pool, on virtual time: what it keeps warm, whom it serves, and that nothing is left."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_stage import FAILS, WEDGED, Rigged, RiggedProvider, Start

from slipstream.errors import ConfigError, SandboxError, SandboxFileError
from slipstream.sandbox.base import Changes, Endpoints, Sandbox, Snapshots
from slipstream.sandbox.pool.pool import REFILL_S, Pool
from slipstream.sandbox.pool.pooled_sandbox import PooledSandbox
from slipstream.simulate.clock import run_virtual
from slipstream.types import File, SandboxSpec

SPEC = SandboxSpec()
OTHER = SandboxSpec(base="/another")


def now_s() -> float:
    return asyncio.get_running_loop().time()


def inner(sandbox: Sandbox) -> Rigged:
    assert isinstance(sandbox, PooledSandbox) and isinstance(sandbox.inner, Rigged)
    return sandbox.inner


def check(provider: RiggedProvider, body: Callable[[Pool], Awaitable[None]], *, max_warm: int = 4, **more: int) -> Pool:
    """Run `body` with a pool; afterwards nothing is left."""

    async def main() -> Pool:
        pool = Pool(provider, max_warm=max_warm, **more)
        try:
            await body(pool)
        finally:
            await pool.aclose()
        assert (pool.num_live, pool.num_warm, provider.num_open, provider.closed) == (0, 0, 0, True)
        return pool

    return run_virtual(main())


def test_what_is_expected_is_warm_and_leased_at_once() -> None:
    async def body(pool: Pool) -> None:
        pool.expect(SPEC, 3)
        await asyncio.sleep(2)
        assert (pool.num_warm, pool.num_live) == (3, 3)
        begin_s = now_s()
        sandboxes = [await pool.open(SPEC) for _ in range(3)]
        assert now_s() == begin_s
        assert len({sandbox.id for sandbox in sandboxes}) == 3
        assert (pool.num_leased, pool.num_from_warm) == (3, 3)
        assert not isinstance(sandboxes[0], Changes | Snapshots | Endpoints), "its provider names none of them"
        for sandbox in sandboxes:
            await sandbox.aclose()
            await sandbox.aclose()
            assert not await sandbox.healthy()
        assert pool.num_leased == 0

    check(RiggedProvider(), body)


def test_what_is_expected_besides_adds_up_over_specs_of_a_kind() -> None:
    async def body(pool: Pool) -> None:
        pool.expect_more(replace(SPEC, files={name: File(data=b"")}) for name in "ab")
        pool.expect_more([SPEC])
        await asyncio.sleep(2)
        assert pool.num_warm == 3

    check(RiggedProvider(), body)


def test_without_notice_a_sandbox_is_started_and_never_given_out_twice() -> None:
    provider = RiggedProvider()

    async def body(pool: Pool) -> None:
        first = await pool.open(SPEC)
        assert now_s() == 1.0
        await first.exec(["true"], timeout_s=1)
        await first.aclose()
        second = await pool.open(SPEC)
        assert second.id != first.id and inner(second).commands == []

    check(provider, body)


def test_files_are_written_at_the_lease_and_warm_ones_have_none() -> None:
    spec = replace(SPEC, files={"a.txt": File(data=b"a")}, setup=("true",))
    provider = RiggedProvider()

    async def body(pool: Pool) -> None:
        pool.expect(spec, 1)
        await asyncio.sleep(2)
        assert provider.specs == [SPEC] and provider.sandboxes[0].files == {}
        sandbox = await pool.open(spec)
        assert await sandbox.read("a.txt") == b"a"
        assert inner(sandbox) is provider.sandboxes[0]
        assert inner(sandbox).commands == [], "setup is the caller's"

    check(provider, body)


def test_specs_that_differ_in_more_than_files_and_setup_are_kinds_of_their_own() -> None:
    provider = RiggedProvider()
    others = [
        replace(SPEC, base="/b"),
        replace(SPEC, workdir="/w"),
        replace(SPEC, tree="/t"),
        replace(SPEC, env={"A": "1"}),
        replace(SPEC, limits=replace(SPEC.limits, memory_mb=7)),
    ]

    async def body(pool: Pool) -> None:
        pool.expect(SPEC, 4)
        await asyncio.sleep(2)
        for other in others:
            sandbox = await pool.open(other)
            assert inner(sandbox).spec == other
        assert pool.num_from_warm == 0

    check(provider, body)


def test_files_that_cannot_be_written_are_the_callers_error_and_leave_nothing() -> None:
    async def body(pool: Pool) -> None:
        with pytest.raises(SandboxFileError):
            await pool.open(replace(SPEC, files={"a": File(data=b""), "a/b": File(data=b"")}))
        assert pool.num_live == 0

    check(RiggedProvider(), body)


def test_a_warm_one_that_died_is_not_leased() -> None:
    provider = RiggedProvider()

    async def body(pool: Pool) -> None:
        pool.expect(SPEC, 2)
        await asyncio.sleep(2)
        for warm in provider.sandboxes:
            warm.die()
        provider.sandboxes[0].hang()
        sandbox = await pool.open(SPEC)
        assert await sandbox.healthy()
        assert pool.num_unhealthy == 2

    check(provider, body)


def test_a_failed_start_is_tried_again_after_a_pause() -> None:
    async def body(pool: Pool) -> None:
        await pool.open(SPEC)
        assert now_s() == 3 * 1.0 + 0.25 + 0.5

    check(RiggedProvider(lambda number: FAILS if number < 2 else Start()), body)


def test_after_so_many_failures_whoever_waits_is_told() -> None:
    provider = RiggedProvider(lambda _: FAILS)

    async def body(pool: Pool) -> None:
        with pytest.raises(SandboxError, match="it was told to fail"):
            await pool.open(SPEC)
        assert len(provider.specs) == 3

    check(provider, body)


def test_sandboxes_that_come_up_dead_are_failed_starts() -> None:
    provider = RiggedProvider(lambda _: Start(dies=True))

    async def body(pool: Pool) -> None:
        with pytest.raises(SandboxError, match="does not respond"):
            await pool.open(SPEC)
        assert len(provider.specs) == 3

    check(provider, body)


def test_a_bad_spec_is_told_at_once() -> None:
    provider = RiggedProvider(lambda _: Start(fails=ConfigError("no such image")))

    async def body(pool: Pool) -> None:
        with pytest.raises(ConfigError, match="no such image"):
            await pool.open(SPEC)
        assert len(provider.specs) == 1

    check(provider, body)


def test_what_a_provider_raises_that_is_none_of_ours_is_a_failed_start() -> None:
    async def body(pool: Pool) -> None:
        with pytest.raises(SandboxError, match="KeyError"):
            await pool.open(SPEC)

    check(RiggedProvider(lambda _: Start(fails=KeyError("x"))), body)


def test_one_failure_does_not_hold_up_the_others() -> None:
    async def body(pool: Pool) -> None:
        opened = await asyncio.gather(*(pool.open(SPEC) for _ in range(4)))
        assert len({sandbox.id for sandbox in opened}) == 4
        assert now_s() == 1 + 1

    check(RiggedProvider(lambda number: FAILS if number == 0 else Start()), body)


def test_a_wedged_start_is_cancelled_and_another_takes_its_place() -> None:
    provider = RiggedProvider(lambda number: WEDGED if number == 0 else Start())

    async def body(pool: Pool) -> None:
        await pool.open(SPEC)
        assert now_s() == 30 + 0.25 + 1
        assert pool.num_live == provider.num_now == 1

    assert check(provider, body).num_abandoned == 0


def test_a_start_that_ignores_its_cancellation_is_left_behind_and_what_it_brings_is_closed() -> None:
    provider = RiggedProvider(lambda number: replace(WEDGED, stubborn_s=100.0) if number == 0 else Start())

    async def body(pool: Pool) -> None:
        await pool.open(SPEC)
        assert (pool.num_abandoned, pool.num_live) == (0, 2), "it has its grace"
        await asyncio.sleep(20)
        assert (pool.num_abandoned, pool.num_live) == (1, 1)
        await asyncio.sleep(200)
        assert [sandbox.closed for sandbox in provider.sandboxes] == [False, True]

    check(provider, body)


def test_a_late_sandbox_is_closed_even_after_the_pool_is() -> None:
    provider = RiggedProvider(lambda _: replace(WEDGED, stubborn_s=100.0))

    async def main() -> None:
        pool = Pool(provider, max_warm=1)
        pool.expect(SPEC, 1)
        await asyncio.sleep(1)
        await pool.aclose()
        assert (now_s(), pool.num_abandoned, provider.sandboxes) == (11.0, 1, [])
        await asyncio.sleep(100)
        assert [sandbox.closed for sandbox in provider.sandboxes] == [True]

    run_virtual(main())


def test_a_close_that_wedges_is_left_behind() -> None:
    async def main() -> None:
        pool = Pool(RiggedProvider(lambda _: Start(close_s=1e6)), max_warm=1)
        sandbox = await pool.open(SPEC)
        with pytest.raises(SandboxError, match="left behind"):
            await sandbox.aclose()
        assert (pool.num_live, pool.num_abandoned) == (0, 1)
        await pool.aclose()

    run_virtual(main())


def test_a_start_that_failed_ahead_of_time_is_tried_again_with_growing_pauses() -> None:
    provider = RiggedProvider(lambda number: FAILS if number < 3 else Start())

    async def body(pool: Pool) -> None:
        pool.expect(SPEC, 1)
        await asyncio.sleep(4 * 1 + 0.25 + 0.5 + 1)
        assert pool.num_warm == 0
        await asyncio.sleep(4 * REFILL_S + 0.001)
        assert (pool.num_warm, len(provider.specs)) == (1, 4)

    check(provider, body)


def test_demand_is_learnt_from_arrivals_and_the_time_of_starts() -> None:
    async def body(pool: Pool) -> None:
        waits_s = []
        for _ in range(20):
            begin_s = now_s()
            sandbox = await pool.open(SPEC)
            waits_s.append(now_s() - begin_s)
            await sandbox.aclose()
            await asyncio.sleep(1)
        assert waits_s[0] == 1.0
        assert set(waits_s[5:]) == {0.0}, "from then on one is ready"
        assert 1 <= pool.num_warm <= 4
        await asyncio.sleep(61)
        assert pool.num_live == 0, "an idle kind is let go"

    check(RiggedProvider(), body)


def test_when_kinds_compete_the_budget_goes_by_demand_and_moves_with_it() -> None:
    async def body(pool: Pool) -> None:
        pool.expect(SPEC, 90)
        pool.expect(OTHER, 30)
        await asyncio.sleep(5)
        kinds = {kind.key[0]: len(kind.warm) for kind in pool._kinds.values() if isinstance(kind.key, tuple)}
        assert kinds == {"host": 6, "/another": 2}
        pool.expect(SPEC, 0)
        await asyncio.sleep(5)
        assert pool.num_warm == 8
        for _ in range(8):
            await pool.open(OTHER)
        assert pool.num_from_warm == 8

    check(RiggedProvider(), body, max_warm=8)


def test_a_lease_takes_a_warm_one_of_another_kind_down_if_there_is_no_room() -> None:
    provider = RiggedProvider()

    async def body(pool: Pool) -> None:
        pool.expect(OTHER, 4)
        await asyncio.sleep(2)
        assert pool.num_warm == 4
        opened = [await pool.open(SPEC) for _ in range(4)]
        assert (pool.num_warm, pool.num_live) == (0, 4)
        await opened[0].aclose()
        await asyncio.sleep(2)
        assert (pool.num_warm, pool.num_live) == (1, 4)

    check(provider, body, max_live=4)
    assert provider.num_most == 4


def test_a_lease_stops_a_start_that_nobody_waits_for_if_there_is_no_room() -> None:
    provider = RiggedProvider(lambda number: WEDGED if number < 2 else Start())

    async def body(pool: Pool) -> None:
        pool.expect(OTHER, 2)
        await asyncio.sleep(0.5)
        await pool.open(SPEC)
        assert now_s() == 1.5

    check(provider, body, max_live=2)
    assert provider.num_most == 2


def test_who_waits_is_served_in_order_of_arrival() -> None:
    order: list[int] = []

    async def use(pool: Pool, number: int) -> None:
        sandbox = await pool.open(SPEC if number % 2 else OTHER)
        order.append(number)
        await asyncio.sleep(1)
        await sandbox.aclose()

    async def body(pool: Pool) -> None:
        await asyncio.gather(*(use(pool, number) for number in range(7)))

    check(RiggedProvider(), body, max_live=2)
    assert order == sorted(order)


def test_whoever_gives_up_waiting_leaves_the_sandbox_to_the_next() -> None:
    provider = RiggedProvider()

    async def body(pool: Pool) -> None:
        impatient = asyncio.ensure_future(pool.open(SPEC))
        patient = asyncio.ensure_future(pool.open(SPEC))
        await asyncio.sleep(0.5)
        impatient.cancel()
        await patient
        assert now_s() == 1.0
        with pytest.raises(asyncio.CancelledError):
            await impatient

    check(provider, body, max_live=2)


def test_a_sandbox_that_came_for_whoever_was_just_cancelled_is_kept_for_the_next() -> None:
    provider = RiggedProvider(lambda _: Start(seconds=0))

    async def body(pool: Pool) -> None:
        pool.expect(SPEC, 2)
        first = asyncio.ensure_future(pool.open(SPEC))
        await asyncio.sleep(0)
        while not pool.num_leased:  # noqa: ASYNC110 - step by step, to be there between the handing over and the waking
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert pool.num_leased == 0
        second = await pool.open(SPEC)
        assert pool.num_leased == 1 and inner(second).commands == []

    check(provider, body, max_warm=0, max_live=1)


def test_a_pool_of_none_starts_each_when_it_is_asked_for_whatever_is_expected() -> None:
    async def body(pool: Pool) -> None:
        pool.expect(SPEC, 3)
        for _ in range(3):
            await asyncio.sleep(5)
            assert pool.num_live == 0
            sandbox = await pool.open(SPEC)
            await asyncio.sleep(5)
            assert (pool.num_leased, pool.num_live) == (1, 1)
            await sandbox.aclose()

    provider = RiggedProvider()
    pool = check(provider, body, max_warm=0)
    assert (pool.num_from_warm, len(provider.specs)) == (0, 3)


def test_a_kind_that_was_let_go_meanwhile_is_started_again() -> None:
    provider = RiggedProvider(lambda number: Start(dies=number == 0, health_s=1))

    async def main() -> None:
        pool = Pool(provider, max_warm=1, idle_s=0.0)
        sandbox = await pool.open(SPEC)
        assert await sandbox.healthy()
        await pool.aclose()

    run_virtual(main())


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.0, 1.5])
def test_closing_the_pool_ends_those_who_wait_and_those_who_hold(after_s: float) -> None:
    async def body(pool: Pool) -> None:
        pool.expect(OTHER, 3)
        tasks = [asyncio.ensure_future(pool.open(SPEC)) for _ in range(3)]
        await asyncio.sleep(after_s)
        await asyncio.gather(pool.aclose(), pool.aclose())
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for one in ended:
            assert isinstance(one, SandboxError) or not await inner(one).healthy()  # type: ignore[arg-type]
        with pytest.raises(SandboxError, match="the pool is closed"):
            await pool.open(SPEC)
        pool.expect(SPEC, 3)

    check(RiggedProvider(), body)


def test_closing_goes_on_if_whoever_asked_for_it_is_cancelled() -> None:
    provider = RiggedProvider(lambda _: Start(close_s=3))

    async def body(pool: Pool) -> None:
        sandbox = await pool.open(SPEC)
        closing = asyncio.ensure_future(sandbox.aclose())
        await asyncio.sleep(1)
        closing.cancel()
        await asyncio.wait([closing])
        assert pool.num_live == 1
        await asyncio.sleep(2.5)
        assert (pool.num_live, provider.num_open) == (0, 0)
        await pool.open(SPEC)
        closing = asyncio.ensure_future(pool.aclose())
        await asyncio.sleep(1)
        closing.cancel()
        await asyncio.sleep(3)
        assert provider.closed

    check(provider, body)


def test_settings_that_cannot_work_are_refused() -> None:
    for bad in ({"max_warm": -1}, {"max_warm": 1, "max_live": 0}, {"max_warm": 1, "attempts": 0}):
        with pytest.raises(ConfigError, match="cannot work"):
            Pool(RiggedProvider(), **bad)


# ---------------------------------------------------------------- any schedule


def random_start(rng: random.Random) -> Start:
    fault = rng.random()
    if fault < 0.1:
        return replace(FAILS, seconds=rng.choice((0.0, 1.0)))
    if fault < 0.15:
        return replace(WEDGED, stubborn_s=rng.choice((0.0, 5.0)))
    return Start(
        seconds=rng.choice((0.0, 0.1, 1.0, 3.0)), close_s=rng.choice((0.0, 0.0, 1.0)), dies=rng.random() < 0.05
    )


async def live_through(rng: random.Random, pool: Pool, provider: RiggedProvider, held: dict[Rigged, int]) -> None:
    """One rollout: it asks, works and lets go, unless it is cancelled somewhere in between."""
    await asyncio.sleep(rng.choice((0.0, 0.5, 2.0, 10.0)) * rng.random())
    sandbox = await pool.open(rng.choice((SPEC, SPEC, OTHER)))
    own = inner(sandbox)
    try:
        assert own not in held, "two rollouts have the same sandbox"
        held[own] = 1
        assert own.commands == []
        await sandbox.exec(["echo", "mine"], timeout_s=5)
        await asyncio.sleep(rng.choice((0.0, 1.0, 5.0)))
        assert own.commands == [["echo", "mine"]]
    finally:
        await sandbox.aclose()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from((None, 1, 3, 6)), st.integers(0, 5))
def test_no_schedule_shares_a_sandbox_exceeds_the_cap_or_leaves_anything(
    seed: int, max_live: int | None, max_warm: int
) -> None:
    rng = random.Random(seed)
    provider = RiggedProvider(lambda _: random_start(rng))

    async def main() -> None:
        pool = Pool(provider, max_warm=max_warm, max_live=max_live, start_timeout_s=8, idle_s=rng.choice((1.0, 20.0)))
        held: dict[Rigged, int] = {}
        tasks = [asyncio.ensure_future(live_through(rng, pool, provider, held)) for _ in range(rng.randrange(1, 12))]

        async def disturb() -> None:
            for _ in range(rng.randrange(12)):
                await asyncio.sleep(rng.choice((0.0, 0.3, 1.0, 4.0)))
                if rng.random() < 0.5:
                    pool.expect(rng.choice((SPEC, OTHER)), rng.randrange(6))
                else:
                    rng.choice(tasks).cancel()

        async def watch() -> None:
            while True:
                assert max_live is None or max(pool.num_live, provider.num_now) <= max_live
                counted = pool.num_leased + pool.num_warm
                assert counted <= provider.num_open + len(provider.specs)
                assert pool.num_warm <= max_warm + len(tasks)
                await asyncio.sleep(0.05)

        watching = asyncio.ensure_future(watch())
        closes_early = rng.random() < 0.3
        work = asyncio.ensure_future(asyncio.gather(disturb(), *tasks, return_exceptions=True))
        await asyncio.wait([work], timeout=rng.random() * 20 if closes_early else 3600)
        if not closes_early:
            assert work.done(), "somebody waits for ever"
        closing = asyncio.ensure_future(pool.aclose())
        if rng.random() < 0.3:
            await asyncio.sleep(0)
            closing.cancel()
        await pool.aclose()
        watching.cancel()
        for ended in await work:
            allowed = (SandboxError, asyncio.CancelledError)
            assert ended is None or isinstance(ended, allowed), repr(ended)
        with pytest.raises(asyncio.CancelledError):
            await watching
        assert max_live is None or provider.num_most <= max_live
        assert (pool.num_live, pool.num_abandoned, provider.num_open, provider.num_now) == (0, 0, 0, 0)
        others = asyncio.all_tasks() - {asyncio.current_task(), closing}
        assert not others, others

    run_virtual(main())


# ---------------------------------------------------------------- for real


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")
def test_it_keeps_real_sandboxes_warm() -> None:
    from slipstream.sandbox.local.provider import LocalProvider

    async def main() -> None:
        pool = Pool(LocalProvider(), max_warm=2)
        try:
            async with asyncio.timeout(300):
                pool.expect(SPEC, 2)
                while pool.num_warm < 2:  # noqa: ASYNC110 - a pool tells nobody
                    await asyncio.sleep(0.01)
                first, second = [await pool.open(replace(SPEC, files={"name": File(data=b"x")})) for _ in range(2)]
                await first.exec(["/bin/sh", "-c", "echo first > name"], timeout_s=10)
                assert (await first.read("name"), await second.read("name")) == (b"first\n", b"x")
                assert pool.num_from_warm == 2
                assert isinstance(first, Changes) and isinstance(first, Endpoints)
                assert (await first.changes()).paths == ("name",)
                assert isinstance(first, Snapshots)
                snapshot = await first.snapshot()
                await first.aclose()
                assert pool.num_leased == 1
                fork = await snapshot.open()
                assert (await fork.read("name"), pool.num_leased) == (b"first\n", 2)
                await snapshot.aclose()
        finally:
            await pool.aclose()
        assert pool.num_live == 0

    asyncio.run(main())
