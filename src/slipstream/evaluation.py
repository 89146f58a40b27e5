"""Evaluation: n rollouts of every task, no update, and a report.

Input: an EvalConfig and a run store. Output: an EvalReport over every rollout of the run, earlier sessions included.
Invariants: a job that is in the store is not run again.

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
from contextlib import nullcontext
from dataclasses import dataclass, field

from slipstream.aio import task_group
from slipstream.batch.drift import Drift, drift
from slipstream.dispatch.base import DispatchView
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.errors import ConfigError
from slipstream.model.base import ChatModel, Completer
from slipstream.record import RunReader, RunStore
from slipstream.record.metrics_file import MetricsFile, MetricsLine
from slipstream.settings import EvalConfig, PricesConfig, check_settings
from slipstream.tasks.jobs import make_job
from slipstream.tasks.source import digest_of
from slipstream.types import Job, JobKey, Rollout, SpanKind, Task, Trust, set_of
from slipstream.wiring.checks import check_prompts, check_tasks
from slipstream.wiring.run import LiveRun, OpenStore, start_run
from slipstream.wiring.task_sets import tasks_of

PHASE = "eval"

MAX_ROLLOUTS = 10_000_000
"""In one run. Each is a job kept in memory."""

REPORT_EVERY_S = 0.25

_TOKENS = ("prompt", "cached", "sampled")
"""The counts of model calls that are summed."""
_STUDENT_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The factors of Student's distribution for a two-sided 95 %, by degrees of freedom from 1."""
_STAGES = (
    SpanKind.WAIT_INIT, SpanKind.INIT, SpanKind.WAIT_RUN, SpanKind.RUN, SpanKind.RELEASE, SpanKind.WAIT_GRADE,
    SpanKind.GRADE,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SetReport:
    """The main figures of one set of a mixture, as in an EvalReport."""

    num_tasks: int
    num_rollouts: int
    num_trusted: int
    mean_reward: float | None
    pass_at_k: Mapping[int, float]
    num_turns: float
    run_s: float
    """Mean seconds of a rollout in the run stage."""

    def metrics(self) -> dict[str, float]:
        return {
            "tasks": self.num_tasks,
            "rollouts": self.num_rollouts,
            "rollouts/with_verdict": self.num_trusted,
            **({} if self.mean_reward is None else {"reward/mean": self.mean_reward}),
            **{f"pass@{k}": chance for k, chance in self.pass_at_k.items()},
            "turns/mean": self.num_turns,
            "seconds/run": self.run_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """The figures of a run. Rewards are over rollouts with a verdict; the others are counted, never taken for 0."""

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
    """Infrastructure failures by stage and error, including those that a retry fixed."""
    failure_messages: Mapping[str, str]
    """The message of the first of each kind."""
    drift: Drift
    """How many samples forked, and why."""
    pass_1_by_seed: tuple[float, ...] = ()
    """The share of tasks solved by each rollout of a task in turn: the first of all tasks, the second of all, and so
    on. Tasks without a verdict there are left out."""
    pass_1_interval: tuple[float, float] | None = None
    """95 %, over these seeds, by Student's distribution; None with fewer than two."""
    tokens: Mapping[str, float] = field(default_factory=dict)
    """Mean tokens of a rollout, by `prompt` (cached ones included), `cached` and `sampled`; repeated calls count."""
    cost: float | None = None
    """Mean cost of a rollout by `model.prices`; None without prices."""
    sets: Mapping[str, SetReport] = field(default_factory=dict)
    """Of a mixture, by the name of the set."""

    def metrics(self) -> dict[str, float]:
        """The figures by name, as `docs/metrics.md` lists them; absent ones are left out."""
        low, high = self.reward_interval or (None, None)
        rewards = {"reward/mean": self.mean_reward, "reward/low": low, "reward/high": high}
        return {
            "tasks": self.num_tasks,
            "rollouts": self.num_rollouts,
            "rollouts/with_verdict": self.num_trusted,
            **{name: value for name, value in rewards.items() if value is not None},
            **{f"pass@{k}": chance for k, chance in self.pass_at_k.items()},
            **dict(zip(("pass@1/low", "pass@1/high"), self.pass_1_interval or (), strict=False)),
            **{f"tokens/{kind}": number for kind, number in self.tokens.items()},
            **({} if self.cost is None else {"cost/mean": self.cost, "cost/total": self.cost * self.num_rollouts}),
            "turns/mean": self.num_turns,
            **{f"ended/{reason}": number for reason, number in self.endings.items()},
            **{f"seconds/{stage}": seconds for stage, seconds in self.stage_s.items()},
            "failures": sum(self.failures.values()),
            **{f"set/{name}/{key}": value for name, each in self.sets.items() for key, value in each.metrics().items()},
        }


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
class EvalPlan:
    """What an evaluation will do."""

    config: EvalConfig
    tasks: Mapping[str, Task]
    tasks_digest: str
    """Changes with any of the tasks."""
    jobs: tuple[Job, ...]


def plan_evaluation(config: EvalConfig) -> EvalPlan:
    """Check the settings and load the tasks, which may take a while."""
    check_settings(config)
    loaded = tasks_of(config.tasks)
    jobs = plan_jobs(config, loaded)
    check_tasks(config, loaded, phase=PHASE)
    check_prompts(config)
    return EvalPlan(
        config=config,
        tasks={task.id: task for task in loaded},
        tasks_digest=digest_of(loaded),
        jobs=jobs,
    )


def plan_jobs(config: EvalConfig, tasks: Sequence[Task]) -> tuple[Job, ...]:
    """All tasks once, then all again, so that early results cover all of them."""
    if len(tasks) * config.samples > MAX_ROLLOUTS:
        raise ConfigError.setting(
            "samples",
            config.samples,
            f"with {len(tasks)} tasks that is more than the {MAX_ROLLOUTS:,} rollouts of a run",
        )
    return tuple(_job(config, task, sample) for sample in range(config.samples) for task in tasks)


def _job(config: EvalConfig, task: Task, sample: int) -> Job:
    key = JobKey(phase=PHASE, step=0, task_id=task.id, sample=sample)
    return make_job(task, key, run_seed=config.seed, group_size=config.samples)


async def evaluate(
    config: EvalConfig, store: RunStore, *, on_progress: Callable[[EvalProgress], None] = lambda progress: None
) -> EvalReport:
    """Run whatever is not in the store yet, then report on all of it."""
    return await run_evaluation(
        plan_evaluation(config), lambda: nullcontext(store), past=store, on_progress=on_progress
    )


async def run_evaluation(
    plan: EvalPlan,
    open_store: OpenStore,
    *,
    past: RunReader | None,
    on_progress: Callable[[EvalProgress], None],
    model: Completer | ChatModel | None = None,
) -> EvalReport:
    """`evaluate` for a run that may not exist yet. `past` is the run so far, if there is one; `model` is used instead
    of the one that the settings name."""
    if past is not None and past.done_keys().issuperset(job.key for job in plan.jobs):
        return _reported(past, plan.config)
    async with start_run(plan.config, plan.tasks, open_store, model=model) as run:
        await _run_missing(plan, run, on_progress)
        await run.store.flush()
        return _reported(run.store, plan.config)


def _reported(run: RunReader, config: EvalConfig) -> EvalReport:
    """The report, which is written into `metrics.jsonl` too."""
    found = report(run.rollouts(), config)
    MetricsFile(run.folder, [MetricsLine(kind=PHASE, at={}, metrics=found.metrics())])
    return found


async def _run_missing(plan: EvalPlan, run: LiveRun, on_progress: Callable[[EvalProgress], None]) -> None:
    before = list(run.store.rollouts(with_turns=False))
    done = {rollout.job.key for rollout in before}
    totals = _Totals(plan, before)
    dispatcher = run.dispatcher
    async with dispatcher, task_group() as group:
        group.create_task(submit_all(dispatcher, [job for job in plan.jobs if job.key not in done]))
        ticking = group.create_task(_report_progress(lambda: on_progress(totals.progress(dispatcher.view()))))
        async for rollout in dispatcher.finished():
            totals.add(rollout)
        ticking.cancel()
    on_progress(totals.progress(dispatcher.view()))


class _Totals:
    """Running totals over the finished rollouts."""

    def __init__(self, plan: EvalPlan, before: Sequence[Rollout]) -> None:
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


async def submit_all(dispatcher: Dispatcher, jobs: Iterable[Job]) -> None:
    """Submit these jobs, and no others after them."""
    try:
        for job in jobs:
            await dispatcher.submit(job)
    finally:
        dispatcher.close()


async def _report_progress(report_now: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(REPORT_EVERY_S)
        report_now()


def report(rollouts: Iterable[Rollout], config: EvalConfig) -> EvalReport:
    """The figures of a run."""
    rewards: dict[str, list[float]] = defaultdict(list)
    endings: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    messages: dict[str, str] = {}
    stage_s: dict[SpanKind, float] = defaultdict(float)
    seeds: dict[int, list[bool]] = defaultdict(list)
    tokens: Counter[str] = Counter()
    num_rollouts = num_turns = 0
    task_ids: set[str] = set()
    sets: dict[str, _SetTotals] = {name: _SetTotals() for name in config.tasks.sets}

    def counted() -> Iterator[Rollout]:
        nonlocal num_rollouts, num_turns
        for rollout in rollouts:
            num_rollouts += 1
            num_turns += len(rollout.turns)
            task_ids.add(rollout.job.key.task_id)
            endings[rollout.ending.reason.value] += 1
            if (totals := sets.get(set_of(rollout.job.key.task_id, sets))) is not None:
                totals.add(rollout)
            for failure in rollout.failures:
                kind = f"{failure.stage}: {failure.error}"
                failures[kind] += 1
                messages.setdefault(kind, failure.message)
            for span in rollout.spans:
                stage_s[span.kind] += span.seconds
                tokens.update({kind: span.counts.get(kind, 0) for kind in _TOKENS if span.kind is SpanKind.MODEL})
            if rollout.verdict is not None:
                rewards[rollout.job.key.task_id].append(rollout.verdict.reward)
                seeds[rollout.job.key.sample].append(_solved(rollout, config))
            yield rollout

    drifted = drift(counted())
    means = [statistics.fmean(values) for values in rewards.values()]
    by_seed = tuple(statistics.fmean(seeds[sample]) for sample in sorted(seeds))
    per_rollout = {kind: tokens[kind] / max(1, num_rollouts) for kind in _TOKENS}
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
        pass_1_by_seed=by_seed,
        pass_1_interval=student_interval(by_seed) if len(by_seed) > 1 else None,
        tokens=per_rollout,
        cost=_cost(per_rollout, config.model.prices),
        sets={name: totals.report(config) for name, totals in sets.items()},
    )


class _SetTotals:
    """Running totals over the rollouts of one set."""

    def __init__(self) -> None:
        self._rewards: dict[str, list[float]] = defaultdict(list)
        self._task_ids: set[str] = set()
        self._num_rollouts = self._num_turns = 0
        self._run_s = 0.0

    def add(self, rollout: Rollout) -> None:
        self._num_rollouts += 1
        self._num_turns += len(rollout.turns)
        self._task_ids.add(rollout.job.key.task_id)
        self._run_s += sum(span.seconds for span in rollout.spans if span.kind is SpanKind.RUN)
        if rollout.verdict is not None:
            self._rewards[rollout.job.key.task_id].append(rollout.verdict.reward)

    def report(self, config: EvalConfig) -> SetReport:
        means = [statistics.fmean(values) for values in self._rewards.values()]
        num = max(1, self._num_rollouts)
        return SetReport(
            num_tasks=len(self._task_ids),
            num_rollouts=self._num_rollouts,
            num_trusted=sum(map(len, self._rewards.values())),
            mean_reward=statistics.fmean(means) if means else None,
            pass_at_k=_pass_at_ks(self._rewards, config),
            num_turns=self._num_turns / num,
            run_s=self._run_s / num,
        )


def pass_at_k(num_samples: int, num_solved: int, k: int) -> float:
    """The chance that k of these samples, drawn without replacement, include one that solved the task."""
    return 1.0 - math.comb(num_samples - num_solved, k) / math.comb(num_samples, k)


def bootstrap_interval(
    means: Sequence[float], *, num_resamples: int = 2_000, coverage: float = 0.95
) -> tuple[float, float]:
    """A percentile interval for the mean over tasks: rollouts of one task are not independent, tasks are."""
    chance = random.Random(0)
    resampled = sorted(statistics.fmean(chance.choices(means, k=len(means))) for _ in range(num_resamples))
    tail = (1.0 - coverage) / 2
    return resampled[int(tail * num_resamples)], resampled[min(num_resamples - 1, int((1 - tail) * num_resamples))]


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval for the mean of at least two independent values."""
    mean, freedom = statistics.fmean(values), len(values) - 1
    factor = _STUDENT_95[freedom - 1] if freedom <= len(_STUDENT_95) else statistics.NormalDist().inv_cdf(0.975)
    half = factor * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def _cost(tokens: Mapping[str, float], prices: PricesConfig) -> float | None:
    if prices == PricesConfig():
        return None
    cached = prices.prompt if prices.cached is None else prices.cached
    fresh = tokens["prompt"] - tokens["cached"]
    return (fresh * prices.prompt + tokens["cached"] * cached + tokens["sampled"] * prices.sampled) / 1e6


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
