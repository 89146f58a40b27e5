"""For trainers that drive: they ask for rollouts of their prompts and make their updates themselves.

Input: the settings of a recipe, the trainer's client as a Completer, and, batch by batch, which tasks and how many
rollouts of each. Output: the rollouts, in the order of the requests; and a run store with all of them. `outgoing` says
what the trainer gets from them. Invariants: one dispatcher holds the limits, however many batches are under way. When a
batch is cancelled, so are its unfinished rollouts. Each session of a trainer is a run of its own: after a restart the
trainer repeats the steps after its checkpoint, with new rollouts.

    driver = Driver(settings, completer, folder=Path("runs/mine"), encode=tokenizer.encode)
    rollouts = await driver.run([PromptRequest(task_id="t1", num=8)], phase=TRAIN, step=0)
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from slipstream.aio import outlast, task_group
from slipstream.batch.advantages import ESTIMATORS, Estimator
from slipstream.bridges.client import ClientCompleter
from slipstream.config import apply_overrides, to_json
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.errors import BridgeError, ConfigError
from slipstream.hub import find_model
from slipstream.recipes import find_recipe
from slipstream.record import RunStore
from slipstream.seams import Measured
from slipstream.settings import EvalConfig, TrainConfig, check_settings
from slipstream.tasks.jobs import make_job
from slipstream.types import Job, JobKey, Rollout, Task
from slipstream.wiring.checks import check_tasks
from slipstream.wiring.models import make_renderer
from slipstream.wiring.run import start_run
from slipstream.wiring.task_sets import tasks_of

logger = logging.getLogger(__name__)

TRAIN, EVAL = "train", "eval"

PASS_THROUGH = "slipstream"
"""The name under which an estimator that passes our advantages through is registered with a trainer."""

_PROBE_TEXT = "def f(x):\n    return x + 1  # naïve café 你好 🙂 <|im_end|>"
"""Code, accents, other scripts and a special token: tokenizers that agree on it are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest:
    """One prompt of the trainer's: a task, and how many rollouts of it make a group."""

    task_id: str
    num: int


class Driver:
    def __init__(
        self,
        config: TrainConfig,
        completer: ClientCompleter,
        *,
        folder: Path,
        encode: Callable[[str], Sequence[int]] | None = None,
    ) -> None:
        """`folder` holds one run for each session. `encode` is the trainer's tokenizer, which reads special tokens and
        adds none: it is compared with the one that prompts are written with."""
        self.config = config
        self.folder = folder
        self.tasks = load_driven_tasks(config)
        self._renderer = make_renderer(config.model)
        if encode is not None:
            _check_tokenizer(config, self._renderer.encode_text(_PROBE_TEXT).tolist(), list(encode(_PROBE_TEXT)))
        check_tasks(config, self.tasks.values(), phase=TRAIN)
        self.completer = completer
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._dispatcher: Dispatcher | None = None
        self._store: RunStore | None = None
        self._router: asyncio.Task[None] | None = None
        self._waiting: dict[JobKey, asyncio.Future[Rollout]] = {}
        self._num_requested: Counter[tuple[str, int, str]] = Counter()
        """Samples requested so far, by phase, step and task: a task may be asked for twice in a step."""

    @property
    def end_id(self) -> int:
        """The token that ends a reply."""
        return int(self._renderer.stop_ids[0])

    @property
    def estimator(self) -> Estimator:
        """The recipe's, for a trainer that passes advantages through."""
        return ESTIMATORS[self.config.advantages]

    @property
    def run_folder(self) -> Path:
        """This session's run, once it has begun."""
        if self._store is None:
            raise BridgeError("the trainer has not asked for rollouts yet")
        return self._store.folder

    async def run(self, asked: Sequence[PromptRequest], *, phase: str, step: int) -> list[list[Rollout]]:
        """The rollouts of each prompt. Several batches may be under way at once."""
        self._check(asked)
        dispatcher = await self._open()
        groups = [self._jobs(each, phase, step) for each in asked]
        jobs = [job for group in groups for job in group]
        futures = {job.key: asyncio.get_running_loop().create_future() for job in jobs}
        self._waiting |= futures
        try:
            async with task_group() as group:
                group.create_task(_submit(dispatcher, jobs))
                await asyncio.gather(*futures.values())
        except BaseException:
            for key, future in futures.items():
                self._waiting.pop(key, None)
                future.cancel()
                dispatcher.cancel(key, why="the trainer cancelled its batch")
            raise
        return [[futures[job.key].result() for job in jobs] for jobs in groups]

    async def note(self, metrics: Mapping[str, float], *, phase: str, step: int) -> None:
        """Store the figures of a batch."""
        if self._store is not None:
            self._store.append(Measured(step=step, kind=phase, metrics=dict(metrics)))
            await self._store.flush()

    async def aclose(self) -> None:
        """End what is under way and close the store. Closing twice is fine."""
        if self._router is not None:
            self._router.cancel()
            await outlast([self._router])
        await self._stack.aclose()

    async def _open(self) -> Dispatcher:
        """Open on the first batch: only then does a trainer's engine answer."""
        async with self._opening:
            if self._dispatcher is None:
                self._dispatcher = await self._opened()
            return self._dispatcher

    async def _opened(self) -> Dispatcher:
        await self.completer.probe(self._renderer.encode_text("Hello.").tolist())
        header = {"driven": True, "settings": to_json(self.config)}
        deadlines = replace(self.config.dispatch.deadlines, total_s=_LONG_S)  # the trainer decides when the run ends
        settings = replace(
            self.config,
            dispatch=replace(self.config.dispatch, deadlines=deadlines),
            hardware=replace(self.config.hardware, every_s=0.0),
        )
        async with AsyncExitStack() as stack:
            run = await stack.enter_async_context(
                start_run(
                    settings,
                    self.tasks,
                    lambda: RunStore.create(_next_session(self.folder), config=header),
                    model=self.completer,
                    is_proven=True,  # a driven run cannot be resumed, so user code that fails does not end it
                )
            )
            dispatcher = await stack.enter_async_context(run.dispatcher)
            self._stack = stack.pop_all()
        store = run.store
        self._store = store
        self._router = asyncio.create_task(self._route(dispatcher), name="rollouts to the batches that wait for them")
        logger.info("rollouts are recorded in %s", store.folder)
        return dispatcher

    async def _route(self, dispatcher: Dispatcher) -> None:
        try:
            async for rollout in dispatcher.finished():
                future = self._waiting.pop(rollout.job.key, None)
                if future is not None and not future.done():
                    future.set_result(rollout)
        except Exception as raised:  # the run store failed: pass that on to the waiting batches
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(raised)
            self._waiting.clear()

    def _check(self, asked: Sequence[PromptRequest]) -> None:
        if self._router is not None and self._router.done():
            raise BridgeError("the run store cannot be written, so no more rollouts are made: see the first error")
        for each in asked:
            if each.task_id not in self.tasks:
                raise ConfigError(
                    f"the trainer asks for task {each.task_id!r}, which {self.config.tasks.source or 'the mixture'} "
                    "does not have: write its data files again, with the same settings"
                )

    def _jobs(self, asked: PromptRequest, phase: str, step: int) -> list[Job]:
        place = phase, step, asked.task_id
        first = self._num_requested[place]
        self._num_requested[place] += asked.num
        return [self._job(asked.task_id, phase, step, first + number, asked.num) for number in range(asked.num)]

    def _job(self, task_id: str, phase: str, step: int, sample: int, group_size: int) -> Job:
        key = JobKey(phase=phase, step=step, task_id=task_id, sample=sample)
        return make_job(self.tasks[task_id], key, run_seed=self.config.seed, group_size=group_size)


_LONG_S = 10 * 365 * 86_400.0


async def _submit(dispatcher: Dispatcher, jobs: Sequence[Job]) -> None:
    for job in jobs:
        await dispatcher.submit(job)


def _next_session(folder: Path) -> Path:
    """`folder/1`, then `folder/2`, and so on."""
    taken = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()] if folder.is_dir() else []
    return folder / str(max(taken, default=0) + 1)


# ---------------------------------------------------------------- from a recipe


def driven_settings(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    model_folder: str,
    tasks: str | None = None,
    context_tokens: int | None = None,
) -> TrainConfig:
    """A recipe's settings for a trainer that samples and learns itself: its model's folder is the renderer's, unless
    the recipe names one, and its window holds if it is smaller. `tasks` takes the place of the recipe's. A
    recipe of an evaluation works too."""
    config = find_recipe(recipe, to_train=True)
    if isinstance(config, EvalConfig):
        config = TrainConfig(
            name=config.name,
            tasks=config.tasks,
            model=config.model,
            agent=config.agent,
            sandbox=config.sandbox,
            dispatch=config.dispatch,
            samples=max(2, config.samples),
            seed=config.seed,
            solved_at=config.solved_at,
        )
    config = apply_overrides(config, ([f"tasks.source={tasks}"] if tasks else []) + list(overrides))
    model = config.model
    windows = [tokens for tokens in (model.context_tokens, context_tokens) if tokens is not None]
    has_own = model.folder != "bytes"
    model = replace(
        model,
        kind="local",
        make="",
        folder=model.folder if has_own else str(_trainers_folder(model_folder)),
        context_tokens=min(windows, default=None),
    )
    config = replace(config, model=model)
    check_settings(config)
    return config


def _trainers_folder(name: str) -> Path:
    """The folder of the trainer's model: a path, the name of a fetched model, or a name on the Hugging Face hub."""
    try:
        return find_model(name)
    except ConfigError as raised:
        if name.count("/") != 1 or name.startswith(("/", ".")):
            raise
        try:
            from huggingface_hub import snapshot_download

            return Path(snapshot_download(name, allow_patterns=["*.json", "*.jinja"]))
        except Exception as failed:  # no library, no network, no such model, no right to it
            raise ConfigError(f"the tokenizer of {name} cannot be fetched ({failed}): name a folder") from raised


def load_driven_tasks(config: TrainConfig) -> dict[str, Task]:
    """Those to train on, and those held out."""
    held_out = tasks_of(config.held_out, key="held_out") if config.held_out.are_named else ()
    return {task.id: task for task in (*tasks_of(config.tasks), *held_out)}


def write_prompts(config: TrainConfig, folder: Path) -> tuple[Path, Path | None]:
    """The data files of a trainer: a row for each task, with its brief and its id, and nothing that grades it.

    verl and SkyRL-train both read them. Returns the file to train on and the one to evaluate on, if there is one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    train = _write_rows(config, folder / "train.jsonl", held_out=False)
    return train, _write_rows(config, folder / "eval.jsonl", held_out=True) if config.held_out.are_named else None


def _write_rows(config: TrainConfig, path: Path, *, held_out: bool) -> Path:
    source = config.held_out if held_out else config.tasks
    rows = [
        {
            "data_source": "slipstream",
            "prompt": [{"role": "user", "content": task.brief.instruction}],
            "env_class": "slipstream",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "task_id": task.id,
            "extra_info": {"index": index, "task_id": task.id},
        }
        for index, task in enumerate(tasks_of(source))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# ---------------------------------------------------------------- checks


def check_version(package: str, wanted: str) -> None:
    """Refuse any version of a trainer except the one its bridge was tested with."""
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise ConfigError(f"{package} is not installed: pip install {package}=={wanted}") from None
    if found != wanted:
        raise ConfigError(f"{package} {found} is installed, and this bridge is for {wanted}: install that version")


def _check_tokenizer(config: TrainConfig, ours: list[int], theirs: list[int]) -> None:
    if ours != theirs:
        raise ConfigError(
            f"the tokenizer of model.folder={config.model.folder} is not the trainer's: {_PROBE_TEXT!r} is "
            f"{ours[:8]}... in the one and {theirs[:8]}... in the other; leave model.folder out, or name the "
            "trainer's model"
        )
