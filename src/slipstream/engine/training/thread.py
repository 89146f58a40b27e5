"""Where a TorchLearner works: in a thread of this process, or (see `process`) in a process of its own.

Invariants: one thing at a time; a cancelled caller waits until what is under way has ended. A cancelled warm start
ends after the step it is making, and leaves the weights as they were.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch

from slipstream.aio import outlast
from slipstream.engine.training.config import WarmStartConfig
from slipstream.engine.training.learner import TorchLearner
from slipstream.types import Sample

P = ParamSpec("P")
T = TypeVar("T")

Weights = Sequence[tuple[str, torch.Tensor]]
"""By Hugging Face names. They may be the learner's own memory: copy them before the next update."""

OnWarmStep = Callable[[int, int, float], None]
"""Called on the event loop after every step of a warm start: which it was, of how many, and its loss."""


def ignore_step(step: int, steps: int, loss: float) -> None: ...


class LearnerHost(Protocol):
    async def run(self, work: Callable[Concatenate[TorchLearner, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a method of TorchLearner returns: `await host.run(TorchLearner.update, batch)`."""
        ...

    async def warm_start(
        self,
        demonstrations: Sequence[Sample],
        config: WarmStartConfig,
        *,
        on_step: OnWarmStep = ignore_step,
        keep: Path | None = None,
    ) -> Mapping[str, float]: ...

    async def weights(self) -> Weights: ...

    async def aclose(self) -> None: ...


async def in_thread(work: Callable[[], T]) -> T:
    """The result of `work`. A cancelled caller waits for its end all the same."""
    working = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        await outlast([working])
    except asyncio.CancelledError:
        working.exception()  # the caller no longer cares what it was
        raise
    return working.result()


class LearnerThread:
    """A LearnerHost."""

    def __init__(self, learner: TorchLearner, *, num_threads: int | None = None) -> None:
        """`num_threads`: CPU threads of one operation; None leaves it to torch."""
        self._torch = learner
        self._num_threads = num_threads

    async def run(self, work: Callable[Concatenate[TorchLearner, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await in_thread(partial(self._with_threads, partial(work, self._torch, *args, **kwargs)))

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
                working.exception()  # that it was stopped is no news
            raise
        return working.result()

    async def weights(self) -> Weights:
        return await self.run(lambda learner: list(learner.named_weights()))

    async def aclose(self) -> None: ...

    def _with_threads(self, work: Callable[[], T]) -> T:
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        return work()
