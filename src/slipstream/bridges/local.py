"""The embedded trainer: the torch engine samples, the torch learner learns, in this process.

Always holds: `update` returns when the engine samples from the new weights. The learner works in a thread, so rollouts
go on meanwhile; the engine changes weights between two of its steps. A policy's version counts its batches: one with
nothing to learn from counts too, and a warm start does not.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from slipstream.aio import outlast
from slipstream.engine.engine import TorchEngine
from slipstream.engine.learner import TorchLearner
from slipstream.engine.learner_config import LearnerConfig, WarmStartConfig
from slipstream.settings import ModelConfig
from slipstream.types import Batch, Sample, UpdateResult

T = TypeVar("T")


class LocalLearner:
    def __init__(self, learner: TorchLearner, engine: TorchEngine, *, num_threads: int | None = None) -> None:
        """`num_threads`: CPU threads of one operation of the learner; None leaves it to torch."""
        self.version = 0
        self._num_threads = num_threads
        self._torch = learner
        self._engine = engine

    @property
    def completer(self) -> TorchEngine:
        return self._engine

    async def update(self, batch: Batch) -> UpdateResult:
        result = await asyncio.to_thread(self._with_threads, lambda: self._torch.update(batch))
        self.version += 1
        await self._publish()
        return replace(result, version=self.version)

    async def _publish(self) -> None:
        """Let the engine sample from the learner's weights as they are."""
        await asyncio.to_thread(self._engine.update_weights, self._torch.named_weights(), version=self.version)

    async def warm_start(self, demonstrations: Sequence[Sample], config: WarmStartConfig) -> Mapping[str, float]:
        """Imitate `demonstrations`; the version stays as it is.

        Cancelled, it ends with the optimiser step under way, and the weights are as they were.
        """
        stop = threading.Event()
        work = partial(self._torch.warm_start, demonstrations, config, should_stop=stop.is_set)
        working = asyncio.get_running_loop().run_in_executor(None, self._with_threads, work)
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError:
            stop.set()
            try:
                await outlast([working])
            finally:
                working.exception()  # that it was stopped is news to nobody
            raise
        metrics = working.result()
        await self._publish()
        return metrics

    async def save(self, folder: Path) -> None:
        await asyncio.to_thread(self._save, folder)

    async def load(self, folder: Path) -> None:
        self.version = await asyncio.to_thread(self._load, folder)
        await self._publish()

    def _with_threads(self, work: Callable[[], T]) -> T:
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        return work()

    def _save(self, folder: Path) -> None:
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        self._torch.save(partial / "learner")
        (partial / "version").write_text(str(self.version))
        partial.rename(folder)

    def _load(self, folder: Path) -> int:
        self._torch.load(folder / "learner")
        return int((folder / "version").read_text())

    async def export(self, folder: Path) -> None:
        """The policy as it is, as a model folder that any program can read."""
        await asyncio.to_thread(self._torch.export_folder, folder)

    async def aclose(self) -> None:
        await self._engine.aclose()


def open_local(folder: Path, model: ModelConfig, config: LearnerConfig, *, seed: int) -> LocalLearner:
    """The learner and the engine over the model in a folder, both as the folder has it."""
    context_tokens = model.engine.context_tokens or model.context_tokens
    engine = TorchEngine.from_folder(folder, replace(model.engine, context_tokens=context_tokens))
    learner = TorchLearner(folder, config, device=model.engine.device, seed=seed)
    return LocalLearner(learner, engine, num_threads=model.engine.num_threads)
