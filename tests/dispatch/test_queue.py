"""The queue of a stage against a linear search, and how many jobs it looks at."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.dispatch.adaptive import Adaptive
from slipstream.dispatch.admission import Admission
from slipstream.dispatch.base import NOTHING, DispatchLimits, Stage
from slipstream.dispatch.queue import RankedQueue, Waiter
from slipstream.simulate.clock import run_virtual
from slipstream.types import Job, JobKey


def job(task: int, *, step: int = 0, sample: int = 0) -> Job:
    return Job(key=JobKey(phase="train", step=step, task_id=f"task{task}", sample=sample), seed=0)


moves = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 3), st.integers(0, 1), st.integers(-1, 1)),
        st.tuples(st.just("pop")),
        st.tuples(st.just("cancel"), st.integers(0, 40)),
        st.tuples(st.just("see"), st.integers(0, 3), st.integers(-2, 2)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(moves)
def test_the_next_one_is_that_of_a_linear_search(moves: list[tuple[Any, ...]]) -> None:
    async def main() -> None:
        seen: dict[str, float] = {}
        queue = RankedQueue(lambda job: seen.get(job.key.task_id, 0.0))
        waiting: list[Waiter] = []
        rank: dict[tuple[str, int], float] = {}

        def place(waiter: Waiter) -> tuple[int, float, int, float, int]:
            task_id, step = waiter.job.key.task_id, waiter.job.key.step
            first = min(each for each in waiting if (each.job.key.task_id, each.job.key.step) == (task_id, step))
            return step, rank[task_id, step], first.number, waiter.own_rank, waiter.number

        for number, move in enumerate(moves):
            match move:
                case ("push", task, step, own):
                    given = job(task, step=step, sample=number)
                    waiter = Waiter(float(own), number, given, NOTHING, asyncio.get_running_loop().create_future())
                    queue.push(waiter)
                    waiting.append(waiter)
                    rank[given.key.task_id, step] = seen.get(given.key.task_id, 0.0)
                case ("pop",):
                    found = queue.first()
                    assert found is min(waiting, key=place, default=None)
                    if found is not None:
                        queue.pop()
                        waiting.remove(found)
                case ("cancel", place_) if place_ < len(waiting):
                    waiting.pop(place_).granted.cancel()
                case ("see", task, value):
                    seen[f"task{task}"] = float(value)
                    queue.rank_again(f"task{task}")
                    rank |= {known: float(value) for known in rank if known[0] == f"task{task}"}
        assert queue.first() is min(waiting, key=place, default=None)

    run_virtual(main())


class Counted(Adaptive):
    num_ranked = 0

    def rank(self, job: Job, seen_s: float | None, mean_s: float) -> float:
        Counted.num_ranked += 1
        return super().rank(job, seen_s, mean_s)


def test_an_ended_run_looks_at_one_waiting_job_of_its_task_however_many_wait() -> None:
    async def main() -> None:
        admission = Admission(Counted(), DispatchLimits(init=0))
        waiting = [
            asyncio.create_task(admission.enter(Stage.INIT, job(number % 3, sample=number))) for number in range(3_000)
        ]
        await asyncio.sleep(1)
        before = Counted.num_ranked
        for number in range(100):
            admission.ran(job(number % 3), seconds=number)
        assert Counted.num_ranked - before == 100
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)

    run_virtual(main())
