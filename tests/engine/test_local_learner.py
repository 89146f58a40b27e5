"""The embedded trainer's warm start, stopped half-way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import pytest
import torch
from learner_stage import model_folder, row, same_bits, weights

from slipstream.bridges.local import LocalLearner, open_local
from slipstream.engine.config import EngineConfig
from slipstream.engine.engine import TorchEngine
from slipstream.engine.learner import TorchLearner
from slipstream.engine.learner_config import LearnerConfig, WarmStartConfig
from slipstream.engine.learning import InThread
from slipstream.engine.microbatches import Masked
from slipstream.settings import ModelConfig

SAMPLES = [row([1, 2, digit], [0, 1, 1]).sample for digit in range(8)]
MANY = WarmStartConfig(num_epochs=100, tokens_per_step=4)
NUM_STEPS = 400


class Watched(TorchLearner):
    """Says when the warm start has made some steps, and when its thread is through."""

    def __init__(self, after_steps: Callable[[], object]) -> None:
        super().__init__(model_folder(), LearnerConfig(), device="cpu")
        self.num_asked = 0
        self.over = False
        self._after_steps = after_steps

    def warm_start(
        self,
        samples: Iterable[Masked],
        config: WarmStartConfig | None = None,
        *,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Mapping[str, float]:
        def asked() -> bool:
            self.num_asked += 1
            if self.num_asked == 4:
                self._after_steps()
            return should_stop()

        try:
            return super().warm_start(samples, config, should_stop=asked)
        finally:
            self.over = True


async def local(learner: TorchLearner) -> LocalLearner:
    engine = TorchEngine.from_folder(model_folder(), EngineConfig(num_slots=1, device="cpu", num_threads=1))
    return LocalLearner(InThread(learner, num_threads=1), engine)


def test_a_cancelled_warm_start_ends_soon_and_leaves_the_weights_as_they_were() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        learner = Watched(lambda: loop.call_soon_threadsafe(warming.cancel))
        before = weights(learner)
        trained = await local(learner)
        warming = asyncio.ensure_future(trained.warm_start(SAMPLES, MANY))
        try:
            with pytest.raises(asyncio.CancelledError):
                await warming
            assert learner.over
            assert 4 <= learner.num_asked < NUM_STEPS
            assert same_bits(before, weights(learner))
            assert (learner.version, trained.version) == (0, 0)
        finally:
            await trained.aclose()

    asyncio.run(main())


def test_a_second_cancellation_does_not_leave_the_thread_behind() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def cancel_twice() -> None:
            loop.call_soon_threadsafe(warming.cancel)
            loop.call_soon_threadsafe(lambda: loop.call_soon(warming.cancel))

        learner = Watched(cancel_twice)
        trained = await local(learner)
        warming = asyncio.ensure_future(trained.warm_start(SAMPLES, MANY))
        try:
            with pytest.raises(asyncio.CancelledError):
                await warming
            assert learner.over
        finally:
            await trained.aclose()

    asyncio.run(main())


def test_left_alone_it_makes_all_its_steps_and_the_engine_samples_from_them() -> None:
    async def main() -> None:
        learner = Watched(lambda: None)
        before = weights(learner)
        trained = await local(learner)
        try:
            metrics = await trained.warm_start(SAMPLES, WarmStartConfig(num_epochs=2, tokens_per_step=4))
            assert metrics["warm/steps"] == learner.num_asked == 8
            assert not same_bits(before, weights(learner))
        finally:
            await trained.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(("own", "num"), [(None, 1), (3, 3)])
def test_it_works_with_its_own_number_of_threads_or_else_with_the_engines(
    own: int | None, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(TorchLearner, "warm_start", lambda *_, **__: seen.append(torch.get_num_threads()))

    async def main() -> None:
        model = ModelConfig(kind="local", engine=EngineConfig(num_slots=1, device="cpu", num_threads=1))
        learner = await open_local(model_folder(), model, LearnerConfig(num_threads=own), seed=0)
        try:
            await learner._learning.warm_start(SAMPLES, MANY)
        finally:
            await learner.aclose()

    asyncio.run(main())
    assert seen == [num]
