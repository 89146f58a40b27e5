"""Engine and learner together in a process beside the run's: the same bits, the same tokens, the same errors."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from learner_stage import model_folder, row

from slipstream.bridges.local import LocalLearner, open_local
from slipstream.bridges.local_process import ApartLearner, open_apart
from slipstream.engine.inference.config import EngineConfig
from slipstream.engine.training.config import LearnerConfig, WarmStartConfig
from slipstream.errors import ConfigError, LearnerError
from slipstream.link import linked_pids
from slipstream.settings import ModelConfig
from slipstream.types import Batch, Sampled, SampleParams

ENGINE = EngineConfig(num_slots=2, device="cpu", num_threads=1, deterministic=True)
CONFIG = LearnerConfig(learning_rate=1e-2, num_epochs=2, num_minibatches=2)
ROWS = tuple(row([1, 2, digit, 5], [0, 1, 1, 1], advantage=digit - 3.5, rollout=digit) for digit in range(8))
BATCH = Batch(rows=ROWS, metrics={})
WARM = WarmStartConfig(num_epochs=1, tokens_per_step=16)
PROMPT = [1, 2, 3]


def model(process: Literal["shared", "own"]) -> ModelConfig:
    return ModelConfig(kind="local", engine=replace(ENGINE, process=process))


def apart(body: Callable[[ApartLearner], Awaitable[None]], config: LearnerConfig = CONFIG) -> None:
    async def main() -> None:
        async with open_apart(model_folder(), model("own"), config, seed=3) as learner:
            await body(learner)
        assert linked_pids() == ()

    asyncio.run(main())


async def followed(learner: LocalLearner | ApartLearner, folder: Path) -> tuple[list[object], list[Sampled]]:
    """What a learner says on the way through a small run, and what its engine samples meanwhile."""
    told: list[object] = []
    sampled: list[Sampled] = []

    async def sample() -> None:
        params = SampleParams(max_tokens=12, temperature=1.0, seed=len(sampled))
        sampled.append(await learner.completer.complete(PROMPT, params, session="one"))

    def on_step(step: int, steps: int, loss: float) -> None:
        told.append((step, steps, loss))

    await sample()
    metrics = await learner.warm_start([one.sample for one in ROWS], WARM, on_step=on_step, keep=folder / "warm")
    told.append({name: value for name, value in metrics.items() if name != "warm/seconds"})
    await sample()
    for _ in range(2):
        result = await learner.update(BATCH)
        told.append((result.version, learner.version, result.metrics["learn/loss"]))
        await sample()
    await learner.save(folder / "kept")
    told.append((await learner.update(BATCH)).version)
    await learner.load(folder / "kept")
    told.append(learner.version)
    await sample()
    await learner.export(folder / "trained")
    told.append((folder / "trained" / "model.safetensors").read_bytes())
    return told, sampled


@pytest.mark.parametrize("place", ["shared", "own"])
def test_it_learns_samples_and_saves_what_one_in_this_process_does(
    tmp_path: Path, place: Literal["shared", "own"]
) -> None:
    """`place`: of the learner, beside the engine."""
    config = replace(CONFIG, process=place)

    async def here() -> tuple[list[object], list[Sampled]]:
        learner = await open_local(model_folder(), model("shared"), CONFIG, seed=3)
        try:
            return await followed(learner, tmp_path / "here")
        finally:
            await learner.aclose()

    found: list[tuple[list[object], list[Sampled]]] = []

    async def body(learner: ApartLearner) -> None:
        assert len(linked_pids()) == (2 if place == "own" else 1)
        found.append(await followed(learner, tmp_path / "apart"))

    apart(body, config)
    expected = asyncio.run(here())
    assert found == [expected]
    versions = [set(sampled.versions) for sampled in expected[1]]
    assert versions == [{0}, {0}, {1}, {2}, {2}]


def test_errors_keep_their_kind(tmp_path: Path) -> None:
    async def body(learner: ApartLearner) -> None:
        with pytest.raises(ConfigError, match="not among the model's"):
            await learner.update(Batch(rows=(row([1, 10_000], [0, 1]),), metrics={}))
        with pytest.raises(LearnerError, match="version cannot be read"):
            await learner.load(tmp_path)
        assert learner.version == 0

    apart(body)
    with pytest.raises(ConfigError, match=r"config\.json"):
        asyncio.run(opened(tmp_path))


async def opened(folder: Path) -> None:
    async with open_apart(folder, model("own"), CONFIG, seed=0):
        pass


def test_a_cancelled_warm_start_leaves_the_weights_as_they_were() -> None:
    async def body(learner: ApartLearner) -> None:
        begun = asyncio.Event()
        warming = asyncio.ensure_future(
            learner.warm_start(
                [one.sample for one in ROWS],
                replace(WARM, num_epochs=100_000),
                on_step=lambda step, steps, loss: begun.set(),
            )
        )
        before = await learner.completer.complete(PROMPT, SampleParams(max_tokens=8, seed=1))
        await begun.wait()
        warming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await warming
        await learner.update(Batch(rows=()))  # publishes the learner's weights, whatever they are
        after = await learner.completer.complete(PROMPT, SampleParams(max_tokens=8, seed=1))
        assert (after.ids, after.logprobs) == (before.ids, before.logprobs)

    apart(body)


def test_if_the_process_is_killed_the_run_ends_and_says_why() -> None:
    async def body(learner: ApartLearner) -> None:
        os.kill(learner.completer.pid, signal.SIGKILL)
        await asyncio.Event().wait()

    with pytest.raises(LearnerError, match=r"the engine's process ended \(killed by signal 9"):
        apart(body)
