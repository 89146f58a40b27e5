"""A training run from its settings: the model made or found, warmed up, trained, measured.

Input: a TrainConfig and a run store. Output: a TrainReport; in the run's folder the checkpoints, the trained model
and the curve. A stopped run is resumed from its last checkpoint.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from slipstream.aio import task_group
from slipstream.batch.advantages import ESTIMATORS
from slipstream.bridges.model_check import check_model
from slipstream.config import to_json
from slipstream.errors import ConfigError
from slipstream.feed import Feed
from slipstream.record import RunStore
from slipstream.seams import Measured
from slipstream.settings import TrainConfig, check_settings
from slipstream.tasks.source import digest_of
from slipstream.training.checkpoints import Checkpoints
from slipstream.training.curve_file import CurveFile
from slipstream.training.disk import check_disk
from slipstream.training.grouping import TRAIN
from slipstream.training.held_out import HELD_OUT
from slipstream.training.loggers import check_tensorboard, figures_log
from slipstream.training.loop import LoopSettings, Trainer, TrainProgress
from slipstream.training.policy import OnWarm, PolicyModel, export_trained, make_policy_folder, open_policy, warm_up
from slipstream.training.signal import is_flat
from slipstream.types import Task
from slipstream.wiring.attempts import check_sandboxes, make_provider
from slipstream.wiring.checks import check_prompts, check_tasks
from slipstream.wiring.models import make_renderer, model_folder
from slipstream.wiring.run import OpenStore, start_run
from slipstream.wiring.task_sets import tasks_of, weights_of

WARM_UP, TIMES = "warm_up", "times"
WARM_FOLDER = "warm_start"
"""In the run's folder: what is kept of a warm start that is under way."""
TELL_EVERY_S = 1.0
OnProgress = Callable[[TrainProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """What a training run will do."""

    config: TrainConfig
    tasks: Mapping[str, Task]
    """To train on, and those held out."""
    train_ids: tuple[str, ...]
    held_out: tuple[Task, ...]
    tasks_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReport:
    steps: int
    seconds: float
    """Of this and all earlier sessions of the run."""
    success: Mapping[int, float]
    """On the held-out tasks, by version."""
    trained: Path
    """The folder of the trained model."""
    curve: Path
    num_flat: int = 0
    """Steps that had nothing to learn from: all their advantages were 0."""
    success_by_set: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """The same for each set of a mixture."""
    success_sft_only: float | None = None
    success_shuffled_reward: float | None = None

    @property
    def success_before(self) -> float | None:
        return self.success.get(0)

    @property
    def success_after(self) -> float | None:
        return self.success.get(self.steps)


def plan_training(config: TrainConfig) -> TrainPlan:
    """Check the settings and load the tasks."""
    check_settings(config)
    if config.tensorboard:
        check_tensorboard()
    tasks = tasks_of(config.tasks)
    held_out: tuple[Task, ...] = ()
    if config.held_out.are_named:
        held_out = tasks_of(config.held_out, key="held_out")
    feed_of(config, [task.id for task in tasks])  # refuses more groups than there are tasks
    check_tasks(config, (*tasks, *held_out), phase=TRAIN)
    if not config.model.make:
        make_renderer(config.model)  # refuses a folder without a model or a tokenizer
        if config.bridge == "local":
            check_model(model_folder(config.model))
        check_prompts(config)
    by_id = {task.id: task for task in tasks}
    shared = [task.id for task in held_out if by_id.get(task.id, task) != task]
    if shared:
        raise ConfigError(f"the held-out task {shared[0]!r} differs from the one to train on: give it another id")
    return TrainPlan(
        config=config,
        tasks={**by_id, **{task.id: task for task in held_out}},
        train_ids=tuple(task.id for task in tasks),
        held_out=held_out,
        tasks_digest=digest_of((*tasks, *held_out)),
    )


async def run_training(
    plan: TrainPlan,
    open_store: OpenStore,
    *,
    on_progress: OnProgress = lambda progress: None,
    on_status: Callable[[str], None] = lambda status: None,
    on_warm: OnWarm = lambda progress: None,
) -> TrainReport:
    """Run `plan` from its beginning, or from where it stopped."""
    listener = Listener(on_progress=on_progress, on_status=on_status, on_warm=on_warm)
    async with open_store() as store:
        report = await _train(plan, store, listener)
    if not plan.config.controls:
        return report
    return await _with_controls(plan, store.folder, report, listener)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Callbacks that follow a run."""

    on_progress: OnProgress
    on_status: Callable[[str], None]
    on_warm: OnWarm


async def _train(plan: TrainPlan, store: RunStore, listener: Listener) -> TrainReport:
    config, folder = plan.config, store.folder
    clock = _RunClock(store)
    checkpoints = Checkpoints.of_run(folder, keep=config.keep_checkpoints)
    if not checkpoints.versions():
        check_sandboxes(make_provider(config.sandbox), plan.tasks)  # before the warm start, which takes long
    make_policy_folder(config, folder, listener.on_status)
    if config.bridge == "local":
        model = folder / "model" if config.model.make else model_folder(config.model)
        check_model(model)
        free_bytes = shutil.disk_usage(folder).free
        listener.on_status(check_disk(config, model, folder, free_bytes=free_bytes))
    async with open_policy(config, folder) as policy:
        await _begin(policy, config, store, checkpoints, clock, listener)
        curve = CurveFile(folder / "curve.svg", config.name)
        watched = replace(listener, on_progress=curve.watching(listener.on_progress))
        trainer = await _loop(plan, store, policy, checkpoints, watched, times=clock.times)
        trained = await export_trained(policy, folder / "trained")
    seconds = clock.seconds
    store.append(clock.times())
    await store.flush()
    curve.draw({"held-out success": trainer.success, **trainer.set_success})
    return TrainReport(
        steps=config.steps,
        seconds=seconds,
        success=dict(trainer.success),
        success_by_set=trainer.set_success,
        trained=trained,
        curve=curve.path,
        num_flat=sum(is_flat(record.metrics) for record in store.steps() if record.metrics is not None),
    )


async def train_from(
    plan: TrainPlan,
    store: RunStore,
    policy: PolicyModel,
    start: Path,
    listener: Listener,
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Train a policy that is open already, from the newest checkpoint of the run, or in a new run from the checkpoint
    `start`. `should_stop`: see Trainer. No model folder is written."""
    checkpoints = Checkpoints.of_run(store.folder, keep=plan.config.keep_checkpoints)
    newest = await checkpoints.load_newest(policy.learner, otherwise=start)
    if newest is not None:
        listener.on_status(f"resuming from version {newest}")
    clock = _RunClock(store)
    await _loop(plan, store, policy, checkpoints, listener, times=clock.times, should_stop=should_stop)


class _RunClock:
    """How long a run has taken, earlier sessions included; of a killed session, up to its last recorded step."""

    def __init__(self, store: RunStore) -> None:
        self._before_s = store.measured().get((0, TIMES), {}).get("seconds", 0.0)
        self._start_s = time.monotonic()

    @property
    def seconds(self) -> float:
        return self._before_s + time.monotonic() - self._start_s

    def times(self) -> Measured:
        return Measured(step=0, kind=TIMES, metrics={"seconds": self.seconds})


async def _begin(
    policy: PolicyModel,
    config: TrainConfig,
    store: RunStore,
    checkpoints: Checkpoints,
    clock: _RunClock,
    listener: Listener,
) -> None:
    """Load the newest undamaged checkpoint; or, in a new run, do the warm start."""
    newest = await checkpoints.load_newest(policy.learner)
    if newest is not None:
        listener.on_status(f"resuming from version {newest}")
        return
    warm_folder = store.folder / WARM_FOLDER
    if config.warm_start.source:
        metrics = await warm_up(
            policy, config, keep=warm_folder, on_status=listener.on_status, on_warm=listener.on_warm
        )
        store.append(Measured(step=0, kind=WARM_UP, metrics=metrics))
        store.append(clock.times())
        await store.flush()
    await policy.learner.save(checkpoints.path(0))
    await asyncio.to_thread(shutil.rmtree, warm_folder, ignore_errors=True)


async def _loop(
    plan: TrainPlan,
    store: RunStore,
    policy: PolicyModel,
    checkpoints: Checkpoints,
    listener: Listener,
    *,
    times: Callable[[], Measured] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Trainer:
    config = plan.config
    async with start_run(
        policy.settings, plan.tasks, lambda: nullcontext(store), model=policy.learner.completer
    ) as run:
        with figures_log(store.folder, store, tensorboard=config.tensorboard) as on_figures:
            trainer = Trainer(
                loop_settings(config),
                learner=policy.learner,
                dispatcher=run.dispatcher,
                store=store,
                feed=feed_of(config, plan.train_ids),
                tasks=plan.tasks,
                held_out=plan.held_out,
                checkpoints=checkpoints,
                on_progress=listener.on_progress,
                on_figures=on_figures,
                on_status=listener.on_status,
                times=times,
                should_stop=should_stop,
            )
            async with task_group() as group:
                telling = group.create_task(_tell_often(trainer.tell_counts), name="telling the display")
                await trainer.run()
                telling.cancel()
    return trainer


def feed_of(config: TrainConfig, task_ids: Sequence[str]) -> Feed:
    return Feed(
        task_ids,
        num_per_step=config.groups,
        seed=config.seed,
        solve_rate=config.solve_rate,
        weights=weights_of(config.tasks),
    )


async def _tell_often(tell: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(TELL_EVERY_S)
        tell()


def loop_settings(config: TrainConfig) -> LoopSettings:
    return LoopSettings(
        steps=config.steps,
        samples=config.samples,
        staleness=config.staleness,
        estimator=ESTIMATORS[config.advantages],
        seed=config.seed,
        solved_at=config.solved_at,
        max_sample_tokens=config.max_sample_tokens,
        eval_every=config.eval_every,
        eval_samples=config.eval_samples,
        checkpoint_every=config.checkpoint_every,
        oversample=config.oversample,
        carry=config.carry,
        replace_flat=config.replace_flat,
        shuffle_rewards=config.shuffle_rewards,
        sets=tuple(dict.fromkeys((*config.tasks.sets, *config.held_out.sets))),
    )


# ---------------------------------------------------------------- controls


async def _with_controls(plan: TrainPlan, folder: Path, report: TrainReport, listener: Listener) -> TrainReport:
    """The controls: the same time and start without reinforcement learning, and with shuffled rewards. Each is a run of
    its own below the run's folder."""
    config = plan.config
    warm_s = RunStore.read(folder).measured().get((0, WARM_UP), {}).get("seconds", 0.0)
    rest_s = max(0.0, report.seconds - warm_s)
    as_long = max(1, round(config.warm_start.learning.num_epochs * rest_s / warm_s)) if warm_s else 0
    listener.on_status(f"control: the warm start continues for as long as training took ({as_long} epochs)")
    sft_only = await _control(
        replace(plan, config=replace(config, steps=0, controls=False)),
        folder,
        "sft_only",
        more_epochs=as_long,
        listener=listener,
    )
    listener.on_status("control: shuffled rewards")
    shuffled = await _control(
        replace(plan, config=replace(config, shuffle_rewards=True, controls=False)),
        folder,
        "shuffled_reward",
        more_epochs=0,
        listener=listener,
    )
    curves = {
        "reinforcement learning": report.success,
        "shuffled rewards": shuffled,
        "warm start continued": {0: sft_only[0], report.steps: sft_only[0]},
    }
    CurveFile(report.curve, config.name).draw(curves)
    return replace(report, success_sft_only=sft_only[0], success_shuffled_reward=shuffled[max(shuffled)])


async def _control(
    plan: TrainPlan,
    folder: Path,
    name: str,
    *,
    more_epochs: int,
    listener: Listener,
) -> Mapping[int, float]:
    """The held-out success of a control, by version."""
    own = folder / "controls" / name
    if RunStore.exists(own):
        past = RunStore.read(own).measured()
        if (plan.config.steps, HELD_OUT) in past:
            return {step: metrics["success"] for (step, kind), metrics in past.items() if kind == HELD_OUT}
    own.mkdir(parents=True, exist_ok=True)
    store = (
        RunStore.open(own)
        if RunStore.exists(own)
        else RunStore.create(own, config={"control": name, "settings": to_json(plan.config)})
    )
    async with store, open_policy(plan.config, folder) as policy:
        checkpoints = Checkpoints.of_run(own, keep=1)
        newest = await checkpoints.load_newest(policy.learner, otherwise=Checkpoints.of_run(folder).path(0))
        if newest is None and more_epochs:
            await warm_up(
                policy,
                plan.config,
                keep=own / WARM_FOLDER,
                num_epochs=more_epochs,
                on_status=listener.on_status,
                on_warm=listener.on_warm,
            )
            await policy.learner.save(checkpoints.path(0))
            await asyncio.to_thread(shutil.rmtree, own / WARM_FOLDER, ignore_errors=True)
        trainer = await _loop(plan, store, policy, checkpoints, listener)
    return dict(trainer.success)
