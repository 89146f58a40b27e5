"""`evaluate` and `train` as functions over objects, and their results.

    report = evaluate(tasks, model="http://localhost:8000/v1", samples=8)
    result = train(tasks, model="Qwen/Qwen3-0.6B", steps=50)

Both start a run in a folder of its own, as the commands do: `slipstream show` reads it, and `slipstream eval --resume`
or `train --resume` finish one that was stopped. The tasks are written into that folder. Where an event loop is already
running, as in a notebook, the run gets a thread and a loop of its own.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar

from slipstream.aio import collecting_rarely
from slipstream.api.models import ModelLike, choose_model
from slipstream.config import apply_overrides, from_json
from slipstream.engine.training.config import WarmStartConfig
from slipstream.errors import ConfigError
from slipstream.evaluation import EvalProgress, EvalReport, plan_evaluation, run_evaluation
from slipstream.names import is_local_name
from slipstream.progress.display import Display, progress_console
from slipstream.progress.evaluation import EvalDisplay
from slipstream.progress.training import TrainDisplay
from slipstream.record import RunReader, RunStore, new_run_folder
from slipstream.record.summary import rollout_row
from slipstream.settings import DemonstrationsConfig, EvalConfig, ModelConfig, TasksConfig, TaskSetConfig, TrainConfig
from slipstream.settings.header import run_header
from slipstream.tasks.jsonl import write_tasks
from slipstream.training.loop import TrainProgress
from slipstream.training.run import TrainReport, plan_training, run_training
from slipstream.types import Json, Rollout, Task
from slipstream.wiring.task_sets import tasks_of

P = ParamSpec("P")
T = TypeVar("T")
Config = TypeVar("Config", EvalConfig, TrainConfig)
TaskSetLike: TypeAlias = Iterable[Task] | str | Path
TasksLike: TypeAlias = TaskSetLike | Mapping[str, TaskSetLike]
log = logging.getLogger(__name__)


class Demonstrations(Protocol):
    """What is to be imitated before training begins: `slipstream.demonstrations(...)`."""

    def as_settings(self, model: ModelConfig, learning: WarmStartConfig) -> DemonstrationsConfig: ...


class Run:
    """A recorded run: `open_run("runs/demo-20261115-174530").rollouts()`."""

    def __init__(self, folder: Path) -> None:
        self.reader = RunReader(folder)

    @property
    def path(self) -> Path:
        return self.reader.folder

    def rollouts(self, *, phase: str | None = None, step: int | None = None) -> list[Rollout]:
        """Every finished rollout, or those of a phase (`eval`, `train`, `held_out`) or step."""
        return list(self.reader.rollouts(phase=phase, step=step))

    def metrics(self) -> list[dict[str, float]]:
        """The figures of every training step, in order."""
        return [{"step": step.step, **step.metrics} for step in self.reader.steps() if step.metrics is not None]

    def rows(self) -> list[dict[str, Json]]:
        """A row for each rollout: what it was, how it ended and what it earned."""
        return [rollout_row(rollout) for rollout in self.reader.rollouts()]

    def to_pandas(self) -> Any:
        """`rows` as a DataFrame."""
        try:
            import pandas  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            raise ConfigError("to_pandas needs pandas: pip install pandas, or use rows()") from None
        return pandas.DataFrame(self.rows())


def open_run(path: str | Path) -> Run:
    """The run in a folder, to be read; it may still be running."""
    return Run(Path(path))


def recorded_settings(run: Run) -> EvalConfig:
    """What an evaluation was run with."""
    header = run.reader.config()
    if not isinstance(header, dict) or header.get("command") != "eval":
        raise ConfigError(
            f"the run {run.path} is not an evaluation: name one that `evaluate` or `slipstream eval` made"
        )
    return from_json(EvalConfig, header.get("settings"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """The result of an evaluation."""

    run: Run
    report: EvalReport

    @property
    def run_path(self) -> Path:
        return self.run.path

    @property
    def mean_reward(self) -> float | None:
        """The mean over tasks of each task's mean; None if nothing has a verdict."""
        return self.report.mean_reward

    @property
    def num_rollouts(self) -> int:
        return self.report.num_rollouts

    def rollouts(self) -> list[Rollout]:
        return self.run.rollouts()

    def to_pandas(self) -> Any:
        return self.run.to_pandas()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """The result of a training run."""

    run: Run
    report: TrainReport

    @property
    def run_path(self) -> Path:
        return self.run.path

    @property
    def model_path(self) -> Path:
        """The folder of the trained model; `evaluate(tasks, model=...)` takes it."""
        return self.report.trained

    @property
    def mean_reward(self) -> float | None:
        """Of the last step's rollouts."""
        steps = self.run.metrics()
        return steps[-1].get("reward/mean") if steps else None

    @property
    def num_rollouts(self) -> int:
        return self.run.reader.counts().rollouts

    def curve(self) -> dict[int, float]:
        """Success on the held-out tasks, by the number of updates made; empty if none are held out."""
        return dict(sorted(self.report.success.items()))

    def rewards(self) -> dict[int, float]:
        """The mean reward of each training step."""
        return {int(step["step"]): step["reward/mean"] for step in self.run.metrics() if "reward/mean" in step}

    def rollouts(self) -> list[Rollout]:
        return self.run.rollouts()

    def to_pandas(self) -> Any:
        return self.run.to_pandas()


async def evaluate_async(
    tasks: TasksLike,
    *,
    model: ModelLike | None = None,
    samples: int | None = None,
    config: EvalConfig | None = None,
    settings: Mapping[str, Any] | None = None,
    runs: str | Path = "runs",
    quiet: bool = False,
    on_progress: Callable[[EvalProgress], None] | None = None,
) -> EvalResult:
    """Run `samples` rollouts of every task and report on them.

    `tasks` are Task values, or a source as the command line takes it, or several sets of either by name. `model` is a
    URL, a folder, a name, a Completer or a script. `config` has everything else, and `settings` changes it by dotted
    names, as on the command line.
    Progress goes to standard error unless `quiet`, and to `on_progress`.
    """
    display = EvalDisplay(progress_console(quiet=quiet))
    base = _changed(config or EvalConfig(name="eval", tasks=TasksConfig()), settings)
    chosen = choose_model(model if model is not None else base.model, base.model, quiet=quiet)
    base = replace(base, model=chosen.settings, samples=base.samples if samples is None else samples)
    with _new_folder(Path(runs), base.name) as folder:
        base = replace(base, tasks=_task_source(tasks, folder / "tasks.jsonl", base.tasks))
        plan = plan_evaluation(base)
        plan = replace(plan, config=_in_process(plan.config, plan.tasks))
        with display:
            report = await run_evaluation(
                plan,
                lambda: _new_store(folder, plan.config, plan.tasks_digest, display),
                past=None,
                on_progress=_both(display.show, on_progress),
                model=chosen.model,
            )
    return EvalResult(run=Run(folder), report=report)


async def train_async(
    tasks: TasksLike,
    *,
    model: ModelLike | None = None,
    held_out: TasksLike | None = None,
    steps: int | None = None,
    demonstrations: Demonstrations | None = None,
    config: TrainConfig | None = None,
    settings: Mapping[str, Any] | None = None,
    runs: str | Path = "runs",
    quiet: bool = False,
    on_progress: Callable[[TrainProgress], None] | None = None,
    on_status: Callable[[str], None] | None = None,
) -> TrainResult:
    """Train a model on tasks by reinforcement learning.

    `held_out` tasks are never trained on; success on them is measured before, after and every `eval_every` steps.
    The rest is as for `evaluate`.
    """
    display = TrainDisplay(progress_console(quiet=quiet))
    base = _changed(config or TrainConfig(name="train", tasks=TasksConfig()), settings)
    if model is not None:
        chosen = choose_model(model, base.model, quiet=quiet)
        if chosen.model is not None:
            raise ConfigError(f"a {type(chosen.model).__name__} cannot be trained: give a model folder or a name")
        base = replace(base, model=chosen.settings)
    base = replace(base, steps=base.steps if steps is None else steps)
    if demonstrations is not None:
        base = replace(base, warm_start=demonstrations.as_settings(base.model, base.warm_start.learning))
    with _new_folder(Path(runs), base.name) as folder:
        base = replace(base, tasks=_task_source(tasks, folder / "tasks.jsonl", base.tasks))
        if held_out is not None:
            base = replace(base, held_out=_task_source(held_out, folder / "held_out.jsonl", base.held_out))
        if "groups" not in (settings or {}) and config is None:
            base = replace(base, groups=min(base.groups, len(tasks_of(base.tasks))))
        plan = plan_training(base)
        plan = replace(plan, config=_in_process(plan.config, plan.tasks))
        with display:
            report = await run_training(
                plan,
                lambda: _new_store(folder, plan.config, plan.tasks_digest, display),
                on_progress=_both(display.show, on_progress),
                on_status=_both(display.say, on_status),
                on_warm=display.show_warm,
            )
    return TrainResult(run=Run(folder), report=report)


def _both(first: Callable[[T], None], second: Callable[[T], None] | None) -> Callable[[T], None]:
    if second is None:
        return first

    def tell(progress: T) -> None:
        first(progress)
        second(progress)

    return tell


def _new_store(folder: Path, config: EvalConfig | TrainConfig, tasks_digest: str, display: Display) -> RunStore:
    store = RunStore.create(folder, config=run_header(config, tasks_digest))
    display.say(f"run: {folder}")
    return store


def _sync(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """The same, for callers who do not await."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_to_end(function(*args, **kwargs))

    run.__name__ = run.__qualname__ = function.__name__.removesuffix("_async")
    return run


evaluate = _sync(evaluate_async)
train = _sync(train_async)


def run_to_end(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run; beside a loop that is already running, as in a notebook, in a thread of its own."""
    with collecting_rarely():
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(main)
        return _run_in_thread(main)


def _run_in_thread(main: Coroutine[Any, Any, T]) -> T:
    done: Future[T] = Future()
    stop: list[Callable[[], object]] = []

    async def stoppable() -> T:
        own, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert own is not None
        stop.append(lambda: loop.call_soon_threadsafe(own.cancel))
        return await main

    def work() -> None:
        try:
            done.set_result(asyncio.run(stoppable()))
        except BaseException as raised:
            done.set_exception(raised)

    thread = threading.Thread(target=work, name="slipstream")
    thread.start()
    try:
        return done.result()
    except KeyboardInterrupt:
        for end in stop:
            end()
        thread.join()
        raise


def _changed(config: Config, settings: Mapping[str, Any] | None) -> Config:
    """`config` with settings by their dotted names, as on the command line: `{"dispatch.policy": "adaptive"}`."""
    return apply_overrides(config, (f"{key}={_text(value)}" for key, value in (settings or {}).items()))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _task_source(tasks: TasksLike, path: Path, base: TasksConfig) -> TasksConfig:
    """Where a run finds its tasks; those that are given as objects are written to `path`."""
    if isinstance(tasks, Mapping):
        return TasksConfig(
            sets={
                name: _set_source(each, path.with_name(f"{path.stem}-{name}.jsonl"), base.sets.get(name))
                for name, each in tasks.items()
            }
        )
    if isinstance(tasks, str | Path):
        return replace(base, source=str(tasks), sets={})
    return TasksConfig(source=_written(tasks, path))


def _set_source(tasks: TaskSetLike, path: Path, base: TaskSetConfig | None) -> TaskSetConfig:
    base = base or TaskSetConfig()
    if isinstance(tasks, str | Path):
        return replace(base, source=str(tasks))
    return TaskSetConfig(source=_written(tasks, path), weight=base.weight)


def _written(tasks: Iterable[Task], path: Path) -> str:
    listed = list(tasks)
    for task in listed:
        if not isinstance(task, Task):
            raise ConfigError(f"there is a {type(task).__name__} among the tasks: give Task values")
    write_tasks(path, listed)
    return str(path.resolve())


def _in_process(config: Config, tasks: Mapping[str, Task]) -> Config:
    """Without helper processes where they could not find what the tasks name."""
    if not config.dispatch.processes:
        return config
    named = {str(task.grading.spec.get("function", "")) for task in tasks.values()}
    named.update(*(task.brief.tools for task in tasks.values()))
    local = sorted(name for name in named if is_local_name(name))
    if not local:
        return config
    log.warning(
        "%s is defined in a notebook, a script or a function, where helper processes cannot find it: everything runs "
        "in this process (move it to a module to use dispatch.processes)",
        local[0],
    )
    return replace(config, dispatch=replace(config.dispatch, processes=0))


@contextmanager
def _new_folder(runs: Path, name: str) -> Iterator[Path]:
    """A run's folder, which is removed again if no store is created in it."""
    folder = new_run_folder(runs, name)
    try:
        yield folder
    finally:
        if not RunStore.exists(folder):
            shutil.rmtree(folder, ignore_errors=True)
