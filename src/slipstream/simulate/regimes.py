"""The regimes of `slipstream bench dispatch`: workloads by name and seed. `docs/dispatch.md` describes them.

Invariants: the same name and seed give the same workload. The machine belongs to the regime, not to the seed.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from slipstream.dispatch.base import Deadlines, Retries
from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.simulate.machine.engine import EngineSpec
from slipstream.simulate.workload import Chore, SimFault, SimJob, SimMachine, SimTurn, Workload, checked


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutShape:
    """The distribution of rollouts: means, and spreads (standard deviations of the logarithm)."""

    tasks: int = 64
    samples: int = 8
    prompt: float = 3_000
    turns: float = 22.0
    turns_spread: float = 0.35
    """Between tasks; half of that between samples of a task."""
    max_turns: int = 50
    sampled: float = 450.0
    observed: float = 350.0
    tokens_spread: float = 0.7
    tool_s: float = 3.0
    tool_cpu_s: float = 0.0
    init_s: float = 120.0
    init_cpu_s: float = 0.0
    grade_s: float = 180.0
    grade_cpu_s: float = 0.0
    stage_spread: float = 0.3
    long_share: float = 0.0
    """The share of rollouts with ten times the turns."""
    fault_share: float = 0.0
    """The share of stages that fail."""


def lognormal(rng: random.Random, mean: float, spread: float) -> float:
    """A lognormal number with this mean."""
    return mean * math.exp(rng.gauss(-spread * spread / 2, spread)) if mean else 0.0


def _typical_turns(shape: RolloutShape) -> list[float]:
    """Each task's typical number of turns: the same for every seed, so that no seed is easier than another."""
    normal, spread = statistics.NormalDist(), shape.turns_spread
    heights = [normal.inv_cdf((place + 0.5) / shape.tasks) for place in range(shape.tasks)]
    return [shape.turns * math.exp(height * spread - spread * spread / 2) for height in heights]


def make_jobs(shape: RolloutShape, seed: int, *, step: int = 0) -> list[SimJob]:
    rng = random.Random(f"workload {seed} {step}")
    lengths = _typical_turns(shape)
    random.Random(step).shuffle(lengths)
    jobs = []
    for task, typical in enumerate(lengths):
        for sample in range(shape.samples):
            jobs.append(_job(shape, rng, f"step-{step}-task-{task:03d}", sample, step, typical))
    return jobs


def _job(shape: RolloutShape, rng: random.Random, task: str, sample: int, step: int, typical: float) -> SimJob:
    turns = lognormal(rng, typical, shape.turns_spread / 2)
    turns = min(max(3.0, turns), shape.max_turns)
    is_long = rng.random() < shape.long_share
    scale = 0.25 if is_long else 1.0  # of tokens: with ten times the turns they would not fit the context
    turns *= 10 if is_long else 1
    spread = shape.stage_spread
    return SimJob(
        task=task,
        sample=sample,
        step=step,
        prompt=max(1, round(lognormal(rng, shape.prompt, 0.2))),
        init=Chore(wait_s=lognormal(rng, shape.init_s, spread), cpu_s=lognormal(rng, shape.init_cpu_s, spread)),
        turns=tuple(
            SimTurn(
                sampled=max(1, round(scale * lognormal(rng, shape.sampled, shape.tokens_spread))),
                observed=round(scale * lognormal(rng, shape.observed, shape.tokens_spread)),
                tool_s=lognormal(rng, shape.tool_s, 0.8),
                tool_cpu_s=lognormal(rng, shape.tool_cpu_s, 0.8),
            )
            for _ in range(round(turns))
        ),
        grade=Chore(wait_s=lognormal(rng, shape.grade_s, spread), cpu_s=lognormal(rng, shape.grade_cpu_s, spread)),
        faults=_faults(shape, rng),
    )


def _faults(shape: RolloutShape, rng: random.Random) -> Mapping[str, SimFault] | None:
    if not shape.fault_share:
        return None
    kinds: tuple[SimFault, ...] = ("raise", "hang", "lose")
    return {
        f"{attempt} {stage}": rng.choice(kinds)
        for attempt in range(1, 4)
        for stage in ("init", "run", "grade")
        if rng.random() < shape.fault_share
    }


def mean_context(jobs: list[SimJob]) -> float:
    """The mean context of an agent over its life, weighted by sampling time."""
    held = sum(context * turn.sampled for job in jobs for context, turn in zip(job.contexts, job.turns, strict=True))
    return held / sum(turn.sampled for job in jobs for turn in job.turns)


def final_context(jobs: list[SimJob]) -> float:
    """The mean final context of agents."""
    return sum(job.contexts[-1] + job.turns[-1].sampled for job in jobs) / len(jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    about: str
    shape: RolloutShape
    machine: SimMachine
    batches: int = 1
    staleness: int | None = None


_FINAL = 20_400
"""The mean final context of an agent of the usual shape, in tokens."""
_ENGINE = EngineSpec(
    kv_tokens=96 * _FINAL * 17 // 20, step_s=0.0275, row_s=0.00005, token_s=5e-9, prefill_tokens_s=100_000.0
)
_USUAL = SimMachine(engine=_ENGINE, cores=512.0, agents=96, sandbox_cap=192, slots=96)
_SWE = RolloutShape(init_s=140.0, grade_s=310.0, tool_cpu_s=0.5)

REGIMES: Mapping[str, Regime] = {
    "paper": Regime(about="512 software-engineering rollouts, with KV room for 96 agents", shape=_SWE, machine=_USUAL),
    "kv": Regime(
        about="more agents than the cache holds, and an expensive prefill",
        shape=RolloutShape(tasks=48, samples=8, init_s=20.0, grade_s=30.0, tool_s=6.0),
        machine=SimMachine(
            engine=replace(_ENGINE, kv_tokens=48 * _FINAL * 17 // 20, prefill_tokens_s=20_000.0),
            cores=512.0,
            agents=48,
            sandbox_cap=96,
            slots=96,
        ),
    ),
    "cpu": Regime(
        about="few cores, heavy grading",
        shape=RolloutShape(tasks=48, init_s=10.0, init_cpu_s=20.0, grade_s=5.0, grade_cpu_s=180.0, tool_cpu_s=1.5),
        machine=replace(_USUAL, cores=32.0),
    ),
    "tail": Regime(
        about="a few rollouts ten times longer",
        shape=replace(_SWE, long_share=0.015, init_s=60.0, grade_s=90.0),
        machine=_USUAL,
    ),
    "slowstart": Regime(
        about="initialisation takes as long as the run",
        shape=replace(_SWE, init_s=450.0, grade_s=60.0),
        machine=_USUAL,
    ),
    "faults": Regime(
        about="5 % of stages raise, hang or lose their sandbox",
        shape=replace(_SWE, fault_share=0.05, init_s=60.0, grade_s=90.0),
        machine=replace(
            _USUAL,
            deadlines=Deadlines(init_s=300.0, run_s=1_800.0, grade_s=400.0, job_s=36_000.0),
            retries=Retries(),
        ),
    ),
    "stream": Regime(
        about="eight batches, one after the other",
        shape=RolloutShape(
            tasks=32,
            prompt=8_000,
            turns=24.0,
            turns_spread=0.2,
            max_turns=48,
            sampled=250.0,
            observed=150.0,
            tool_s=0.5,
            init_s=30.0,
            grade_s=40.0,
        ),
        machine=SimMachine(
            engine=replace(_ENGINE, kv_tokens=48 * 17_500 * 17 // 20), cores=512.0, agents=48, sandbox_cap=96, slots=48
        ),
        batches=8,
        staleness=2,
    ),
}


def make_workload(name: str, seed: int) -> Workload:
    regime = REGIMES.get(name)
    if regime is None:
        raise ConfigError(f'there is no regime "{name}"{did_you_mean(name, REGIMES)}: use one of {", ".join(REGIMES)}')
    jobs = [job for step in range(regime.batches) for job in make_jobs(regime.shape, seed, step=step)]
    return checked(Workload(name=name, machine=regime.machine, jobs=tuple(jobs), staleness=regime.staleness))
