"""The embedded trainer in a process of its own: engine and learner together, as `local` has them in the run's.

Input: what the training loop asks of a PolicyLearner. Output: the same results and errors as of `local`. Weights stay
in that process, or on the device that it shares with the learner's (`learner.process`).
Invariants: if the process ends, the run does, with LearnerError. This module loads no torch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from slipstream.aio import task_group
from slipstream.engine.training.config import LearnerConfig, WarmStartConfig
from slipstream.errors import ConfigError, LearnerError, ModelError
from slipstream.model.process import Hosted, ModelProcess, Tell, open_model_process
from slipstream.settings import ModelConfig
from slipstream.types import Batch, Sample, UpdateResult

if TYPE_CHECKING:
    from slipstream.bridges.local import LocalLearner
    from slipstream.engine.training.thread import OnWarmStep

Work: TypeAlias = tuple[Path, ModelConfig, LearnerConfig, int]
"""The model's folder, its settings, the learner's, and the seed."""


class ApartLearner:
    """A PolicyLearner: a LocalLearner in another process."""

    def __init__(self, process: ModelProcess, hears: _WarmSteps) -> None:
        self.version = 0
        self._process = process
        self._hears = hears

    @property
    def completer(self) -> ModelProcess:
        return self._process

    async def update(self, batch: Batch) -> UpdateResult:
        result: UpdateResult = await self._call("update", batch)
        self.version = result.version
        return result

    async def warm_start(
        self,
        demonstrations: Sequence[Sample],
        config: WarmStartConfig,
        *,
        on_step: OnWarmStep,
        keep: Path | None = None,
    ) -> Mapping[str, float]:
        self._hears.on_step = on_step
        metrics: Mapping[str, float] = await self._call("warm_start", list(demonstrations), config, keep)
        return metrics

    async def save(self, folder: Path) -> None:
        await self._call("save", folder)

    async def load(self, folder: Path) -> None:
        self.version = await self._call("load", folder)

    async def export(self, folder: Path) -> None:
        await self._call("export", folder)

    async def aclose(self) -> None:
        await self._process.aclose()

    async def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return await self._process.call(name, *arguments)
        except ModelError as raised:  # the process has ended
            raise LearnerError(str(raised)) from raised


class _WarmSteps:
    """Whom to tell of the steps of a warm start."""

    def __init__(self) -> None:
        self.on_step: OnWarmStep | None = None

    def __call__(self, step: int, steps: int, loss: float) -> None:
        if self.on_step is not None:
            self.on_step(step, steps, loss)


@asynccontextmanager
async def open_apart(
    folder: Path, model: ModelConfig, config: LearnerConfig, *, seed: int
) -> AsyncIterator[ApartLearner]:
    """If the process ends, the body is cancelled, and LearnerError is raised."""
    hears = _WarmSteps()
    work: Work = (folder, model, config, seed)
    opener = f"{__name__}:{host_local.__name__}"
    async with open_model_process(opener, work, tells={"warm_step": hears}) as process:
        try:
            async with task_group() as group:
                watching = group.create_task(process.watch(), name="watching the engine's process")
                try:
                    yield ApartLearner(process, hears)
                finally:
                    watching.cancel()
        except ModelError as raised:
            raise LearnerError(str(raised)) from raised


# ---------------------------------------------------------------- in that process


@asynccontextmanager
async def host_local(work: Work, tell: Tell) -> AsyncIterator[Hosted]:
    folder, model, config, seed = work
    try:
        from slipstream.bridges.local import open_local
    except ImportError as raised:
        raise ConfigError(
            f"training here needs torch and transformers ({raised}): pip install 'slipstream[local]'"
        ) from raised
    learner = await open_local(folder, model, config, seed=seed)
    try:
        yield Hosted(completer=learner.completer, calls=_calls(learner, tell))
    finally:
        await learner.aclose()


def _calls(learner: LocalLearner, tell: Tell) -> dict[str, Any]:
    async def warm_start(
        demonstrations: Sequence[Sample], config: WarmStartConfig, keep: Path | None
    ) -> Mapping[str, float]:
        def on_step(step: int, steps: int, loss: float) -> None:
            tell("warm_step", step, steps, loss)

        return await learner.warm_start(demonstrations, config, on_step=on_step, keep=keep)

    async def load(folder: Path) -> int:
        await learner.load(folder)
        return learner.version

    return {
        "update": learner.update,
        "warm_start": warm_start,
        "save": learner.save,
        "load": load,
        "export": learner.export,
    }
