"""The time for which an agent is held at the gate does not count towards its run's deadline."""

import asyncio

import pytest

from slipstream.dispatch.base import Deadlines
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.kv_gate import KvGate
from slipstream.dispatch.policies import Batch
from slipstream.dispatch.stage import StageDeadline, StageRunner
from slipstream.placement.simulated import Fault, Part, Plan, SimulatedPlacement
from slipstream.record import MemoryJournal
from slipstream.simulate.clock import run_virtual
from slipstream.types import EndReason, EngineLoad, Job, JobKey


@pytest.mark.parametrize(
    ("held_s", "most_s", "ends_s", "in_time"),
    [(0.0, 100.0, 5.0, False), (3.0, 100.0, 8.0, False), (6.0, 100.0, 10.0, True), (6.0, 7.0, 7.0, False)],
)
def test_what_was_held_is_added_up_to_the_jobs_deadline(
    held_s: float, most_s: float, ends_s: float, in_time: bool
) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        running = StageRunner(grace_s=1.0).run(
            lambda: asyncio.sleep(10.0), timeout_s=5.0, name="run", held_s=lambda: held_s, most_s=most_s
        )
        if in_time:
            await running
        else:
            with pytest.raises(StageDeadline):
                await running
        assert loop.time() - start_s == pytest.approx(ends_s)

    run_virtual(body())


def jobs(num: int) -> list[Job]:
    return [Job(key=JobKey(phase="eval", step=0, task_id=f"t{n}", sample=0), seed=n) for n in range(num)]


def test_agents_that_wait_for_each_others_cache_all_finish() -> None:
    """Each runs for 8 s of the 10 that a run may take, and only one fits at a time."""

    async def body() -> None:
        gate = KvGate(lambda: EngineLoad(running=0, waiting=0, kv_tokens=10))
        placement = SimulatedPlacement(lambda job, number: Plan(run=Part(seconds=8.0), turns=4, tokens=100), gate=gate)
        out = []
        async with Dispatcher(
            placement, policy=Batch(), journal=MemoryJournal(), gate=gate, deadlines=Deadlines(run_s=10.0)
        ) as dispatcher:
            for job in jobs(6):
                await dispatcher.submit(job)
            dispatcher.close()
            async for rollout in dispatcher.finished():
                out.append(rollout.ending.reason)
        assert out == [EndReason.FINISHED] * 6

    run_virtual(body())


def test_an_agent_that_is_left_behind_holds_nobody_up() -> None:
    """It ignores its cancellation, and asks for one more turn long after."""

    async def body() -> None:
        gate = KvGate(lambda: EngineLoad(running=0, waiting=0, kv_tokens=10))
        deaf, other = (job.key for job in jobs(2))
        async with gate.turn(deaf, 10):
            pass
        gate.ended(deaf, left_behind=True)
        async with gate.turn(deaf, 10):
            pass
        async with asyncio.timeout(1.0), gate.turn(other, 10):
            assert gate.held_s(other) == 0.0

    run_virtual(body())


def test_the_dispatcher_says_who_is_left_behind() -> None:
    async def body() -> None:
        told: list[bool] = []

        class Telling(KvGate):
            def ended(self, key: JobKey, *, left_behind: bool = False) -> None:
                told.append(left_behind)
                super().ended(key, left_behind=left_behind)

        gate = Telling(lambda: None)
        faults = (Fault.DEAF, None)
        placement = SimulatedPlacement(lambda job, number: Plan(run=Part(fault=faults[job.seed])), gate=gate)
        async with Dispatcher(
            placement, policy=Batch(), journal=MemoryJournal(), gate=gate, deadlines=Deadlines(run_s=10.0, grace_s=1.0)
        ) as dispatcher:
            for job in jobs(2):
                await dispatcher.submit(job)
            dispatcher.close()
            async for _ in dispatcher.finished():
                pass
        assert sorted(told) == [False, True]

    run_virtual(body())
