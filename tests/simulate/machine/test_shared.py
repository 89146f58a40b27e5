import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.simulate.clock import run_virtual
from slipstream.simulate.machine.shared import SharedResource


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some work: when it comes, how much it is, and when it is called off."""

    start_s: float
    amount: float
    cancel_s: float | None = None


async def do(shared: SharedResource, pieces: list[Piece]) -> list[float]:
    """When each was done, or was called off."""

    async def one(piece: Piece) -> float:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(piece.start_s)
        try:
            if piece.cancel_s is None:
                await shared.work(piece.amount)
            else:
                async with asyncio.timeout_at(piece.cancel_s):
                    await shared.work(piece.amount)
        except TimeoutError:
            pass
        return loop.time()

    return list(await asyncio.gather(*[one(piece) for piece in pieces]))


def done(speed: Callable[[int], float], pieces: list[Piece]) -> tuple[list[float], float]:
    """The same, and for how long the resource was busy."""

    async def main() -> tuple[list[float], float]:
        shared = SharedResource(speed)
        ends = await do(shared, pieces)
        assert shared.num_inside == 0
        return ends, shared.busy_s

    return run_virtual(main())


def test_two_at_once_take_turns_with_what_there_is() -> None:
    ends, busy_s = done(lambda num: 1.0 / num, [Piece(start_s=0, amount=1), Piece(start_s=0, amount=2)])
    assert ends == pytest.approx([2, 3])
    assert busy_s == pytest.approx(3)


def test_who_comes_later_slows_the_others_from_then_on() -> None:
    ends, _ = done(lambda num: 1.0 / num, [Piece(start_s=0, amount=4), Piece(start_s=2, amount=1)])
    assert ends == pytest.approx([5, 4])


def test_where_there_is_enough_for_all_nobody_is_slowed() -> None:
    ends, busy_s = done(lambda num: 2.0, [Piece(start_s=s, amount=4) for s in (0, 1, 5)])
    assert ends == pytest.approx([2, 3, 7])
    assert busy_s == pytest.approx(5)


def test_who_is_cancelled_leaves_at_once_and_the_others_speed_up() -> None:
    pieces = [Piece(start_s=0, amount=4), Piece(start_s=0, amount=100, cancel_s=2)]
    assert done(lambda num: 1.0 / num, pieces)[0] == pytest.approx([5, 2])


def test_no_work_takes_no_time() -> None:
    assert done(lambda num: 1.0, [Piece(start_s=1, amount=0)]) == ([1.0], 0.0)


def test_what_is_in_the_one_has_a_part_in_the_speed_of_the_other() -> None:
    async def main() -> list[float]:
        main_road = SharedResource(lambda num: 0.5 if side_road.num_inside else 1.0)
        side_road = SharedResource(lambda num: 0.25 if main_road.num_inside else 1.0)
        main_road.link(side_road)
        both = await asyncio.gather(
            do(main_road, [Piece(start_s=0, amount=4)]), do(side_road, [Piece(start_s=2, amount=2)])
        )
        return both[0] + both[1]

    # Until 2 s the first has done 2; then half of the speed, until 6 s. By then the second has done 1, and is alone.
    assert run_virtual(main()) == pytest.approx([6, 7])


def test_a_change_counts_from_when_it_is_made() -> None:
    async def main() -> list[float]:
        power = 1.0
        shared = SharedResource(lambda num: power)

        async def change() -> None:
            nonlocal power
            await asyncio.sleep(3)
            with shared.changing():
                power = 0.0
            await asyncio.sleep(10)
            with shared.changing():
                power = 2.0

        ends, _ = await asyncio.gather(do(shared, [Piece(start_s=0, amount=5)]), change())
        return ends

    assert run_virtual(main()) == pytest.approx([14])


@pytest.mark.parametrize("now_s", [264.4402706296817, 600.1, 98_765.4321, 600_000.3])
def test_what_the_clock_is_too_coarse_for_comes_to_an_end(now_s: float) -> None:
    async def main() -> None:
        num_asked = 0

        def speed(num: int) -> float:
            nonlocal num_asked
            num_asked += 1
            assert num_asked < 5_000, "it goes round and round"
            return 100_000.0

        await asyncio.sleep(now_s)
        for amount in range(1, 500):
            await SharedResource(speed).work(amount)

    run_virtual(main())


def expected(speed: Callable[[int], float], pieces: list[Piece]) -> tuple[list[float], float]:
    """By hand: from event to event."""
    now_s, busy_s = 0.0, 0.0
    left: dict[int, float] = {}
    ends = [0.0] * len(pieces)
    coming = sorted(range(len(pieces)), key=lambda index: pieces[index].start_s)
    while coming or left:
        each = speed(len(left)) if left else 0.0
        moments = [pieces[coming[0]].start_s] if coming else []
        moments += [now_s + amount / each for amount in left.values()]
        moments += [cancel_s for index in left if (cancel_s := pieces[index].cancel_s) is not None]
        passed_s = min(moments) - now_s
        busy_s += passed_s if left else 0.0
        now_s = min(moments)
        for index in list(left):
            left[index] -= each * passed_s
            if left[index] < 1e-9 or pieces[index].cancel_s == now_s:
                del left[index]
                ends[index] = now_s
        while coming and pieces[coming[0]].start_s <= now_s:
            index = coming.pop(0)
            left[index] = pieces[index].amount
    return ends, busy_s


SPEEDS: list[Callable[[int], float]] = [lambda n: 1.0 / n, lambda n: min(1.0, 2.5 / n), lambda n: 3.0 / (1.0 + 0.2 * n)]


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    st.sampled_from(SPEEDS),
    st.lists(
        st.tuples(st.integers(0, 8), st.sampled_from([0.5, 1.0, 3.0, 7.0]), st.sampled_from([None, None, 0.31, 2.57])),
        min_size=1,
        max_size=12,
    ),
)
def test_work_is_neither_lost_nor_done_twice(
    speed: Callable[[int], float], drawn: list[tuple[int, float, float | None]]
) -> None:
    pieces = [
        Piece(start_s=start_s, amount=amount, cancel_s=None if after_s is None else start_s + after_s)
        for start_s, amount, after_s in drawn
    ]
    ends, busy_s = expected(speed, pieces)
    found_ends, found_busy_s = done(speed, pieces)
    assert found_ends == pytest.approx(ends, abs=1e-6)
    assert found_busy_s == pytest.approx(busy_s, abs=1e-6)
