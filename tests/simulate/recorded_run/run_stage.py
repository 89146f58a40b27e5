"""Simulated runs, recorded as real ones are."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from slipstream.config import to_json
from slipstream.record import RunReader, RunStore
from slipstream.record.hardware import CpuSample, GpuSample, HardwareSample
from slipstream.seams import JobAdmitted, LearnerWorked, RolloutDone
from slipstream.settings import DispatchConfig, EvalConfig, ModelConfig, TasksConfig, TrainConfig
from slipstream.simulate.machine.engine import EngineSpec
from slipstream.simulate.recorded_run.predict import setup_of
from slipstream.simulate.recorded_run.replay import UNKNOWN_CACHE
from slipstream.simulate.run import Trace, trace
from slipstream.simulate.workload import Chore, SimJob, SimMachine, SimTurn, Workload, checked
from slipstream.types import EngineWork, Rollout

TRUE = EngineSpec(
    kv_tokens=UNKNOWN_CACHE, step_s=0.01, row_s=0.0008, token_s=1e-6, prefill_tokens_s=8_000.0, call_s=0.02
)
CORES = 4.0
EVAL = EvalConfig(
    name="made",
    tasks=TasksConfig(source="x.jsonl"),
    model=ModelConfig(kind="tokens"),
    dispatch=DispatchConfig(policy="pipeline", slots=16),
    samples=4,
)
TRAIN = TrainConfig(
    name="made", tasks=TasksConfig(source="x.jsonl"), dispatch=DispatchConfig(policy="pipeline", slots=16), samples=4
)


def jobs(
    *, num_tasks: int = 10, samples: int = 4, seed: int = 1, phase: str = "eval", steps: int = 1, most_turns: int = 7
) -> tuple[SimJob, ...]:
    chance = random.Random(seed)

    def turn() -> SimTurn:
        return SimTurn(
            sampled=chance.randint(5, 120),
            observed=chance.randint(10, 300),
            tool_s=0.3 * chance.random(),
            tool_cpu_s=0.3 * chance.random(),
        )

    return tuple(
        SimJob(
            task=f"t{task}",
            sample=sample,
            step=step,
            phase=phase,
            prompt=200 + 50 * task,
            init=Chore(wait_s=0.2, cpu_s=0.5),
            start=Chore(wait_s=0.01),
            turns=tuple(turn() for _ in range(chance.randint(2, most_turns))),
            release_s=0.05,
            grade=Chore(wait_s=0.1, cpu_s=1.0),
        )
        for step in range(steps)
        for task in range(num_tasks)
        for sample in range(samples)
    )


def workload(
    these: tuple[SimJob, ...],
    engine: EngineSpec = TRUE,
    *,
    staleness: int | None = None,
    update_s: tuple[float, ...] = (),
    engines: int = 1,
    keep: int | None = None,
) -> Workload:
    machine = SimMachine(engine=engine, cores=CORES, agents=1, sandbox_cap=1, slots=1)
    return checked(
        Workload(
            name="made",
            machine=machine,
            jobs=these,
            staleness=staleness,
            update_s=update_s,
            engines=engines,
            keep=keep,
        )
    )


def ran(of: Workload, settings: EvalConfig | TrainConfig) -> Trace:
    """What truly happens under these settings."""
    way = setup_of(settings)
    return trace(of, way.make, way.limits)


def store(
    folder: Path,
    rollouts: Iterable[Rollout],
    settings: EvalConfig | TrainConfig | None,
    *,
    cores: float | None = CORES,
    num_gpus: int = 0,
    open_jobs: Iterable[Rollout] = (),
    work: Iterable[LearnerWorked] = (),
    samples: Iterable[HardwareSample] = (),
) -> RunReader:
    """Rollouts as a run; `open_jobs` are known to have begun alone."""

    async def write() -> None:
        config = {} if settings is None else {"settings": to_json(settings)}
        async with RunStore.create(folder, config=config, clock_offset_s=1_000.0) as made:
            for rollout in rollouts:
                made.append(JobAdmitted(job=rollout.job))
                made.append(RolloutDone(rollout=rollout))
            for rollout in open_jobs:
                made.append(JobAdmitted(job=rollout.job))
            for each in work:
                made.append(each)
            if cores is not None:
                gpus = tuple(GpuSample(gpu=gpu, percent=0.0, memory_mb=0.0) for gpu in range(num_gpus))
                cpu = CpuSample(percent=50.0, cores=cores, own_cores=0.1)
                for sample in samples or [HardwareSample(at_s=1.0, seconds=1.0, cpu=cpu, gpus=gpus)]:
                    made.add_sample(sample)

    asyncio.run(write())
    return RunStore.read(folder)


def with_dispatch(settings: EvalConfig, **changes: object) -> EvalConfig:
    return replace(settings, dispatch=replace(settings.dispatch, **changes))  # type: ignore[arg-type]


SIZES = [(1 + number % 8, 30 * (number % 4)) for number in range(200)]
"""Of steps: sequences, and tokens of prompts."""


def steps_of(engine: EngineSpec, sizes: Sequence[tuple[int, int]], *, slower: float = 1.0) -> list[EngineWork]:
    """What an engine tells of steps with so many sequences and tokens of prompts; each time is `slower` in all."""
    made = []
    for number, (rows, prompt) in enumerate(sizes):
        held = rows * (100 + 40 * (number % 5))
        cpu_s = engine.step_s + rows * engine.row_s + held * engine.token_s + prompt / engine.prefill_tokens_s
        made.append(
            EngineWork(
                num_steps=1,
                num_rows=rows,
                num_held=held,
                num_prompt=prompt,
                seconds=slower * cpu_s * (1.0 + 0.2 * (number % 3)),
                cpu_s=cpu_s,
            )
        )
    return made
