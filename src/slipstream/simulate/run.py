"""A workload under a policy, on virtual time: the dispatcher itself, with simulated attempts.

Enters: a workload, a policy, limits. Leaves: an Outcome. The same arguments give the same outcome, always.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slipstream.aio import task_group
from slipstream.dispatch.adaptive import Adaptive
from slipstream.dispatch.base import Limits, PacingGate, Policy
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.gate import OpenGate
from slipstream.dispatch.kv_gate import KvGate
from slipstream.errors import ConfigError
from slipstream.seams import Event
from slipstream.simulate.attempts import Plant, WorkloadPlacement, cores
from slipstream.simulate.clock import run_virtual
from slipstream.simulate.engine import SimEngine
from slipstream.simulate.workload import SimJob, Workload
from slipstream.types import EngineLoad, Job, JobKey, Rollout

Load = Callable[[], EngineLoad | None]
MakePolicy = Callable[[Load], tuple[Policy[Any], PacingGate]]
"""The policy and the gate that its turns pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    makespan_s: float
    rollouts_per_s: float
    peak_live: int
    """Sandboxes, from start to close, those of graders included."""
    engine_use: float
    """Share of the makespan in which the engine sampled."""
    reprefill_tokens: int
    """Tokens whose keys and values had been in the cache and were computed again."""
    num_trusted: int
    """Rollouts with a verdict."""


class NoJournal:
    """A simulation is not resumed."""

    def append(self, event: Event) -> None: ...

    async def flush(self) -> None: ...


def simulate(workload: Workload, make: MakePolicy, limits: Limits) -> Outcome:
    """All jobs of the workload to their end. `make` gives the policy and its turn gate, which may be its own."""
    return run_virtual(_run(workload, make, limits)).outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    outcome: Outcome
    starts: tuple[tuple[float, JobKey, str], ...]
    rollouts: tuple[Rollout, ...]


def trace(workload: Workload, make: MakePolicy, limits: Limits) -> Trace:
    """The same, with what began when."""
    return run_virtual(_run(workload, make, limits))


async def _run(workload: Workload, make: MakePolicy, limits: Limits) -> Trace:
    machine = workload.machine
    engine = SimEngine(machine.engine)
    policy, gate = make(engine.load)
    jobs = {key_of(job): job for job in workload.jobs}
    if len(jobs) != len(workload.jobs):
        raise ConfigError(f"workload {workload.name}: two jobs have the same step, task and sample")
    placement = WorkloadPlacement(Plant(engine=engine, cores=cores(machine.cores), gate=gate, jobs=jobs))
    rollouts: list[Rollout] = []
    back: Counter[int] = Counter()
    advanced = asyncio.Condition()
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
    async with dispatcher, task_group() as group:
        group.create_task(_feed(dispatcher, workload, back, advanced))
        async for rollout in dispatcher.finished():
            rollouts.append(rollout)
            back[rollout.job.key.step] += 1
            async with advanced:
                advanced.notify_all()
    makespan_s = asyncio.get_running_loop().time()
    outcome = Outcome(
        makespan_s=makespan_s,
        rollouts_per_s=len(rollouts) / makespan_s,
        peak_live=placement.census.peak_live,
        engine_use=engine.busy_s / makespan_s,
        reprefill_tokens=engine.counts.num_again,
        num_trusted=sum(rollout.verdict is not None for rollout in rollouts),
    )
    return Trace(outcome=outcome, starts=tuple(placement.starts), rollouts=tuple(rollouts))


async def _feed(dispatcher: Dispatcher, workload: Workload, back: Counter[int], advanced: asyncio.Condition) -> None:
    """Submit the jobs of each step when it may begin."""
    steps: defaultdict[int, list[SimJob]] = defaultdict(list)
    for job in workload.jobs:
        steps[job.step].append(job)
    for step in sorted(steps):
        if workload.staleness is not None:
            earlier = [number for number in steps if number < step - workload.staleness]
            async with advanced:
                while any(back[number] < len(steps[number]) for number in earlier):
                    await advanced.wait()
        for job in steps[step]:
            await dispatcher.submit(Job(key=key_of(job), seed=0, weight=1))
    dispatcher.close()


def key_of(job: SimJob) -> JobKey:
    return JobKey(phase="train", step=job.step, task_id=job.task, sample=job.sample)


def open_gate(policy: Policy[Any]) -> MakePolicy:
    """A policy that leaves the turns alone."""
    return lambda load: (policy, OpenGate())


def adaptive(load: Load) -> tuple[Policy[Any], PacingGate]:
    return Adaptive(), KvGate(load)
