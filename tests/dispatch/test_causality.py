"""No policy sees the future: of two workloads that are equal up to a time, all that is begun before it is the same."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from promise_stage import POLICIES, ROOMY, PolicyCase, limits

from slipstream.aio import task_group
from slipstream.dispatch.base import DispatchLimits, SchedulingPolicy
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.policies import Batch
from slipstream.errors import SandboxError
from slipstream.record import MemoryJournal
from slipstream.seams import PastAttempt
from slipstream.simulate.clock import run_virtual
from slipstream.types import Ending, EndReason, Job, JobKey, Rollout, Verdict

Begun = tuple[float, str, int, str]
"""When, which task, which attempt, what."""


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What a job does in one of two worlds."""

    after_s: float
    init_s: float
    run_s: float
    grade_s: float
    fails: bool


@dataclass(kw_only=True)
class World:
    """As `before` until the fork, and as `after` from then on."""

    before: list[Fate]
    after: list[Fate]
    fork_s: float
    begun: list[Begun] = field(default_factory=list)

    def expect(self, job: Job) -> None: ...

    def open(self, job: Job, number: int, past: PastAttempt | None) -> "ForkedAttempt":
        return ForkedAttempt(self, job, number)

    async def stage(self, job: Job, number: int, name: str) -> None:
        loop = asyncio.get_running_loop()
        self.begun.append((loop.time(), job.key.task_id, number, name))
        now_s = loop.time()
        old, new = self.before[job.seed], self.after[job.seed]
        seconds: float = getattr(old, f"{name}_s")
        fails = old.fails
        if now_s + seconds > self.fork_s:
            # It is under way at the fork, or begins after it: from then on anything may happen.
            seconds = max(self.fork_s - now_s, 0.0) + getattr(new, f"{name}_s")
            fails = new.fails
        await asyncio.sleep(seconds)
        if fails and name == "run" and number == 1:
            raise SandboxError("simulated")


class ForkedAttempt:
    def __init__(self, world: World, job: Job, number: int) -> None:
        self._world, self._job, self._number = world, job, number
        self.grade_weight = 1

    async def init(self) -> None:
        await self._world.stage(self._job, self._number, "init")

    async def run(self) -> None:
        await self._world.stage(self._job, self._number, "run")

    async def release(self) -> None:
        self._world.begun.append((asyncio.get_running_loop().time(), self._job.key.task_id, self._number, "release"))

    async def grade(self) -> Rollout:
        await self._world.stage(self._job, self._number, "grade")
        ending = Ending(reason=EndReason.FINISHED)
        return Rollout(job=self._job, attempt=self._number, ending=ending, verdict=Verdict(reward=1.0))

    def as_ended(self, ending: Ending) -> Rollout:
        return Rollout(job=self._job, attempt=self._number, ending=ending)

    async def aclose(self) -> None:
        pass


def begun(world: World, policy: SchedulingPolicy[Any], asked: DispatchLimits) -> list[Begun]:
    """What is begun before the fork, in order."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with (
            Dispatcher(world, policy=policy, journal=MemoryJournal(), limits=asked, deadlines=ROOMY) as dispatcher,
            task_group() as group,
        ):

            async def feed() -> None:
                arrives_s = 0.0
                for index, (old, new) in enumerate(zip(world.before, world.after, strict=True)):
                    arrives_s += old.after_s
                    if arrives_s > world.fork_s:
                        arrives_s += new.after_s
                    await asyncio.sleep(max(0.0, arrives_s - loop.time()))
                    key = JobKey(phase="eval", step=0, task_id=f"t{index % 3}", sample=index)
                    await dispatcher.submit(Job(key=key, seed=index))
                dispatcher.close()

            group.create_task(feed())
            async for _ in dispatcher.finished():
                pass

    run_virtual(main())
    return [each for each in world.begun if each[0] < world.fork_s]


seconds = st.sampled_from([0.0, 0.5, 1.0, 4.0, 20.0])
fates = st.builds(
    Fate,
    after_s=st.sampled_from([0.0, 0.0, 1.0, 5.0]),
    init_s=seconds,
    run_s=seconds,
    grade_s=seconds,
    fails=st.sampled_from([False, False, False, True]),
)


@pytest.mark.parametrize("case", POLICIES, ids=lambda case: case.name)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    data=st.data(),
    pairs=st.lists(st.tuples(fates, fates), min_size=1, max_size=9),
    fork_s=st.sampled_from([0.25, 1.25, 3.75, 6.25, 12.75, 30.25]),
)
def test_what_is_decided_before_two_workloads_differ_is_the_same(
    case: PolicyCase, data: st.DataObject, pairs: list[tuple[Fate, Fate]], fork_s: float
) -> None:
    policy, asked = data.draw(case.drawn), data.draw(limits)
    before, after = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    one = begun(World(before=before, after=before, fork_s=fork_s), policy, asked)
    other = begun(World(before=before, after=after, fork_s=fork_s), policy, asked)
    assert one == other


@dataclass(frozen=True, kw_only=True)
class Prescient(Batch):
    """Starts first what will be long."""

    world: World

    def rank(self, job: Job, *seen_s: float | None) -> float:
        return -self.world.after[job.seed].run_s


def test_a_policy_that_looks_ahead_is_found_out() -> None:
    def fate(run_s: float) -> Fate:
        return Fate(after_s=0, init_s=1, run_s=run_s, grade_s=0, fails=False)

    def decided(after: list[Fate]) -> list[Begun]:
        world = World(before=[fate(9)] * 3, after=after, fork_s=5.25)
        return begun(world, Prescient(world=world), DispatchLimits(init=1))

    assert decided([fate(0), fate(1), fate(2)]) != decided([fate(0), fate(2), fate(1)])
