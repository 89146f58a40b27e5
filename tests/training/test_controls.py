"""A training run with its controls, from its settings to its report; and one that is stopped on its way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slipstream.config import apply_overrides
from slipstream.errors import ConfigError
from slipstream.recipes import find_recipe
from slipstream.record import RunStore
from slipstream.settings import TrainConfig
from slipstream.training.loop import TrainProgress
from slipstream.training.run import TIMES, TrainReport, plan_training, run_training

SMALL = ["steps=1", "groups=1", "samples=2", "tasks.num=1", "held_out.num=1", "seed=5", "hardware.every_s=0",
         "model.max_tokens=4", "warm_start.args.num=8", "warm_start.learning.num_epochs=1",
         "warm_start.learning.max_steps=4", "model.engine.num_slots=2", "sandbox.warm=0"]  # fmt: skip


def small(*pairs: str) -> TrainConfig:
    config = apply_overrides(find_recipe("quickstart"), [*SMALL, *pairs])
    assert isinstance(config, TrainConfig)
    return config


def session(folder: Path, *pairs: str, stops_at: str | None = None) -> tuple[TrainReport | None, list[float]]:
    """A session of the run, which is stopped when its progress says so; and the times on record on its way."""
    seconds: list[float] = []

    def open_store() -> RunStore:
        return RunStore.open(folder) if (folder / "run.db").exists() else RunStore.create(folder, config={})

    async def main() -> TrainReport | None:
        task = asyncio.current_task()
        assert task is not None

        def on_progress(progress: TrainProgress) -> None:
            seconds.append(RunStore.read(folder).measured()[0, TIMES]["seconds"])
            if progress.doing == stops_at:
                task.cancel()

        try:
            return await run_training(plan_training(small(*pairs)), open_store, on_progress=on_progress)
        except asyncio.CancelledError:
            return None

    return asyncio.run(main()), seconds


def test_controls_need_no_evaluation_between_and_the_time_of_a_stopped_session_counts(tmp_path: Path) -> None:
    stopped, seconds = session(tmp_path / "run", "controls=true", "eval_every=0", stops_at="checkpoint")
    assert stopped is None
    after_warm_up, after_evaluation, after_step = sorted(set(seconds))  # each was there for a kill to leave
    (tmp_path / "run/controls/sft_only").mkdir(parents=True)  # as a kill leaves it
    report, _ = session(tmp_path / "run", "controls=true", "eval_every=0")
    assert report is not None
    assert report.seconds > after_step > after_evaluation > after_warm_up > 0
    assert report.success.keys() == {0, 1}
    assert report.success_sft_only is not None and report.success_shuffled_reward is not None


def test_controls_without_held_out_tasks_are_refused_before_anything_is_run() -> None:
    with pytest.raises(ConfigError) as raised:
        plan_training(small("controls=true", "held_out.source="))
    assert raised.value.key == "controls"
    plan_training(small("held_out.source="))
