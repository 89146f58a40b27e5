"""The learner's work as something to wait for, in a thread of this process.

Invariants: one thing at a time; whoever is cancelled waits for the end of what is under way. Of a warm start that is
one step, and to keep it where that was asked for; the weights are as they were.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from slipstream.aio import outlast
from slipstream.engine.training.config import WarmStartConfig
from slipstream.engine.training.learner import TorchLearner
from slipstream.types import Batch, Sample, UpdateResult

T = TypeVar("T")

Weights = Sequence[tuple[str, torch.Tensor]]
"""By Hugging Face names. They may be the learner's own memory: to be copied before the next update."""


OnWarmStep = Callable[[int, int, float], None]
"""Told after every step of a warm start, on the event loop: which it was, of how many, and its loss."""


def ignore_step(step: int, steps: int, loss: float) -> None: ...


class LearnerHandle(Protocol):
    """A TorchLearner, wherever it is. Its methods are described there."""

    async def update(self, batch: Batch) -> UpdateResult: ...

    async def warm_start(
        self,
        demonstrations: Sequence[Sample],
        config: WarmStartConfig,
        *,
        on_step: OnWarmStep = ignore_step,
        keep: Path | None = None,
    ) -> Mapping[str, float]: ...

    async def weights(self) -> Weights: ...

    async def save(self, folder: Path) -> None: ...

    async def load(self, folder: Path) -> None: ...

    async def export(self, folder: Path) -> None: ...

    async def aclose(self) -> None: ...


async def in_thread(work: Callable[[], T]) -> T:
    """What comes of it. Whoever is cancelled waits for its end all the same."""
    working = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        await outlast([working])
    except asyncio.CancelledError:
        working.exception()  # whoever cancelled does not care what it was
        raise
    return working.result()


class InThread:
    def __init__(self, learner: TorchLearner, *, num_threads: int | None = None) -> None:
        """`num_threads`: CPU threads of one operation; None leaves it to torch."""
        self._torch = learner
        self._num_threads = num_threads

    async def update(self, batch: Batch) -> UpdateResult:
        return await in_thread(lambda: self._with_threads(lambda: self._torch.update(batch)))

    async def warm_start(
        self,
        demonstrations: Sequence[Sample],
        config: WarmStartConfig,
        *,
        on_step: OnWarmStep = ignore_step,
        keep: Path | None = None,
    ) -> Mapping[str, float]:
        stop = threading.Event()
        loop = asyncio.get_running_loop()

        def tell(step: int, steps: int, loss: float) -> None:
            loop.call_soon_threadsafe(on_step, step, steps, loss)

        work = partial(
            self._torch.warm_start,
            demonstrations,
            config,
            should_stop=stop.is_set,
            on_step=tell,
            keep=keep,
        )
        working = loop.run_in_executor(None, self._with_threads, work)
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError:
            stop.set()
            try:
                await outlast([working])
            finally:
                working.exception()  # that it was stopped is news to nobody
            raise
        return working.result()

    async def weights(self) -> Weights:
        return await in_thread(lambda: list(self._torch.named_weights()))

    async def save(self, folder: Path) -> None:
        await in_thread(partial(self._torch.save, folder))

    async def load(self, folder: Path) -> None:
        await in_thread(partial(self._torch.load, folder))

    async def export(self, folder: Path) -> None:
        await in_thread(partial(self._torch.export_folder, folder))

    async def aclose(self) -> None: ...

    def _with_threads(self, work: Callable[[], T]) -> T:
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        return work()
