"""The training loop: rollouts, a batch, an update, and again.

Input: a learner, a dispatcher, a run store, tasks. Output: a trained learner; and, in the store, which rollouts made
which batch, and the metrics of each step.
Invariants: the batch of step s is made of exactly the jobs planned for it, in the order of their keys. A plan is
written before its jobs are submitted, a batch before the learner sees it, so nothing is lost and nothing is trained on
twice, whenever the process dies. With staleness k the jobs of a step are submitted once the policy is at most k
versions behind the one that the step will update; with 0 everything is on policy.

The rules of `dispatch.groups` relax the first sentence, in ways that plans and batches record. What is planned and not
in the batch was left out by over-sampling or replacement; or, with `carry`, is in the next batch. A plan grows by the
groups that replace those without signal, and is written again before they are submitted.
A step of which no rollout has a verdict ends the run, and is planned again when it is resumed: with the same tasks and
other samples. The first ones stay on record, in no plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from slipstream.aio import task_group
from slipstream.batch.advantages import Estimator, deal_anew
from slipstream.batch.rows import make_batch
from slipstream.dispatch.base import DispatchView
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.errors import ConfigError
from slipstream.feed import Feed
from slipstream.record import StepRecord
from slipstream.seams import BatchTaken, Journal, LearnerWork, LearnerWorked, Measured, StepDone, StepPlanned
from slipstream.tasks.jobs import make_job
from slipstream.training.arrivals import Arrivals
from slipstream.training.checkpoints import Checkpoints
from slipstream.training.grouping import TRAIN, GroupRules, by_task
from slipstream.training.held_out import HELD_OUT, held_out_figures, success_by_set
from slipstream.training.learner import Learner
from slipstream.training.signal import WARN_AFTER, advice, num_flat_at_end
from slipstream.training.ungraded import check_graded, keys_to_grade, only_one_task_timed_out, replanned
from slipstream.types import Group, Job, JobKey, Rollout, Task


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
    """Steps between evaluations on the held-out tasks; 0: only at the beginning and the end."""
    eval_samples: int = 1
    checkpoint_every: int = 1
    oversample: int = 0
    """Rollouts of each task on top of `samples`: the surplus is cancelled,"""
    carry: bool = False
    """or counts for the next step."""
    replace_flat: int = 0
    """Groups of a step that may be replaced because their rewards are all equal."""
    shuffle_rewards: bool = False
    """A control: rewards are shuffled among the rollouts of a batch, so there is nothing to learn."""
    sets: tuple[str, ...] = ()
    """Of a mixture: each has figures of its own."""


class TrainStore(Journal, Protocol):
    """The journal of a training run, which can also be read."""

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
    view: DispatchView
    metrics: Mapping[str, float]
    """Of the last step."""
    held_out: Mapping[int, float]
    """Success on the held-out tasks, by version."""
    held_out_sets: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """The same for each set of a mixture."""


class _Stopped(Exception):
    """Raised to leave the loop between two steps; what is under way is cancelled, and done again on resume."""


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
        on_figures: Callable[[StepDone | Measured], None] = lambda figures: None,
        on_status: Callable[[str], None] = lambda status: None,
        times: Callable[[], Measured] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """`should_stop` is asked before every step; if true, `run` ends with a checkpoint of what was learnt so far,
        and can be resumed. `on_figures` gets the figures of each step and evaluation, once they are in the store. What
        `times` returns is stored with them, and with the learner's work, so that a kill does not lose it. `on_status`
        gets messages for the user."""
        self._settings = settings
        self._learner = learner
        self._dispatcher = dispatcher
        self._store = store
        self._feed = feed
        self._tasks = tasks
        self._held_out = held_out
        self._checkpoints = checkpoints
        self._on_progress = on_progress
        self._on_figures = on_figures
        self._on_status = on_status
        self._times = times
        self._should_stop = should_stop
        self._arrivals = Arrivals()
        self._advanced = asyncio.Condition()
        self._steps = {record.step: record for record in store.steps()}
        self._done = store.done_keys()
        self._rules = GroupRules(
            num_groups=feed.num_per_step,
            samples=settings.samples,
            oversample=settings.oversample,
            carry=settings.carry,
            replace_flat=settings.replace_flat,
        )
        self._without_fresh: set[int] = set()
        """Steps for which the feed has no replacements left."""
        self._metrics: Mapping[str, float] = {}
        self._told: TrainProgress | None = None
        self.success: dict[int, float] = {
            step: metrics["success"] for (step, kind), metrics in store.measured().items() if kind == HELD_OUT
        }
        """On the held-out tasks, by version."""
        self.set_success = success_by_set(store.measured())

    async def run(self) -> None:
        """Train from where the learner and the store are to the last step."""
        recorded = [step + 1 for step, record in self._steps.items() if record.taken is not None]
        if (reached := max([self._learner.version, *recorded])) > (steps := self._settings.steps):
            raise ConfigError.setting(
                "steps",
                steps,
                f"the run has the batches of {reached} steps already: give that or more",
                f"steps={reached}",
            )
        await self._catch_up()
        try:
            async with self._dispatcher, task_group() as group:
                group.create_task(self._route())
                group.create_task(self._produce())
                await self._evaluate_if_due()
                while self._learner.version < self._settings.steps:
                    if self._should_stop():
                        raise _Stopped
                    await self._step(self._learner.version)
                self._dispatcher.close()
        except _Stopped:
            await self.save()

    # ---------------------------------------------------------------- making batches

    async def _catch_up(self) -> None:
        """Tell the feed what was given out, and repeat the updates that the checkpoint has not seen."""
        to_give = sorted(self._steps)
        for step in sorted(self._steps):
            while to_give and to_give[0] <= step + self._max_lag:  # in the order of the first session
                self._feed.given(self._task_ids(to_give.pop(0))[: self._rules.num_groups])
            self._feed.given(self._task_ids(step)[self._rules.num_groups :])
            record = self._steps[step]
            if record.taken is None:
                break
            groups = self._groups(step, self._recorded(step))
            self._note_rewards(groups)
            if step < self._learner.version:
                continue
            self._tell(f"step {step} again")
            await self._update(step, groups, is_new=record.version is None)
        for step in to_give:
            self._feed.given(self._task_ids(step))
        for record in [record for record in self._steps.values() if record.taken is None]:
            if self._done.issuperset(record.planned):
                recorded = tuple(self._store.rollouts(False, phase=TRAIN, step=record.step))
                if (again := replanned(record, recorded)) != record.planned:
                    self._write_plan(record.step, again)

    def _task_ids(self, step: int) -> list[str]:
        """Of a step's plan: the feed's own, then the replacements."""
        return list(by_task(self._steps[step].planned))

    @property
    def _max_lag(self) -> int:
        """How many versions behind its update a step may begin: carried rollouts are one version older."""
        return self._settings.staleness - self._settings.carry

    def _recorded(self, step: int) -> dict[JobKey, Rollout]:
        """The rollouts on record of a step's jobs, and of those carried over to it."""
        steps = (step - 1, step) if self._settings.carry else (step,)
        return {rollout.job.key: rollout for each in steps for rollout in self._store.rollouts(phase=TRAIN, step=each)}

    async def _route(self) -> None:
        async for rollout in self._dispatcher.finished():
            await self._arrivals.put([rollout])

    async def _produce(self) -> None:
        """Submit the jobs of every step as soon as it may begin."""
        first = self._learner.version
        await self._submit([self._train_job(key) for key in self._carried(first)], first - 1)
        for step in range(first, self._settings.steps):
            await self._until_version(step - self._max_lag)
            jobs = self._plan(step)
            async with self._advanced:
                self._advanced.notify_all()
            await self._submit(jobs, step)

    async def _until_version(self, version: int) -> None:
        async with self._advanced:
            await self._advanced.wait_for(lambda: self._learner.version >= version)

    def _plan(self, step: int) -> tuple[Job, ...]:
        if step not in self._steps:
            self._plan_tasks(step, self._feed.next_step())
        return tuple(self._train_job(key) for key in self._steps[step].planned)

    def _plan_tasks(self, step: int, task_ids: Sequence[str]) -> tuple[JobKey, ...]:
        """Plan a step with these tasks, in addition to those it has."""
        more = tuple(
            JobKey(phase=TRAIN, step=step, task_id=task_id, sample=sample)
            for task_id in task_ids
            for sample in range(self._rules.num_started)
        )
        before = self._steps[step].planned if step in self._steps else ()
        self._write_plan(step, before + more)
        return more

    def _write_plan(self, step: int, keys: tuple[JobKey, ...]) -> None:
        self._steps[step] = StepRecord(step=step, planned=keys)
        self._store.append(StepPlanned(step=step, jobs=keys))

    def _expect(self, step: int) -> None:
        """Plan the step after the coming update, so that its sandboxes can be started meanwhile. Steps are planned in
        order, so not if the one before still waits for room."""
        if step < self._settings.steps and step - 1 in self._steps:
            self._dispatcher.expect(job for job in self._plan(step) if job.key not in self._done)

    async def _submit(self, jobs: Sequence[Job], step: int) -> None:
        await self._store.flush()
        wanted = {job.key for job in jobs}
        past: list[Rollout] = []
        if not wanted.isdisjoint(self._done):
            past = [each for each in self._store.rollouts(phase=jobs[0].key.phase, step=step) if each.job.key in wanted]
            past.sort(key=_ended_s)
            await self._arrivals.put(past)
        if self._rules.cancels and jobs and jobs[0].key.phase == TRAIN:
            for task_id, members in by_task([job.key for job in jobs]).items():
                so_far = [rollout for rollout in past if rollout.job.key.task_id == task_id]
                self._dispatcher.keep_first(members, self._settings.samples, so_far=so_far)
        for job in jobs:
            if job.key not in self._done:
                await self._dispatcher.submit(job)

    def _train_job(self, key: JobKey) -> Job:
        return self._job(key, self._rules.num_started)

    def _job(self, key: JobKey, group_size: int) -> Job:
        return make_job(self._tasks[key.task_id], key, run_seed=self._settings.seed, group_size=group_size)

    async def _step(self, step: int) -> None:
        self._tell("rollouts")
        async with self._advanced:
            await self._advanced.wait_for(lambda: step in self._steps)
        found, taken = await self._gather(step)
        own = [found[key] for key in self._steps[step].planned if key in found]
        if not only_one_task_timed_out(own):
            check_graded(own, f"step {step}")
        self._steps[step] = replace(self._steps[step], taken=taken)
        self._store.append(BatchTaken(step=step, jobs=taken))
        await self._store.flush()
        groups = self._groups(step, found)
        self._note_rewards(groups)
        self._expect(step + self._max_lag + 1)
        self._tell("update")
        await self._update(step, groups, is_new=True)
        await self._evaluate_if_due()

    async def _gather(self, step: int) -> tuple[dict[JobKey, Rollout], tuple[JobKey, ...]]:
        """Wait for a step's rollouts. Returns all that its groups are made of, and the keys of the batch."""
        carried = self._carried(step)
        is_last = step == self._settings.steps - 1
        while True:
            await self._arrivals.until(
                lambda here: (
                    self._num_to_replace(step) > 0
                    or (
                        all(key in here for key in carried)
                        and self._rules.is_ready(self._steps[step], here, is_last=is_last)
                    )
                )
            )
            num = self._num_to_replace(step)
            if num == 0:
                break
            await self._replace(step, num)
        came = self._arrivals.take_here((*self._steps[step].planned, *carried))
        taken = tuple(sorted(self._rules.learnt_from(self._steps[step], came)))
        earlier = self._store.rollouts(False, phase=TRAIN, step=step - 1) if carried else ()
        found = {rollout.job.key: rollout for rollout in earlier}
        return found | {rollout.job.key: rollout for rollout in came}, taken

    def _carried(self, step: int) -> tuple[JobKey, ...]:
        return self._rules.carried(self._steps.get(step - 1))

    def _num_to_replace(self, step: int) -> int:
        if step in self._without_fresh:
            return 0
        return self._rules.num_to_replace(self._steps[step], self._arrivals.here)

    async def _replace(self, step: int, num: int) -> None:
        """Replace groups without signal by other tasks."""
        planned = self._steps[step].planned
        fresh = self._feed.fresh(num, exclude=by_task(planned))
        if len(fresh) < num:
            self._without_fresh.add(step)
        if fresh:
            more = self._plan_tasks(step, fresh)
            await self._submit([self._train_job(key) for key in more], step)

    # ---------------------------------------------------------------- learning

    async def _update(self, step: int, groups: Sequence[Group], *, is_new: bool) -> None:
        settings = self._settings
        start_s = asyncio.get_running_loop().time()
        learnt_from = _shuffled(groups, settings.seed, step) if settings.shuffle_rewards else groups
        batch = make_batch(
            learnt_from,
            settings.estimator,
            max_tokens=settings.max_sample_tokens,
            solved_at=settings.solved_at,
            version=self._learner.version,
            sets=settings.sets,
        )
        result = await self._learner.update(batch)
        self._record_work(LearnerWork.UPDATE, step, start_s)
        self._metrics = {**batch.metrics, **result.metrics}
        if is_new:
            await self._record(StepDone(step=step, version=result.version, metrics=self._metrics))
            self._warn_if_flat()
        if result.version % settings.checkpoint_every == 0 or result.version == settings.steps:
            await self.save()
        async with self._advanced:
            self._advanced.notify_all()

    def _warn_if_flat(self) -> None:
        """Warn, once, when several steps in a row had nothing to learn from."""
        done = [record.metrics for record in self._store.steps() if record.metrics is not None]
        if (num_flat := num_flat_at_end(done)) == WARN_AFTER:
            self._on_status(advice(self._metrics, num_flat=num_flat, samples=self._settings.samples))

    async def save(self) -> None:
        """Write a checkpoint of the learner as it is."""
        path = self._checkpoints.path(self._learner.version)
        if not path.exists():
            self._tell("checkpoint")
            start_s = asyncio.get_running_loop().time()
            await self._learner.save(path)
            self._record_work(LearnerWork.CHECKPOINT, self._learner.version, start_s)
            self._checkpoints.prune()

    def _record_work(self, work: LearnerWork, step: int, start_s: float) -> None:
        end_s = asyncio.get_running_loop().time()
        self._store.append(LearnerWorked(step=step, work=work, start_s=start_s, end_s=end_s))
        self._record_times()

    def _record_times(self) -> None:
        if self._times is not None:
            self._store.append(self._times())

    def _note_rewards(self, groups: Sequence[Group]) -> None:
        for group in groups:
            self._feed.note(group.task_id, _rewards((*group.rollouts, *group.left_out)))

    def _groups(self, step: int, found: Mapping[JobKey, Rollout]) -> list[Group]:
        return self._rules.groups(self._steps[step], self._steps.get(step - 1), found)

    # ---------------------------------------------------------------- evaluation

    async def _evaluate_if_due(self) -> None:
        version, settings = self._learner.version, self._settings
        every = settings.eval_every or max(1, settings.steps)
        is_due = version % every == 0 or version == settings.steps
        if is_due and self._held_out and version not in self.success:
            self._tell("evaluation")
            await self._evaluate(version)

    async def _evaluate(self, version: int) -> None:
        past = tuple(self._store.rollouts(False, phase=HELD_OUT, step=version))
        keys = keys_to_grade(HELD_OUT, version, [task.id for task in self._held_out], self._settings.eval_samples, past)
        jobs = [self._job(key, self._settings.eval_samples) for key in keys]
        await self._submit(jobs, version)
        rollouts = await self._arrivals.take(keys)
        check_graded(rollouts, f"the held-out tasks at version {version}")
        metrics = held_out_figures(rollouts, solved_at=self._settings.solved_at, sets=self._settings.sets)
        self.success[version] = metrics["success"]
        self.set_success = success_by_set({**self._store.measured(), (version, HELD_OUT): metrics})
        await self._record(Measured(step=version, kind=HELD_OUT, metrics=metrics))
        self._tell("evaluated")

    async def _record(self, figures: StepDone | Measured) -> None:
        self._store.append(figures)
        self._record_times()
        await self._store.flush()
        self._on_figures(figures)

    def _tell(self, doing: str) -> None:
        self._told = TrainProgress(
            version=self._learner.version,
            steps=self._settings.steps,
            doing=doing,
            view=self._dispatcher.view(),
            metrics=self._metrics,
            held_out=dict(self.success),
            held_out_sets=self.set_success,
        )
        self._on_progress(self._told)

    def tell_counts(self) -> None:
        """Tell `on_progress` again, with what is under way now."""
        if self._told is not None:
            self._on_progress(replace(self._told, view=self._dispatcher.view()))


def _ended_s(rollout: Rollout) -> float:
    return max((span.end_s for span in rollout.spans), default=0.0)


def _rewards(rollouts: Sequence[Rollout]) -> list[float]:
    return [rollout.verdict.reward for rollout in rollouts if rollout.verdict is not None]


def _shuffled(groups: Sequence[Group], seed: int, step: int) -> list[Group]:
    """The same rollouts, with their verdicts shuffled among those that have one."""
    verdicts = [rollout.verdict for group in groups for rollout in group.rollouts if rollout.verdict is not None]
    dealt = iter(deal_anew(verdicts, seed=seed, step=step))

    def with_verdict(rollout: Rollout) -> Rollout:
        return rollout if rollout.verdict is None else replace(rollout, verdict=next(dealt))

    return [replace(group, rollouts=tuple(map(with_verdict, group.rollouts))) for group in groups]
