"""Evaluation: n rollouts of every task, no update, and what they say.

Enters: an EvalConfig and a run store. Leaves: a Report over every rollout of the run, those of earlier sessions
included. Always holds: a job that is in the store is not run again.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.aio import task_group
from slipstream.dispatch.base import View
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.gate import OpenGate
from slipstream.errors import ConfigError
from slipstream.placement.inprocess import InProcess
from slipstream.record import RunStore, plan_resume
from slipstream.settings import EvalConfig
from slipstream.tasks.source import load_tasks
from slipstream.types import Job, JobKey, Rollout, SpanKind, Trust, job_seed
from slipstream.wiring import make_policy, open_crew

PHASE = "eval"

_STAGES = (
    SpanKind.WAIT_INIT, SpanKind.INIT, SpanKind.WAIT_RUN, SpanKind.RUN, SpanKind.RELEASE, SpanKind.WAIT_GRADE,
    SpanKind.GRADE,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run came to. Rewards are over rollouts with a verdict; the others are counted, never taken for 0."""

    num_tasks: int
    num_rollouts: int
    num_trusted: int
    """With a verdict."""
    mean_reward: float | None
    """The mean over tasks of each task's mean; None if nothing has a verdict."""
    reward_interval: tuple[float, float] | None
    """95 %, by resampling tasks."""
    pass_at_k: Mapping[int, float]
    """Unbiased, over tasks that have at least k rollouts with a verdict."""
    endings: Mapping[str, int]
    num_turns: float
    """Mean turns of a rollout."""
    stage_s: Mapping[str, float]
    """Mean seconds of a rollout in each stage, and waiting for it."""
    failures: Mapping[str, int]
    """Infrastructure failures by stage and error, those that a retry mended included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a running evaluation stands."""

    total: int
    before: int
    """Done in earlier sessions."""
    view: View
    num_solved: int
    num_untrusted: int


def plan_jobs(config: EvalConfig, task_ids: Iterable[str]) -> tuple[Job, ...]:
    """Every place to be filled: all tasks once, then all again, so that early results cover all of them."""
    if config.samples < 1:
        raise ConfigError(f"samples={config.samples}: ask for at least one rollout of each task")
    ids = list(task_ids)
    keys = [
        JobKey(phase=PHASE, step=0, task_id=task_id, sample=sample)
        for sample in range(config.samples)
        for task_id in ids
    ]
    return tuple(Job(key=key, seed=job_seed(config.seed, key), group_size=config.samples) for key in keys)


async def evaluate(
    config: EvalConfig, store: RunStore, *, on_progress: Callable[[Progress], None] = lambda progress: None
) -> Report:
    """Run whatever of the run is not in the store yet, then report on all of it."""
    tasks = {task.id: task for task in load_tasks(config.tasks.source, num=config.tasks.num, args=config.tasks.args)}
    jobs = plan_jobs(config, tasks)
    done = store.done_keys()
    left = [job for job in jobs if job.key not in done]
    unfinished = plan_resume(store.events(unfinished_only=True)).unfinished
    policy, limits = make_policy(config.dispatch)
    if left:
        async with open_crew(config, tasks, journal=store, gate=OpenGate()) as crew:
            dispatcher = Dispatcher(
                InProcess(crew, tasks),
                policy=policy,
                journal=store,
                limits=limits,
                deadlines=config.dispatch.deadlines,
                retries=config.dispatch.retries,
                first_numbers={key: past.attempt + 1 for key, past in unfinished.items()},
            )
            async with dispatcher:
                await _run_all(dispatcher, left, config, len(jobs), on_progress)
    await store.flush()
    return report(store.rollouts(with_turns=True), config)


async def _run_all(
    dispatcher: Dispatcher,
    jobs: Sequence[Job],
    config: EvalConfig,
    total: int,
    on_progress: Callable[[Progress], None],
) -> None:
    num_solved = num_untrusted = 0

    def tell() -> None:
        on_progress(
            Progress(
                total=total,
                before=total - len(jobs),
                view=dispatcher.view(),
                num_solved=num_solved,
                num_untrusted=num_untrusted,
            )
        )

    async def tick() -> None:
        while True:
            tell()
            await asyncio.sleep(0.25)

    async def submit() -> None:
        try:
            for job in jobs:
                await dispatcher.submit(job)
        finally:
            dispatcher.close()

    async with task_group() as group:
        group.create_task(submit())
        ticking = group.create_task(tick())
        async for rollout in dispatcher.finished():
            num_solved += _solved(rollout, config)
            num_untrusted += rollout.trust is Trust.UNTRUSTED
        ticking.cancel()
    tell()


def report(rollouts: Iterable[Rollout], config: EvalConfig) -> Report:
    """The figures of a run."""
    rewards: dict[str, list[float]] = defaultdict(list)
    endings: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    stage_s: dict[SpanKind, float] = defaultdict(float)
    num_rollouts = num_turns = 0
    task_ids: set[str] = set()
    for rollout in rollouts:
        num_rollouts += 1
        num_turns += len(rollout.turns)
        task_ids.add(rollout.job.key.task_id)
        endings[rollout.ending.reason.value] += 1
        failures.update(f"{failure.stage}: {failure.error}" for failure in rollout.failures)
        for span in rollout.spans:
            stage_s[span.kind] += span.seconds
        if rollout.verdict is not None:
            rewards[rollout.job.key.task_id].append(rollout.verdict.reward)
    means = [statistics.fmean(values) for values in rewards.values()]
    return Report(
        num_tasks=len(task_ids),
        num_rollouts=num_rollouts,
        num_trusted=sum(len(values) for values in rewards.values()),
        mean_reward=statistics.fmean(means) if means else None,
        reward_interval=bootstrap_interval(means) if means else None,
        pass_at_k=_pass_at_ks(rewards, config),
        endings=dict(endings.most_common()),
        num_turns=num_turns / max(1, num_rollouts),
        stage_s={kind.value: stage_s[kind] / max(1, num_rollouts) for kind in _STAGES},
        failures=dict(failures.most_common()),
    )


def pass_at_k(num_samples: int, num_solved: int, k: int) -> float:
    """The chance that k samples, drawn without putting back from these, hold at least one that solved the task."""
    return 1.0 - math.comb(num_samples - num_solved, k) / math.comb(num_samples, k)


def bootstrap_interval(
    means: Sequence[float], *, num_resamples: int = 2_000, coverage: float = 0.95
) -> tuple[float, float]:
    """A percentile interval for the mean over tasks: rollouts of one task are not independent, tasks are."""
    chance = random.Random(0)
    resampled = sorted(statistics.fmean(chance.choices(means, k=len(means))) for _ in range(num_resamples))
    tail = (1.0 - coverage) / 2
    return resampled[int(tail * num_resamples)], resampled[min(num_resamples - 1, int((1 - tail) * num_resamples))]


def _pass_at_ks(rewards: Mapping[str, Sequence[float]], config: EvalConfig) -> dict[int, float]:
    """For k = 1, 2, 4, ... and the number of samples."""
    ks = sorted(
        {2**power for power in range(config.samples.bit_length()) if 2**power < config.samples} | {config.samples}
    )
    found: dict[int, float] = {}
    for k in ks:
        chances = [
            pass_at_k(len(values), sum(value >= config.solved_at for value in values), k)
            for values in rewards.values()
            if len(values) >= k
        ]
        if chances:
            found[k] = statistics.fmean(chances)
    return found


def _solved(rollout: Rollout, config: EvalConfig) -> bool:
    return rollout.verdict is not None and rollout.verdict.reward >= config.solved_at
