"""The policy of a training run: its model folder, its learner, its warm start.

The model's folder is named by the settings, or made by a function of the recipe into the run's own folder.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.aio import task_group
from slipstream.atomic import replace_folder, scratch_folder, sync
from slipstream.bridges.local_process import open_apart
from slipstream.config import checked_arguments
from slipstream.errors import ConfigError
from slipstream.names import load_object, user_code
from slipstream.settings import TrainConfig
from slipstream.settings.prompt import folder_prompt, read_folder_prompt, write_folder_prompt
from slipstream.training.learner import PolicyLearner
from slipstream.wiring.models import make_renderer, model_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyModel:
    learner: PolicyLearner
    settings: TrainConfig
    """With the model's folder filled in."""
    folder: Path
    """Of the model before training."""


def make_policy_folder(config: TrainConfig, run_folder: Path, on_status: Callable[[str], None]) -> None:
    """Make the model, if the recipe makes one and it is not there yet."""
    folder = run_folder / "model"
    if not config.model.make or folder.exists():
        return
    make: Any = load_object(config.model.make, "model.make")
    on_status("making the model")
    with scratch_folder(folder) as scratch:
        made = scratch / "model"
        with user_code(f"model.make {config.model.make}"):
            make(made, seed=config.seed)
        for path in made.rglob("*"):
            sync(path)
        replace_folder(made, folder)


@asynccontextmanager
async def open_policy(config: TrainConfig, run_folder: Path) -> AsyncIterator[PolicyModel]:
    """The learner and its sampler, over the model as it is before training."""
    if config.model.make:
        config = replace(config, model=replace(config.model, folder=str(run_folder / "model")))
    engine, learning = config.model.engine, replace(config.learner, temperature=config.model.temperature)
    if config.deterministic:
        # With several threads the order of sums depends on how busy the machine is.
        engine, learning = replace(engine, deterministic=True, num_threads=1), replace(learning, num_threads=1)
    config = replace(config, model=replace(config.model, engine=engine), learner=learning)
    folder = model_folder(config.model)
    async with _open_tinker(config) if config.bridge == "tinker" else _open_local(config, folder) as learner:
        yield PolicyModel(learner=learner, settings=config, folder=folder)


@asynccontextmanager
async def _open_local(config: TrainConfig, folder: Path) -> AsyncIterator[PolicyLearner]:
    if config.model.engine.process == "own":
        async with open_apart(folder, config.model, config.learner, seed=config.seed) as apart:
            yield apart
        return
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
    """If the server is lost, the body is cancelled, and BridgeError is raised."""
    from slipstream.bridges.tinker.open import open_tinker

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
    """Write the policy as a model folder that carries the prompt settings it was trained with. An earlier session's
    export there is replaced if it is of an earlier version, or incomplete."""
    before = read_folder_prompt(folder)
    if before is not None and before.version == policy.learner.version:
        return folder
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    await policy.learner.export(folder)
    settings = policy.settings
    family = make_renderer(settings.model).family
    carried = folder_prompt(settings, policy.folder, family=family, version=policy.learner.version)
    write_folder_prompt(folder, carried)  # last: without it the export is incomplete
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmProgress:
    """Where a warm start stands."""

    step: int
    steps: int
    loss: float
    """Of the last step, in nats a token."""
    seconds_left: float | None
    """At this session's pace; None before its second step."""


OnWarm = Callable[[WarmProgress], None]


async def warm_up(
    policy: PolicyModel,
    config: TrainConfig,
    *,
    keep: Path,
    num_epochs: int | None = None,
    on_status: Callable[[str], None],
    on_warm: OnWarm = lambda progress: None,
) -> Mapping[str, float]:
    """Imitate the recipe's demonstrations, for the settings' epochs or for `num_epochs`. What an earlier session saved
    in the folder `keep` is resumed."""
    settings = config.warm_start
    make: Any = load_object(settings.source, "warm_start.source")
    arguments = checked_arguments(make, settings.args, "warm_start.args")
    on_status("making demonstrations")
    with user_code(f"warm_start.source {settings.source}"):
        made: Sequence[Any] = await asyncio.to_thread(make, policy.folder, seed=config.seed, **arguments)
    on_status(f"warm start on {len(made)} demonstrations")
    learning = replace(settings.learning, seed=config.seed, num_epochs=num_epochs or settings.learning.num_epochs)
    metrics = await policy.learner.warm_start(made, learning, on_step=_paced(on_warm), keep=keep)
    return {**metrics, "seconds": metrics["warm/seconds"]}


def _paced(on_warm: OnWarm) -> Callable[[int, int, float], None]:
    """`on_warm` with the time left, estimated from the steps of this session."""
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
