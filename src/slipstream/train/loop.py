"""The training loop: rollouts, a batch, an update, and again.

Enters: a learner, a dispatcher, a run store, tasks. Leaves: a trained learner; and, in the store, which rollouts made
which batch, and what each step came to.
Always holds: the batch of step s is made of the jobs planned for it and of nothing else, in the order of their keys. A
plan is written before its jobs are submitted, a batch before the learner sees it, so nothing is lost and nothing is
trained on twice, whenever the process dies. With staleness k the jobs of a step are submitted once the policy is at
most k versions behind the one that the step will update; with 0 everything is on policy.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from slipstream.aio import task_group
from slipstream.batch.advantages import Estimator
from slipstream.batch.rows import make_batch
from slipstream.dispatch.base import View
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.errors import ConfigError
from slipstream.feed import Feed
from slipstream.record import StepRecord
from slipstream.seams import BatchTaken, Journal, Measured, StepDone, StepPlanned
from slipstream.train.arrivals import Arrivals
from slipstream.train.checkpoints import Checkpoints
from slipstream.train.learner import Learner
from slipstream.types import Group, Job, JobKey, Rollout, Task, job_seed

TRAIN, HELD_OUT = "train", "held_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    steps: int
    samples: int
    """Rollouts of each task in a step."""
    staleness: int
    estimator: Estimator
    seed: int
    solved_at: float = 1.0
    max_sample_tokens: int | None = None
    eval_every: int = 0
    """Steps between evaluations on the held-out tasks; 0 is at the beginning and the end alone."""
    eval_samples: int = 1
    checkpoint_every: int = 1
    shuffle_rewards: bool = False
    """A control: rewards are dealt anew among the rollouts of a batch, so there is nothing to learn."""


class TrainStore(Journal, Protocol):
    """The journal of a training run, which can be asked what is in it."""

    def steps(self) -> tuple[StepRecord, ...]: ...

    def measured(self) -> dict[tuple[int, str], dict[str, float]]: ...

    def done_keys(self) -> set[JobKey]: ...

    def rollouts(
        self, with_turns: bool = True, *, phase: str | None = None, step: int | None = None
    ) -> Iterator[Rollout]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainProgress:
    """Where training stands."""

    version: int
    steps: int
    doing: str
    view: View
    metrics: Mapping[str, float]
    """Of the last step."""
    held_out: Mapping[int, float]
    """Success on the held-out tasks, by version."""


class Trainer:
    def __init__(
        self,
        settings: LoopSettings,
        *,
        learner: Learner,
        dispatcher: Dispatcher,
        store: TrainStore,
        feed: Feed,
        tasks: Mapping[str, Task],
        held_out: Sequence[Task],
        checkpoints: Checkpoints,
        on_progress: Callable[[TrainProgress], None] = lambda progress: None,
    ) -> None:
        self._settings = settings
        self._learner = learner
        self._dispatcher = dispatcher
        self._store = store
        self._feed = feed
        self._tasks = tasks
        self._held_out = held_out
        self._checkpoints = checkpoints
        self._on_progress = on_progress
        self._arrivals = Arrivals()
        self._advanced = asyncio.Condition()
        self._steps = {record.step: record for record in store.steps()}
        self._done = store.done_keys()
        self._metrics: Mapping[str, float] = {}
        self.success: dict[int, float] = {
            step: metrics["success"] for (step, kind), metrics in store.measured().items() if kind == HELD_OUT
        }
        """On the held-out tasks, by version."""

    async def run(self) -> None:
        """From where the learner and the store are to the last step."""
        if self._learner.version > self._settings.steps:
            raise ConfigError(f"the policy has seen {self._learner.version} steps, and steps={self._settings.steps}")
        await self._catch_up()
        async with self._dispatcher, task_group() as group:
            group.create_task(self._route())
            group.create_task(self._produce())
            await self._evaluate_if_due()
            while self._learner.version < self._settings.steps:
                await self._step(self._learner.version)
            self._dispatcher.close()

    # ---------------------------------------------------------------- making batches

    async def _catch_up(self) -> None:
        """Tell the feed what was given out, and make the updates anew that the checkpoint has not seen."""
        for record in self._steps.values():
            self._feed.given(_tasks_of(record.planned))
        for step in sorted(self._steps):
            record = self._steps[step]
            if record.taken is None:
                break
            groups = self._groups(self._recorded(record.taken, step))
            if step < self._learner.version:
                self._note(groups)
                continue
            self._tell(f"step {step} again")
            await self._update(step, groups, is_new=record.version is None)

    def _recorded(self, keys: Sequence[JobKey], step: int) -> tuple[Rollout, ...]:
        found = {rollout.job.key: rollout for rollout in self._store.rollouts(phase=TRAIN, step=step)}
        return tuple(found[key] for key in sorted(keys))

    async def _route(self) -> None:
        async for rollout in self._dispatcher.finished():
            await self._arrivals.put([rollout])

    async def _produce(self) -> None:
        """Submit the jobs of every step as soon as it may begin."""
        for step in range(self._learner.version, self._settings.steps):
            await self._until_version(step - self._settings.staleness)
            jobs = self._plan(step)
            async with self._advanced:
                self._advanced.notify_all()
            await self._submit(jobs, step)

    async def _until_version(self, version: int) -> None:
        async with self._advanced:
            await self._advanced.wait_for(lambda: self._learner.version >= version)

    def _plan(self, step: int) -> tuple[Job, ...]:
        record = self._steps.get(step)
        if record is None:
            jobs = tuple(
                self._job(TRAIN, step, task_id, sample, self._settings.samples)
                for task_id in self._feed.next_step()
                for sample in range(self._settings.samples)
            )
            record = self._steps[step] = StepRecord(step=step, planned=tuple(job.key for job in jobs))
            self._store.append(StepPlanned(step=step, jobs=record.planned))
            return jobs
        return tuple(self._job(TRAIN, step, key.task_id, key.sample, self._settings.samples) for key in record.planned)

    async def _submit(self, jobs: Sequence[Job], step: int) -> None:
        await self._store.flush()
        if any(job.key in self._done for job in jobs):
            phase = jobs[0].key.phase
            wanted = {job.key for job in jobs}
            await self._arrivals.put(
                rollout for rollout in self._store.rollouts(phase=phase, step=step) if rollout.job.key in wanted
            )
        for job in jobs:
            if job.key not in self._done:
                await self._dispatcher.submit(job)

    def _job(self, phase: str, step: int, task_id: str, sample: int, group_size: int) -> Job:
        key = JobKey(phase=phase, step=step, task_id=task_id, sample=sample)
        weight = 0 if self._tasks[task_id].sandbox is None else 1
        return Job(key=key, seed=job_seed(self._settings.seed, key), weight=weight, group_size=group_size)

    async def _step(self, step: int) -> None:
        self._tell("rollouts")
        async with self._advanced:
            await self._advanced.wait_for(lambda: step in self._steps)
        rollouts = await self._arrivals.take(self._steps[step].planned)
        self._store.append(BatchTaken(step=step, jobs=tuple(rollout.job.key for rollout in rollouts)))
        await self._store.flush()
        self._tell("update")
        await self._update(step, self._groups(rollouts), is_new=True)
        await self._evaluate_if_due()

    # ---------------------------------------------------------------- learning

    async def _update(self, step: int, groups: Sequence[Group], *, is_new: bool) -> None:
        settings = self._settings
        learnt_from = _shuffled(groups, settings.seed, step) if settings.shuffle_rewards else groups
        batch = make_batch(
            learnt_from, settings.estimator, max_tokens=settings.max_sample_tokens, solved_at=settings.solved_at
        )
        result = await self._learner.update(batch)
        self._note(groups)
        self._metrics = {**batch.metrics, **result.metrics}
        if is_new:
            self._store.append(StepDone(step=step, version=result.version, metrics=self._metrics))
            await self._store.flush()
        if result.version % settings.checkpoint_every == 0 or result.version == settings.steps:
            await self.save()
        async with self._advanced:
            self._advanced.notify_all()

    async def save(self) -> None:
        """A checkpoint of the learner as it is."""
        path = self._checkpoints.path(self._learner.version)
        if not path.exists():
            self._tell("checkpoint")
            await self._learner.save(path)
            self._checkpoints.prune()

    def _note(self, groups: Sequence[Group]) -> None:
        for group in groups:
            self._feed.note(group.task_id, _rewards(group.rollouts))

    def _groups(self, rollouts: Sequence[Rollout]) -> list[Group]:
        by_task: dict[str, list[Rollout]] = {}
        for rollout in sorted(rollouts, key=lambda rollout: rollout.job.key):
            by_task.setdefault(rollout.job.key.task_id, []).append(rollout)
        return [
            Group(phase=TRAIN, step=members[0].job.key.step, task_id=task_id, rollouts=tuple(members))
            for task_id, members in by_task.items()
        ]

    # ---------------------------------------------------------------- evaluation

    async def _evaluate_if_due(self) -> None:
        version, settings = self._learner.version, self._settings
        every = settings.eval_every or settings.steps
        is_due = version % every == 0 or version == settings.steps
        if is_due and self._held_out and version not in self.success:
            self._tell("evaluation")
            await self._evaluate(version)

    async def _evaluate(self, version: int) -> None:
        jobs = [
            self._job(HELD_OUT, version, task.id, sample, self._settings.eval_samples)
            for sample in range(self._settings.eval_samples)
            for task in self._held_out
        ]
        await self._submit(jobs, version)
        rollouts = await self._arrivals.take([job.key for job in jobs])
        rewards = _rewards(rollouts)
        if not rewards:
            raise ConfigError("no held-out rollout has a verdict: see what slipstream show says of them, and mend it")
        solved = [float(reward >= self._settings.solved_at) for reward in rewards]
        self.success[version] = statistics.fmean(solved)
        metrics = {
            "success": self.success[version],
            "reward": statistics.fmean(rewards),
            "rollouts": float(len(rewards)),
        }
        self._store.append(Measured(step=version, kind=HELD_OUT, metrics=metrics))
        await self._store.flush()
        self._tell("evaluated")

    def _tell(self, doing: str) -> None:
        self._on_progress(
            TrainProgress(
                version=self._learner.version,
                steps=self._settings.steps,
                doing=doing,
                view=self._dispatcher.view(),
                metrics=self._metrics,
                held_out=dict(self.success),
            )
        )


def _tasks_of(keys: Sequence[JobKey]) -> list[str]:
    return list(dict.fromkeys(key.task_id for key in keys))


def _rewards(rollouts: Sequence[Rollout]) -> list[float]:
    return [rollout.verdict.reward for rollout in rollouts if rollout.verdict is not None]


def _shuffled(groups: Sequence[Group], seed: int, step: int) -> list[Group]:
    """The same rollouts, with the verdicts of those that have one dealt anew among them."""
    verdicts = [rollout.verdict for group in groups for rollout in group.rollouts if rollout.verdict is not None]
    random.Random(f"shuffled rewards {seed} {step}").shuffle(verdicts)
    dealt = iter(verdicts)

    def with_verdict(rollout: Rollout) -> Rollout:
        return rollout if rollout.verdict is None else replace(rollout, verdict=next(dealt))

    return [replace(group, rollouts=tuple(map(with_verdict, group.rollouts))) for group in groups]
