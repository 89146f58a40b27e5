"""The policy of a training run: its model folder, its learner, its warm start.

The model's folder is named by the settings, or made by a function of the recipe into the run's own folder.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.aio import task_group
from slipstream.config import checked_arguments
from slipstream.errors import ConfigError
from slipstream.names import load_object, user_code
from slipstream.settings import TrainConfig
from slipstream.settings.prompt import folder_prompt, read_folder_prompt, write_folder_prompt
from slipstream.training.learner import PolicyLearner
from slipstream.wiring import make_renderer, model_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyModel:
    learner: PolicyLearner
    settings: TrainConfig
    """With the model's folder in its place."""
    folder: Path
    """Of the model, as it was before the run."""


def make_policy_folder(config: TrainConfig, run_folder: Path, on_word: Callable[[str], None]) -> None:
    """Make the model, if the recipe makes one and has not yet."""
    folder = run_folder / "model"
    if not config.model.make or folder.exists():
        return
    make: Any = load_object(config.model.make, "model.make")
    on_word("making the model")
    partial = run_folder / "model.partial"
    with user_code(f"model.make {config.model.make}"):
        make(partial, seed=config.seed)
    for path in (*partial.rglob("*"), partial):
        _sync(path)
    partial.rename(folder)
    _sync(run_folder)


def _sync(path: Path) -> None:
    """Give a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@asynccontextmanager
async def open_policy(config: TrainConfig, run_folder: Path) -> AsyncIterator[PolicyModel]:
    """The learner, and what samples from it, over the model as it is before training."""
    if config.model.make:
        config = replace(config, model=replace(config.model, folder=str(run_folder / "model")))
    engine, learning = config.model.engine, replace(config.learner, temperature=config.model.temperature)
    if config.deterministic:
        # Sums over several threads may be taken in another order when the machine is busy.
        engine, learning = replace(engine, deterministic=True, num_threads=1), replace(learning, num_threads=1)
    config = replace(config, model=replace(config.model, engine=engine), learner=learning)
    folder = model_folder(config.model)
    async with _open_tinker(config) if config.bridge == "tinker" else _open_local(config, folder) as learner:
        yield PolicyModel(learner=learner, settings=config, folder=folder)


@asynccontextmanager
async def _open_local(config: TrainConfig, folder: Path) -> AsyncIterator[PolicyLearner]:
    try:
        from slipstream.bridges.local import open_local
    except ImportError as raised:
        raise ConfigError(
            f"training here needs torch and transformers ({raised}): pip install 'slipstream[local]'"
        ) from raised
    learner = await open_local(folder, config.model, config.learner, seed=config.seed)
    try:
        yield learner
    finally:
        await learner.aclose()


@asynccontextmanager
async def _open_tinker(config: TrainConfig) -> AsyncIterator[PolicyLearner]:
    """If the server is lost, whatever goes on inside is cancelled, and BridgeError comes out."""
    from slipstream.bridges.tinker.opening import open_tinker

    learner = await open_tinker(config, encode=make_renderer(config.model).encode_text)
    try:
        async with task_group() as group:
            watching = group.create_task(learner.watch())
            try:
                yield learner
            finally:
                watching.cancel()
    finally:
        await learner.aclose()


async def export_trained(policy: PolicyModel, folder: Path) -> Path:
    """The policy as it is, as a model folder that carries the prompt settings it was trained with. What an earlier
    session exported there is replaced if it is of an earlier version, or not whole."""
    before = read_folder_prompt(folder)
    if before is not None and before.version == policy.learner.version:
        return folder
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    await policy.learner.export(folder)
    settings = policy.settings
    family = make_renderer(settings.model).family
    carried = folder_prompt(settings, policy.folder, family=family, version=policy.learner.version)
    write_folder_prompt(folder, carried)  # last: without it the export is not whole
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmProgress:
    """Where a warm start stands."""

    step: int
    steps: int
    loss: float
    """Of the last step, in nats a token."""
    seconds_left: float | None
    """At the pace of this session; None before its second step."""


OnWarm = Callable[[WarmProgress], None]


async def warm_up(
    policy: PolicyModel,
    config: TrainConfig,
    *,
    keep: Path,
    num_epochs: int | None = None,
    on_word: Callable[[str], None],
    on_warm: OnWarm = lambda progress: None,
) -> Mapping[str, float]:
    """Imitate the recipe's demonstrations, for the settings' epochs or for `num_epochs`. What an earlier session kept
    in the folder `keep` is gone on with."""
    settings = config.warm_start
    make: Any = load_object(settings.source, "warm_start.source")
    arguments = checked_arguments(make, settings.args, "warm_start.args")
    on_word("making demonstrations")
    with user_code(f"warm_start.source {settings.source}"):
        made: Sequence[Any] = await asyncio.to_thread(make, policy.folder, seed=config.seed, **arguments)
    on_word(f"warm start on {len(made)} demonstrations")
    learning = replace(settings.learning, seed=config.seed, num_epochs=num_epochs or settings.learning.num_epochs)
    metrics = await policy.learner.warm_start(made, learning, on_step=_paced(on_warm), keep=keep)
    return {**metrics, "seconds": metrics["warm/seconds"]}


def _paced(on_warm: OnWarm) -> Callable[[int, int, float], None]:
    """Tells how long the rest takes, by how long the steps of this session took."""
    first: tuple[int, float] | None = None

    def on_step(step: int, steps: int, loss: float) -> None:
        nonlocal first
        now_s = time.monotonic()
        if first is None:
            first = step, now_s
        first_step, first_s = first
        left_s = (now_s - first_s) / (step - first_step) * (steps - step) if step > first_step else None
        on_warm(WarmProgress(step=step, steps=steps, loss=loss, seconds_left=left_s))

    return on_step
