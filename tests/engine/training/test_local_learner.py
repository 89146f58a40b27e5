"""The embedded trainer: stopped half-way, refused by its engine, kept on a disk that refuses too."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_stage import model_folder, row, same_bits, weights

from slipstream.bridges.local import LocalLearner, open_local
from slipstream.engine.inference.config import EngineConfig
from slipstream.engine.inference.engine import TorchEngine
from slipstream.engine.training.config import LearnerConfig, WarmStartConfig
from slipstream.engine.training.learner import TorchLearner
from slipstream.engine.training.step_plan import Masked
from slipstream.engine.training.thread import LearnerThread, Weights
from slipstream.errors import LearnerError
from slipstream.settings import ModelConfig
from slipstream.types import Batch, Sample, UpdateResult

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
        on_step: Callable[[int, int, float], None] = lambda step, steps, loss: None,
        keep: Path | None = None,
    ) -> Mapping[str, float]:
        def asked() -> bool:
            self.num_asked += 1
            if self.num_asked == 4:
                self._after_steps()
            return should_stop()

        try:
            return super().warm_start(samples, config, should_stop=asked, on_step=on_step, keep=keep)
        finally:
            self.over = True


async def local(learner: TorchLearner) -> LocalLearner:
    engine = TorchEngine.from_folder(model_folder(), EngineConfig(num_slots=1, device="cpu", num_threads=1))
    return LocalLearner(LearnerThread(learner, num_threads=1), engine)


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
            await learner._host.warm_start(SAMPLES, MANY)
        finally:
            await learner.aclose()

    asyncio.run(main())
    assert seen == [num]


# ---------------------------------------------------------------- what is under way when whoever waits is cancelled


class Slow(TorchLearner):
    """Stops in whatever it does, until it is let go on."""

    def __init__(self) -> None:
        super().__init__(model_folder(), LearnerConfig(), device="cpu")
        self.begun, self.let_go = threading.Event(), threading.Event()
        self.over = False

    def _work(self) -> None:
        self.begun.set()
        assert self.let_go.wait(20)
        self.over = True

    def update(self, batch: Batch) -> UpdateResult:
        self._work()
        return UpdateResult(version=1, metrics={})

    def save(self, folder: Path) -> None:
        self._work()
        raise LearnerError("nobody is there to hear it")

    def load(self, folder: Path) -> None:
        self._work()

    def export_folder(self, folder: Path, *, dtype: object = None) -> None:
        self._work()


@pytest.mark.parametrize("what", ["update", "save", "load", "export_folder"])
def test_whoever_is_cancelled_waits_for_the_end_of_what_is_under_way(what: str, tmp_path: Path) -> None:
    async def main() -> None:
        learner = Slow()
        given = Batch(rows=()) if what == "update" else tmp_path / "kept"
        working = asyncio.ensure_future(LearnerThread(learner).run(getattr(Slow, what), given))
        assert await asyncio.to_thread(learner.begun.wait, 20)
        for _ in range(2):
            working.cancel()
            await asyncio.sleep(0)
        learner.let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert learner.over

    asyncio.run(main())


# ---------------------------------------------------------------- an engine and a disk that refuse


class Given:
    """A LearnerHost with the weights it was given, and a file instead of a checkpoint."""

    def __init__(self, weights: Weights = ()) -> None:
        self.given = weights
        self.num_loads = 0

    async def run(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return getattr(self, work.__name__)(*args, **kwargs)

    async def warm_start(
        self,
        demonstrations: Sequence[Sample],
        config: WarmStartConfig,
        *,
        on_step: Callable[[int, int, float], None] = lambda step, steps, loss: None,
        keep: Path | None = None,
    ) -> Mapping[str, float]:
        return {}

    async def weights(self) -> Weights:
        return self.given

    def update(self, batch: Batch) -> UpdateResult:
        return UpdateResult(version=7, metrics={})

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "weights").touch()

    def load(self, folder: Path) -> None:
        assert (folder / "weights").is_file()
        self.num_loads += 1

    async def aclose(self) -> None: ...


async def over(host: Given) -> LocalLearner:
    engine = TorchEngine.from_folder(model_folder(), EngineConfig(num_slots=1, device="cpu", num_threads=1))
    return LocalLearner(host, engine)


def test_if_the_engine_refuses_the_weights_that_is_a_learner_error_and_the_version_stays() -> None:
    async def main() -> None:
        unfit = torch.empty(32, device="meta")  # of the right shape, and without any numbers to copy
        learning = Given([("model.norm.weight", unfit)])
        trained = await over(learning)
        try:
            with pytest.raises(LearnerError, match="version 1 did not reach the engine: NotImplementedError"):
                await trained.update(Batch(rows=()))
            assert (trained.version, trained.completer.version) == (0, 0)
            learning.given = ()
            assert (await trained.update(Batch(rows=()))).version == 1
            assert (trained.version, trained.completer.version) == (1, 1)
        finally:
            await trained.aclose()
        with pytest.raises(LearnerError, match="version 2 did not reach the engine: the engine is closed"):
            await trained.update(Batch(rows=()))

    asyncio.run(main())


def test_a_checkpoint_is_on_the_disk_with_its_version_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints" / "version-000001"
    synced: list[tuple[str, bool]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, folder.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)

    async def main() -> None:
        trained = await over(Given())
        try:
            await trained.update(Batch(rows=()))
            await trained.save(folder)
            assert synced == [("version", False), ("version-000001", False), ("checkpoints", True)]
            assert sorted(path.name for path in folder.parent.iterdir()) == ["version-000001"]
            await trained.update(Batch(rows=()))
            await trained.load(folder)
            assert (trained.version, trained.completer.version) == (1, 1)
        finally:
            await trained.aclose()

    asyncio.run(main())


def test_a_disk_that_refuses_a_checkpoint_is_a_learner_error_and_nothing_is_left(tmp_path: Path) -> None:
    async def main() -> None:
        trained = await over(Given())
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            with pytest.raises(LearnerError, match=r"version-000000 could not be written \(.*\): free some space"):
                await trained.save(tmp_path / "version-000000")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            await trained.aclose()

    asyncio.run(main())
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_whose_version_is_damaged_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    async def main() -> None:
        learning = Given()
        trained = await over(learning)
        folder = tmp_path / "version-000000"
        try:
            await trained.save(folder)
            for damaged in (b"", b"\0\0", b"one"):
                (folder / "version").write_bytes(damaged)
                with pytest.raises(LearnerError, match=r"is damaged \(its version is .*\): go back to an earlier one"):
                    await trained.load(folder)
            (folder / "version").unlink()
            with pytest.raises(LearnerError, match=r"is damaged \(its version cannot be read: .*go back to"):
                await trained.load(folder)
            assert learning.num_loads == 0
        finally:
            await trained.aclose()

    asyncio.run(main())
