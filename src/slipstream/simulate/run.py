"""Simulates a workload under a policy, on virtual time: the real dispatcher, with simulated attempts.

Input: a workload, a policy, limits. Output: a SimOutcome. The same arguments always give the same outcome.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.aio import task_group
from slipstream.dispatch.adaptive import Adaptive
from slipstream.dispatch.base import DispatchLimits, PacingGate, SchedulingPolicy
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.gate import OpenGate
from slipstream.dispatch.kv_gate import KvGate
from slipstream.errors import ConfigError
from slipstream.seams import Event
from slipstream.simulate.clock import run_virtual
from slipstream.simulate.machine.attempts import SimContext, WorkloadPlacement
from slipstream.simulate.machine.engine import Fleet, SimEngine
from slipstream.simulate.machine.host import RunProcess, SimHost
from slipstream.simulate.workload import HELD_OUT, TRAIN, SimJob, Workload
from slipstream.types import EngineLoad, Job, JobKey, Rollout

Load = Callable[[], EngineLoad | None]
MakePolicy = Callable[[Load], tuple[SchedulingPolicy[Any], PacingGate]]
"""Makes the policy and the gate for its turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOutcome:
    makespan_s: float
    rollouts_per_s: float
    peak_live: int
    """Sandboxes, from start to close, graders' sandboxes included."""
    engine_use: float
    """Share of the makespan in which the engine sampled."""
    reprefill_tokens: int
    """Tokens that had been in the cache and were computed again."""
    num_trusted: int
    """Rollouts with a verdict."""


class NoJournal:
    """A simulation is not resumed."""

    def append(self, event: Event) -> None: ...

    async def flush(self) -> None: ...


def simulate(workload: Workload, make_policy: MakePolicy, limits: DispatchLimits) -> SimOutcome:
    """All jobs of the workload to their end. `make_policy` gives the policy and its turn gate, which may be its own."""
    return run_virtual(_run(workload, make_policy, limits)).outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    outcome: SimOutcome
    starts: tuple[tuple[float, JobKey, str], ...]
    rollouts: tuple[Rollout, ...]


def trace(workload: Workload, make_policy: MakePolicy, limits: DispatchLimits) -> Trace:
    """Like `simulate`, with the start times of stages."""
    return run_virtual(_run(workload, make_policy, limits))


async def _run(workload: Workload, make_policy: MakePolicy, limits: DispatchLimits) -> Trace:
    machine = workload.machine
    host = SimHost(machine.cores, machine.others)
    front = RunProcess(host)
    engine = Fleet([SimEngine(machine.engine, host, front) for _ in range(workload.engines)])
    policy, gate = make_policy(engine.load)
    jobs = {key_of(job): job for job in workload.jobs}
    if len(jobs) != len(workload.jobs):
        raise ConfigError(f"workload {workload.name}: two jobs have the same step, task and sample")
    placement = WorkloadPlacement(
        SimContext(engine=engine, host=host, front=front, front_s=machine.front_s, gate=gate, jobs=jobs)
    )
    rollouts: list[Rollout] = []
    dispatcher = Dispatcher(
        placement,
        policy=policy,
        journal=NoJournal(),
        limits=limits,
        deadlines=machine.deadlines,
        retries=machine.retries,
        gate=gate,
        load=engine.load,
    )
    steps = _Steps(dispatcher, workload)
    async with dispatcher, task_group() as group:
        group.create_task(steps.submit())
        group.create_task(steps.learn())
        async for rollout in dispatcher.finished():
            rollouts.append(rollout)
            await steps.on_rollout(rollout)
    makespan_s = asyncio.get_running_loop().time()
    outcome = SimOutcome(
        makespan_s=makespan_s,
        rollouts_per_s=len(rollouts) / makespan_s if makespan_s else 0.0,
        peak_live=placement.usage.peak_live,
        engine_use=engine.busy_s / makespan_s if makespan_s else 0.0,
        reprefill_tokens=engine.num_again,
        num_trusted=sum(rollout.verdict is not None for rollout in rollouts),
    )
    return Trace(outcome=outcome, starts=tuple(placement.starts), rollouts=tuple(rollouts))


class _Steps:
    """Submits the jobs of each step when the learner's progress allows it."""

    def __init__(self, dispatcher: Dispatcher, workload: Workload) -> None:
        self._dispatcher = dispatcher
        self._workload = workload
        self._steps: defaultdict[int, list[SimJob]] = defaultdict(list)
        self._held_out: defaultdict[int, list[SimJob]] = defaultdict(list)
        for job in workload.jobs:
            (self._held_out if job.phase == HELD_OUT else self._steps)[job.step].append(job)
        self._update_step = min(self._steps, default=0)
        """The step of the next update; all earlier updates are done."""
        self._num_back: Counter[tuple[str, int] | str] = Counter()
        """Training jobs by step, and held-out jobs."""
        self._advanced = asyncio.Condition()

    async def submit(self) -> None:
        staleness = self._workload.staleness
        for step in sorted(self._steps):
            if staleness is not None:
                await self._until(lambda step=step: self._update_step >= step - staleness)  # type: ignore[misc]
            await self._submit(self._steps[step])
        await self._until(lambda: self._update_step > max(self._steps, default=0) or staleness is None)
        if staleness is None:
            for jobs in self._held_out.values():
                await self._submit(jobs)
        self._dispatcher.close()

    async def learn(self) -> None:
        """Run the updates in order, and the evaluations between them."""
        if self._workload.staleness is None:
            return
        if not self._steps:
            await self._evaluate(math.inf)
            return await self._advance_to(1)
        await self._evaluate(min(self._steps))
        steps, update_s = sorted(self._steps), self._workload.update_s
        for place, step in enumerate(steps):
            await self._until(lambda step=step: self._num_back[TRAIN, step] == len(self._steps[step]))  # type: ignore[misc]
            is_last = place == len(steps) - 1
            if place < len(update_s) and (not is_last or self._held_out):
                await asyncio.sleep(update_s[place])
            after = step + 1 if is_last else steps[place + 1]
            if not is_last:
                await self._advance_to(after)
            await self._evaluate(math.inf if is_last else after)
            if is_last:
                await self._advance_to(after)

    async def on_rollout(self, rollout: Rollout) -> None:
        key = rollout.job.key
        self._num_back[HELD_OUT if key.phase == HELD_OUT else (TRAIN, key.step)] += 1
        async with self._advanced:
            self._advanced.notify_all()

    async def _advance_to(self, step: int) -> None:
        async with self._advanced:
            self._update_step = step
            self._advanced.notify_all()

    async def _evaluate(self, by_step: float) -> None:
        """Run the held-out jobs whose step is reached: those of a step that no update comes to, at the next one."""
        due = sorted(step for step in self._held_out if step <= by_step)
        jobs = [job for step in due for job in self._held_out.pop(step)]
        before = self._num_back[HELD_OUT]
        await self._submit(jobs)
        await self._until(lambda: self._num_back[HELD_OUT] == before + len(jobs))

    async def _until(self, test: Callable[[], bool]) -> None:
        async with self._advanced:
            await self._advanced.wait_for(test)

    async def _submit(self, jobs: Sequence[SimJob]) -> None:
        if self._workload.keep is not None:
            groups: defaultdict[str, list[JobKey]] = defaultdict(list)
            for job in jobs:
                if job.phase != HELD_OUT:
                    groups[job.task].append(key_of(job))
            for keys in groups.values():
                self._dispatcher.keep_first(keys, self._workload.keep)
        for job in jobs:
            await self._dispatcher.submit(Job(key=key_of(job), seed=0, weight=job.weight))


def key_of(job: SimJob) -> JobKey:
    return JobKey(phase=job.phase, step=job.step, task_id=job.task, sample=job.sample)


def open_gate(policy: SchedulingPolicy[Any]) -> MakePolicy:
    """A policy without a turn gate."""
    return lambda load: (policy, OpenGate())


def adaptive(load: Load) -> tuple[SchedulingPolicy[Any], PacingGate]:
    return Adaptive(), KvGate(load)
