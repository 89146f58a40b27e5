"""Additions to asyncio: work with a deadline, and passes of the event loop that stay short."""

import asyncio
import gc
from typing import Any

import pytest

from slipstream.aio import PerPass, collecting_rarely, ended_within, finish_by
from slipstream.simulate.clock import VirtualLoop, run_virtual


async def answer(after_s: float | None) -> str:
    if after_s is not None:
        await asyncio.sleep(after_s)
    return "done"


class CountingLoop(VirtualLoop):
    num_timers = 0

    def call_at(self, when: float, *rest: Any, **named: Any) -> asyncio.TimerHandle:  # type: ignore[override]
        self.num_timers += 1
        return super().call_at(when, *rest, **named)


def test_only_work_that_waits_gets_a_timer() -> None:
    for waits in (False, True):
        with asyncio.Runner(loop_factory=CountingLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, CountingLoop)

            async def work(waits: bool = waits) -> str:
                if waits:
                    await asyncio.sleep(0)
                return "done"

            assert runner.run(finish_by(5.0, work())) == "done"
            assert loop.num_timers == waits


def test_work_that_waits_is_cancelled_at_its_deadline() -> None:
    async def main() -> float:
        assert await finish_by(5.0, answer(4.0)) == "done"
        with pytest.raises(TimeoutError):
            await finish_by(10.0, answer(100.0))
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 10.0


def test_a_deadline_inside_the_work_and_a_cancellation_from_outside_reach_it() -> None:
    told: list[str] = []

    async def work() -> str:
        try:
            async with asyncio.timeout(1.0):
                await asyncio.sleep(50.0)
        except TimeoutError:
            told.append("its own")
        try:
            await asyncio.sleep(50.0)
        except asyncio.CancelledError:
            told.append("cancelled")
            raise
        return "never"

    async def main() -> None:
        task = asyncio.create_task(finish_by(100.0, work()))
        await asyncio.sleep(2.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main())
    assert told == ["its own", "cancelled"]


def test_waiting_for_a_task_leaves_it_as_it_is() -> None:
    async def main() -> str:
        task = asyncio.create_task(answer(3.0))
        await ended_within(1.0, task)
        assert not task.done() and asyncio.get_running_loop().time() == 1.0
        await ended_within(None, task)
        return task.result()

    assert run_virtual(main()) == "done"


def test_a_pass_lets_so_many_through_and_the_others_follow_in_order() -> None:
    per_pass, passed = PerPass(3), list[tuple[int, int]]()

    async def main() -> None:
        loop, num_pass = asyncio.get_running_loop(), 0

        def next_pass() -> None:
            nonlocal num_pass
            num_pass += 1
            if len(passed) < 9:
                loop.call_soon(next_pass)

        async def go(number: int) -> None:
            await per_pass.through()
            passed.append((number, num_pass))

        next_pass()
        tasks = [asyncio.create_task(go(number)) for number in range(10)]
        await asyncio.sleep(0)
        tasks[4].cancel()
        await asyncio.wait(tasks)

    run_virtual(main())
    assert [number for number, _ in passed] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    passes = [num for _, num in passed]
    assert max(passes.count(num) for num in passes) == 3


def test_what_was_counted_in_a_loop_that_is_gone_does_not_count() -> None:
    per_pass = PerPass(1)

    async def main() -> None:
        await per_pass.through()

    for _ in range(3):
        run_virtual(main())


def test_garbage_is_collected_rarely_only_within_the_block() -> None:
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), collecting_rarely():
        within = gc.get_threshold()
        raise ZeroDivisionError
    assert within[0] > 10_000 and gc.get_threshold() == before
