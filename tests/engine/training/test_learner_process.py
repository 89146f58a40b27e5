"""The learner in a process of its own: the same bits, the same errors."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from learner_stage import learner, model_folder, row, same_bits, weights

from slipstream.engine.training.config import LearnerConfig, WarmStartConfig
from slipstream.engine.training.learner import TorchLearner
from slipstream.engine.training.process import LearnerProcess
from slipstream.engine.training.thread import LearnerThread
from slipstream.errors import ConfigError, LearnerError
from slipstream.link import Link
from slipstream.types import Batch

CONFIG = LearnerConfig(learning_rate=1e-2, num_epochs=2, num_minibatches=2)
ROWS = tuple(row([1, 2, digit, 5], [0, 1, 1, 1], advantage=digit - 3.5, rollout=digit) for digit in range(8))
SAMPLES = [one.sample for one in ROWS]


Body: TypeAlias = Callable[[LearnerProcess], Awaitable[None]]
WithShared: TypeAlias = Callable[[Body], None]


def with_process(body: Body, config: LearnerConfig = CONFIG) -> None:
    async def main() -> None:
        apart = await LearnerProcess.open(model_folder(), config, device="cpu", seed=3, num_threads=1)
        try:
            await body(apart)
        finally:
            await apart.aclose()

    asyncio.run(main())


@pytest.fixture(scope="module")
def with_shared() -> Iterator[WithShared]:
    """Like `with_process`, with one process for all tests that may begin with any weights: a start takes seconds."""
    with asyncio.Runner() as runner:
        apart = runner.run(LearnerProcess.open(model_folder(), CONFIG, device="cpu", seed=3, num_threads=1))

        async def run(body: Body) -> None:
            await body(apart)

        yield lambda body: runner.run(run(body))
        runner.run(apart.aclose())


def test_it_learns_saves_and_loads_what_one_in_this_process_does(tmp_path: Path) -> None:
    async def body(apart: LearnerProcess) -> None:
        here = LearnerThread(beside, num_threads=1)
        batch = Batch(rows=ROWS, metrics={})
        warm = WarmStartConfig(num_epochs=1, tokens_per_step=16)
        told: list[tuple[int, int, float]] = []
        known: list[tuple[int, int, float]] = []
        await apart.warm_start(SAMPLES, warm, on_step=lambda *step: told.append(step), keep=tmp_path / "warm")
        await here.warm_start(SAMPLES, warm, on_step=lambda *step: known.append(step))
        assert told == known != []
        one, other = await apart.run(TorchLearner.update, batch), await here.run(TorchLearner.update, batch)
        assert one.version == other.version == 2
        assert one.metrics["learn/loss"] == other.metrics["learn/loss"]
        assert same_bits(dict(await apart.weights()), weights(beside))
        await apart.run(TorchLearner.save, tmp_path / "kept")
        before = dict(await apart.weights())
        await apart.run(TorchLearner.update, batch)
        assert not same_bits(before, dict(await apart.weights()))
        await apart.run(TorchLearner.load, tmp_path / "kept")
        assert same_bits(before, dict(await apart.weights()))
        await apart.run(TorchLearner.export_folder, tmp_path / "trained")
        assert (tmp_path / "trained" / "model.safetensors").is_file()

    beside = learner(seed=3, learning_rate=1e-2, num_epochs=2, num_minibatches=2)
    with_process(body)


def test_weights_that_were_handed_out_do_not_change_with_the_next_update(with_shared: WithShared) -> None:
    async def body(apart: LearnerProcess) -> None:
        before = dict(await apart.weights())
        kept = {name: tensor.clone() for name, tensor in before.items()}
        await apart.run(TorchLearner.update, Batch(rows=ROWS, metrics={}))
        assert same_bits(before, kept)

    with_shared(body)


def test_errors_keep_their_kind_and_the_process_goes_on(with_shared: WithShared) -> None:
    async def body(apart: LearnerProcess) -> None:
        before = await apart.run(TorchLearner.update, Batch(rows=ROWS, metrics={}))
        with pytest.raises(ConfigError, match="not among the model's"):
            await apart.run(TorchLearner.update, Batch(rows=(row([1, 10_000], [0, 1]),), metrics={}))
        after = await apart.run(TorchLearner.update, Batch(rows=ROWS, metrics={}))
        assert after.version == before.version + 1

    with_shared(body)


def test_a_folder_without_a_model_is_refused_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match=r"config\.json"):
            await LearnerProcess.open(tmp_path, CONFIG, device="cpu", seed=0, num_threads=1)

    asyncio.run(main())


def test_a_cancelled_warm_start_leaves_the_weights_as_they_were(with_shared: WithShared) -> None:
    async def body(apart: LearnerProcess) -> None:
        before = dict(await apart.weights())
        warming = asyncio.ensure_future(apart.warm_start(SAMPLES, WarmStartConfig(num_epochs=100_000)))
        await asyncio.sleep(0.3)
        warming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await warming
        assert same_bits(before, dict(await apart.weights()))

    with_shared(body)


def test_if_the_process_is_killed_whoever_waits_is_told() -> None:
    async def body(apart: LearnerProcess) -> None:
        warming = asyncio.ensure_future(apart.warm_start(SAMPLES, WarmStartConfig(num_epochs=100_000)))
        await asyncio.sleep(0.3)
        os.kill(apart.pid, signal.SIGKILL)
        with pytest.raises(LearnerError, match="signal 9"):
            await warming
        with pytest.raises(LearnerError):
            await apart.run(TorchLearner.update, Batch(rows=ROWS, metrics={}))

    with_process(body)


@contextmanager
def silent_process() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket, socket.socket]]:
    """One that says nothing and does not end by itself; and the two ends of what would be its link."""
    own, theirs = socket.socketpair()
    own.setblocking(False)
    with theirs, subprocess.Popen(["sleep", "100"]) as silent:
        try:
            yield silent, own, theirs
        finally:
            silent.kill()


@pytest.mark.parametrize("num_cancellations", [1, 3])
def test_a_process_that_does_not_answer_is_killed_soon_after_its_call_is_cancelled(num_cancellations: int) -> None:
    async def main() -> None:
        link = Link(calls={}, tells={})
        await link.connect(own)
        apart = LearnerProcess(link, silent, close_s=0.05)
        updating = asyncio.ensure_future(apart.run(TorchLearner.update, Batch(rows=ROWS, metrics={})))
        await asyncio.sleep(0)
        for _ in range(num_cancellations):
            updating.cancel()
            await asyncio.sleep(0)
        assert not updating.done()  # it is given time
        await asyncio.wait([updating], timeout=20)
        was_killed = updating.done()
        theirs.close()
        with pytest.raises(asyncio.CancelledError):
            await updating
        assert was_killed
        await apart.aclose()
        assert silent.returncode == -signal.SIGKILL

    with silent_process() as (silent, own, theirs):
        asyncio.run(main())


def test_closing_goes_on_to_the_end_of_the_process_even_if_cancelled() -> None:
    async def main() -> None:
        link = Link(calls={}, tells={})
        await link.connect(own)
        closing = asyncio.ensure_future(LearnerProcess(link, silent, close_s=0.05).aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert silent.returncode == -signal.SIGKILL

    with silent_process() as (silent, own, _):
        asyncio.run(main())
