"""Evaluation: n rollouts of every task, no update, and what they say.

Enters: an EvalConfig and a run store. Leaves: a Report over every rollout of the run, those of earlier sessions
included. Always holds: a job that is in the store is not run again.

    async with RunStore.create(folder, config=to_json(config)) as store:
        report = await evaluate(config, store)
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from slipstream.aio import task_group
from slipstream.batch.drift import Drift, drift
from slipstream.dispatch.base import DispatchView, Placement
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.errors import ConfigError
from slipstream.model.base import ChatModel, Completer
from slipstream.record import RunReader, RunStore, plan_resume
from slipstream.settings import EvalConfig, check_settings
from slipstream.tasks.source import digest_of, load_tasks
from slipstream.telemetry.sampler import sampling
from slipstream.types import Job, JobKey, Rollout, SpanKind, Task, Trust
from slipstream.wiring import Pacing, check_gradings, check_prompts, check_weights, make_job, open_placement

PHASE = "eval"

MAX_ROLLOUTS = 10_000_000
"""Of one run. Each is a job that is kept in memory."""

TELL_EVERY_S = 0.25

_STAGES = (
    SpanKind.WAIT_INIT, SpanKind.INIT, SpanKind.WAIT_RUN, SpanKind.RUN, SpanKind.RELEASE, SpanKind.WAIT_GRADE,
    SpanKind.GRADE,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
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
    failure_messages: Mapping[str, str]
    """What the first of each kind said."""
    drift: Drift
    """How many samples forked, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalProgress:
    """Where a running evaluation stands."""

    total: int
    before: int
    """Done in earlier sessions."""
    view: DispatchView
    """Of this session."""
    num_solved: int
    """Of the whole run, as is the next."""
    num_untrusted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an evaluation is going to do."""

    config: EvalConfig
    tasks: Mapping[str, Task]
    tasks_digest: str
    """Changes with any of the tasks."""
    jobs: tuple[Job, ...]


def plan_evaluation(config: EvalConfig) -> Plan:
    """Check the settings and load the tasks. May take as long as a task source takes."""
    check_settings(config)
    loaded = load_tasks(config.tasks.source, num=config.tasks.num, args=config.tasks.args)
    jobs = plan_jobs(config, loaded)
    check_weights(config.dispatch, jobs[: len(loaded)])
    check_gradings(config, loaded)
    check_prompts(config)
    return Plan(
        config=config,
        tasks={task.id: task for task in loaded},
        tasks_digest=digest_of(loaded),
        jobs=jobs,
    )


def plan_jobs(config: EvalConfig, tasks: Sequence[Task]) -> tuple[Job, ...]:
    """Every place to be filled: all tasks once, then all again, so that early results cover all of them."""
    if len(tasks) * config.samples > MAX_ROLLOUTS:
        raise ConfigError(
            f"samples={config.samples} of {len(tasks)} tasks: a run holds {MAX_ROLLOUTS:,} rollouts at most"
        )
    return tuple(_job(config, task, sample) for sample in range(config.samples) for task in tasks)


def _job(config: EvalConfig, task: Task, sample: int) -> Job:
    key = JobKey(phase=PHASE, step=0, task_id=task.id, sample=sample)
    return make_job(task, key, run_seed=config.seed, group_size=config.samples)


async def evaluate(
    config: EvalConfig, store: RunStore, *, on_progress: Callable[[EvalProgress], None] = lambda progress: None
) -> EvalReport:
    """Run whatever of the run is not in the store yet, then report on all of it."""
    return await carry_out(plan_evaluation(config), lambda: nullcontext(store), past=store, on_progress=on_progress)


async def carry_out(
    plan: Plan,
    open_store: Callable[[], AbstractAsyncContextManager[RunStore]],
    *,
    past: RunReader | None,
    on_progress: Callable[[EvalProgress], None],
    model: Completer | ChatModel | None = None,
) -> EvalReport:
    """`evaluate` for a run that may not exist yet: `open_store` is called when model and sandboxes are there and all
    that can be checked was, so bad input leaves no run behind. `past` is the run so far, where there is one;
    `model` is asked in place of what the settings name."""
    if past is not None and past.done_keys().issuperset(job.key for job in plan.jobs):
        return report(past.rollouts(), plan.config)
    pacing = Pacing(plan.config.dispatch)
    placing = open_placement(plan.config, plan.tasks, pacing=pacing, policy=model)
    async with placing as placed, open_store() as store:
        async with sampling(store, plan.config.hardware.every_s, take_work=pacing.take_work):
            await _run_missing(plan, placed(store), pacing, store, on_progress)
        await store.flush()
        return report(store.rollouts(), plan.config)


async def _run_missing(
    plan: Plan, placement: Placement, pacing: Pacing, store: RunStore, on_progress: Callable[[EvalProgress], None]
) -> None:
    await store.flush()  # whoever used the store before may have been stopped with events that nobody has read yet
    before = list(store.rollouts(with_turns=False))
    done = {rollout.job.key for rollout in before}
    tally = _Tally(plan, before)
    dispatcher = Dispatcher(
        placement,
        policy=pacing.policy,
        journal=store,
        limits=pacing.limits,
        gate=pacing.gate,
        load=pacing.load,
        deadlines=plan.config.dispatch.deadlines,
        retries=plan.config.dispatch.retries,
        resumed=plan_resume(store.events(unfinished_only=True)).unfinished,
        is_proven=any(rollout.verdict is not None for rollout in before),
    )
    async with dispatcher, task_group() as group:
        group.create_task(_submit(dispatcher, [job for job in plan.jobs if job.key not in done]))
        ticking = group.create_task(_tick(lambda: on_progress(tally.progress(dispatcher.view()))))
        async for rollout in dispatcher.finished():
            tally.add(rollout)
        ticking.cancel()
    on_progress(tally.progress(dispatcher.view()))


class _Tally:
    """What the finished rollouts of a run came to so far."""

    def __init__(self, plan: Plan, before: Sequence[Rollout]) -> None:
        self._plan = plan
        self._num_before = len(before)
        self._num_solved = self._num_untrusted = 0
        for rollout in before:
            self.add(rollout)

    def add(self, rollout: Rollout) -> None:
        self._num_solved += _solved(rollout, self._plan.config)
        self._num_untrusted += rollout.trust is Trust.UNTRUSTED

    def progress(self, view: DispatchView) -> EvalProgress:
        return EvalProgress(
            total=len(self._plan.jobs),
            before=self._num_before,
            view=view,
            num_solved=self._num_solved,
            num_untrusted=self._num_untrusted,
        )


async def _submit(dispatcher: Dispatcher, jobs: Iterable[Job]) -> None:
    try:
        for job in jobs:
            await dispatcher.submit(job)
    finally:
        dispatcher.close()


async def _tick(tell: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(TELL_EVERY_S)
        tell()


def report(rollouts: Iterable[Rollout], config: EvalConfig) -> EvalReport:
    """The figures of a run."""
    rewards: dict[str, list[float]] = defaultdict(list)
    endings: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    messages: dict[str, str] = {}
    stage_s: dict[SpanKind, float] = defaultdict(float)
    num_rollouts = num_turns = 0
    task_ids: set[str] = set()

    def counted() -> Iterator[Rollout]:
        nonlocal num_rollouts, num_turns
        for rollout in rollouts:
            num_rollouts += 1
            num_turns += len(rollout.turns)
            task_ids.add(rollout.job.key.task_id)
            endings[rollout.ending.reason.value] += 1
            for failure in rollout.failures:
                kind = f"{failure.stage}: {failure.error}"
                failures[kind] += 1
                messages.setdefault(kind, failure.message)
            for span in rollout.spans:
                stage_s[span.kind] += span.seconds
            if rollout.verdict is not None:
                rewards[rollout.job.key.task_id].append(rollout.verdict.reward)
            yield rollout

    drifted = drift(counted())
    means = [statistics.fmean(values) for values in rewards.values()]
    return EvalReport(
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
        failure_messages=messages,
        drift=drifted,
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
