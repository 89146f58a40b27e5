"""The learner in a process of its own, beside a run on a GPU. Its thousands of small operations each need Python's
lock, so in the run's process they would wait for the engine's and the agents'.

    python -m slipstream.engine.training.process FD

Input: over a link, what a TorchLearner is to do. Output: its results. Weights on a GPU are not sent: the run's process
is sent where they lie, and copies them on the device.
Invariants: when the link is lost the process ends; when the process ends, pending calls raise LearnerError; a
cancelled caller waits for what is under way, and a process that takes too long over it is killed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch.multiprocessing import reductions

from slipstream.aio import collect_rarely
from slipstream.engine.training.config import LearnerConfig, WarmStartConfig
from slipstream.engine.training.learner import TorchLearner
from slipstream.engine.training.thread import LearnerThread, OnWarmStep, Weights, ignore_step
from slipstream.errors import LearnerError
from slipstream.link import Link, LinkedProcess, own_end, start_linked
from slipstream.types import Sample

P = ParamSpec("P")
T = TypeVar("T")

CLOSE_S = 30.0
"""How long the process may take to finish what was cancelled, and to end."""


class LearnerProcess:
    """A LearnerHost: the run's end of the link."""

    def __init__(self, link: Link, process: subprocess.Popen[bytes], *, close_s: float = CLOSE_S) -> None:
        self._linked = LinkedProcess(link, process, name="the learner's process", error=LearnerError, close_s=close_s)
        self._on_step: OnWarmStep = ignore_step

    @property
    def pid(self) -> int:
        return self._linked.pid

    @staticmethod
    async def start() -> LearnerProcess:
        """The process, which begins with its imports. `load` comes next."""
        tells: dict[str, Callable[..., None]] = {}
        link = Link(calls={}, tells=tells, peer="the learner's process")
        process = await start_linked(__name__, link)
        learner = LearnerProcess(link, process)
        tells["warm_step"] = learner._warm_step
        return learner

    async def load(
        self, folder: Path, config: LearnerConfig, *, device: str, seed: int, num_threads: int | None
    ) -> None:
        """Raises what making a TorchLearner raises."""
        await self._linked.call("open", folder, config, device, seed, num_threads)

    @staticmethod
    async def open(
        folder: Path, config: LearnerConfig, *, device: str, seed: int, num_threads: int | None
    ) -> LearnerProcess:
        """Started and loaded."""
        learner = await LearnerProcess.start()
        try:
            await learner.load(folder, config, device=device, seed=seed, num_threads=num_threads)
        except BaseException:
            await learner.aclose()
            raise
        return learner

    async def run(self, work: Callable[Concatenate[TorchLearner, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await self._linked.call("run", work, args, kwargs)
        return result

    async def warm_start(
        self,
        demonstrations: Sequence[Sample],
        config: WarmStartConfig,
        *,
        on_step: OnWarmStep = ignore_step,
        keep: Path | None = None,
    ) -> Mapping[str, float]:
        self._on_step = on_step
        metrics: Mapping[str, float] = await self._linked.call("warm_start", list(demonstrations), config, keep)
        return metrics

    def _warm_step(self, step: int, steps: int, loss: float) -> None:
        self._on_step(step, steps, loss)

    async def weights(self) -> Weights:
        sent = await self._linked.call("weights")
        return await asyncio.to_thread(lambda: [(name, _rebuilt(portable)) for name, portable in sent])

    async def aclose(self) -> None:
        await self._linked.aclose()


# ---------------------------------------------------------------- weights between processes


def _portable(tensor: torch.Tensor) -> Any:
    """What to send for a tensor: itself, or where it lies on the device."""
    share: Any = reductions.reduce_tensor
    return share(tensor) if tensor.is_cuda else tensor.clone()


def _rebuilt(portable: Any) -> torch.Tensor:
    if isinstance(portable, torch.Tensor):
        return portable
    rebuild, arguments = portable
    tensor: torch.Tensor = rebuild(*arguments)
    return tensor


# ---------------------------------------------------------------- the process


class _Server:
    def __init__(self) -> None:
        self._host: LearnerThread | None = None
        self._lent: Weights = ()
        """What the other process may be copying from."""
        self.link = Link(
            calls={"open": self._open, "run": self._run, "weights": self._weights, "warm_start": self._warm_start},
            tells={},
            peer="the run's own process",
        )

    async def _open(self, folder: Path, config: LearnerConfig, device: str, seed: int, num_threads: int | None) -> None:
        learner = await asyncio.to_thread(TorchLearner, folder, config, device=device, seed=seed)
        self._host = LearnerThread(learner, num_threads=num_threads)

    def _opened(self) -> LearnerThread:
        assert self._host is not None, "`open` is called first"
        self._lent = ()
        return self._host

    async def _run(self, work: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return await self._opened().run(work, *args, **kwargs)

    async def _warm_start(
        self, demonstrations: Sequence[Sample], config: WarmStartConfig, keep: Path | None
    ) -> Mapping[str, float]:
        on_step = partial(self.link.tell, "warm_step")
        return await self._opened().warm_start(demonstrations, config, on_step=on_step, keep=keep)

    async def _weights(self) -> list[tuple[str, Any]]:
        self._lent = await self._opened().weights()
        if any(tensor.is_cuda for _, tensor in self._lent):
            await asyncio.to_thread(torch.cuda.synchronize)
        return [(name, _portable(tensor)) for name, tensor in self._lent]


async def _serve() -> None:
    server = _Server()
    await server.link.connect(own_end(sys.argv))
    try:
        await server.link.over(grace_s=CLOSE_S / 2)
    finally:
        sys.stderr.flush()
        os._exit(0)  # torch would wait for a busy thread, and complain about the memory it lent


if __name__ == "__main__":
    collect_rarely()
    asyncio.run(_serve())
