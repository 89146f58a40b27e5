"""The embedded trainer: the torch engine samples, the torch learner learns.

Invariants: `update` returns when the engine samples from the new weights. The learner works in a thread, or in a
process of its own, so rollouts continue meanwhile; the engine changes weights between two of its steps. A policy's
version counts its batches: one with nothing to learn from counts too, and a warm start does not. It is that of the
engine's weights: if new ones do not get there, LearnerError is raised and the version stays.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.atomic import write_synced
from slipstream.engine.inference.engine import TorchEngine
from slipstream.engine.model.atomic_folder import whole_folder
from slipstream.engine.model.device import find_device
from slipstream.engine.training.config import LearnerConfig, WarmStartConfig
from slipstream.engine.training.learner import TorchLearner
from slipstream.engine.training.thread import LearnerHost, LearnerThread, OnWarmStep, ignore_step, in_thread
from slipstream.errors import LearnerError, ModelError, boundary
from slipstream.settings import ModelConfig
from slipstream.types import Batch, Sample, UpdateResult

if TYPE_CHECKING:
    from slipstream.engine.training.process import LearnerProcess


class LocalLearner:
    def __init__(self, host: LearnerHost, engine: TorchEngine) -> None:
        self.version = 0
        self._host = host
        self._engine = engine

    @property
    def completer(self) -> TorchEngine:
        return self._engine

    async def update(self, batch: Batch) -> UpdateResult:
        result = await self._host.run(TorchLearner.update, batch)
        await self._publish(self.version + 1)
        return replace(result, version=self.version)

    async def _publish(self, version: int) -> None:
        """Copy the learner's weights to the engine, as this version."""
        problem = f"the weights of version {version} did not reach the engine"
        try:
            with boundary(LearnerError, problem):
                weights = await self._host.weights()
                await asyncio.to_thread(self._engine.update_weights, weights, version=version)
        except ModelError as raised:
            raise LearnerError(f"{problem}: {raised}") from raised
        self.version = version

    async def warm_start(
        self,
        demonstrations: Sequence[Sample],
        config: WarmStartConfig,
        *,
        on_step: OnWarmStep = ignore_step,
        keep: Path | None = None,
    ) -> Mapping[str, float]:
        """Imitate `demonstrations`; the version stays as it is.

        If cancelled it ends after the optimiser step under way, and the weights are as they were. Its progress is in
        the folder `keep`, where the next one resumes.
        """
        metrics = await self._host.warm_start(demonstrations, config, on_step=on_step, keep=keep)
        await self._publish(self.version)
        return metrics

    async def save(self, folder: Path) -> None:
        """Raises LearnerError if the disk refuses; then nothing is at `folder`."""
        beside = folder.with_name(f".{folder.name}.learner")
        try:
            await self._host.run(TorchLearner.save, beside)
            await in_thread(partial(_put_together, folder, beside, self.version))
        finally:
            await in_thread(partial(shutil.rmtree, beside, ignore_errors=True))

    async def load(self, folder: Path) -> None:
        """Raises LearnerError if the checkpoint is damaged, and ConfigError if it is another model's."""
        version = await asyncio.to_thread(_read_version, folder)
        await self._host.run(TorchLearner.load, folder / "learner")
        await self._publish(version)

    async def export(self, folder: Path) -> None:
        """Write the policy as a model folder that any program can read."""
        await self._host.run(TorchLearner.export_folder, folder)

    async def aclose(self) -> None:
        try:
            await self._engine.aclose()
        finally:
            await self._host.aclose()


async def open_local(folder: Path, model: ModelConfig, config: LearnerConfig, *, seed: int) -> LocalLearner:
    """The learner and the engine over the model in a folder. A learner in a process of its own imports what it needs
    while the engine is loaded."""
    device, num_threads = model.engine.device, config.num_threads or model.engine.num_threads
    apart = await _start_apart() if config.has_own_process_on(find_device(device).type) else None
    async with AsyncExitStack() as stack:
        if apart is not None:
            stack.push_async_callback(apart.aclose)
        settings = replace(model.engine, context_tokens=model.engine.context_tokens or model.context_tokens)
        engine = await asyncio.to_thread(TorchEngine.from_folder, folder, settings)
        stack.push_async_callback(engine.aclose)
        if apart is not None:  # after the engine: it sees what memory is left
            await apart.load(folder, config, device=device, seed=seed, num_threads=num_threads)
            learner = LocalLearner(apart, engine)
        else:
            torch_learner = await asyncio.to_thread(TorchLearner, folder, config, device=device, seed=seed)
            learner = LocalLearner(LearnerThread(torch_learner, num_threads=num_threads), engine)
        stack.pop_all()
        return learner


async def _start_apart() -> LearnerProcess:
    from slipstream.engine.training.process import LearnerProcess

    return await LearnerProcess.start()


def _put_together(folder: Path, learner: Path, version: int) -> None:
    """Move the learner's own checkpoint to `folder`, with the version; completely or not at all."""
    with whole_folder(folder, what="the checkpoint") as part:
        learner.rename(part / "learner")
        write_synced(part / "version", str(version).encode())


def _read_version(folder: Path) -> int:
    try:
        text = (folder / "version").read_bytes().strip()
        why = f"its version is {text!r}"
    except OSError as raised:
        text, why = b"", f"its version cannot be read: {raised.strerror}"
    if not text.isdigit():
        raise LearnerError(f"the checkpoint {folder} is damaged ({why}): go back to an earlier one")
    return int(text)
