"""A run that is stopped during its warm start, and resumed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.config import apply_overrides
from slipstream.errors import ConfigError
from slipstream.recipes import find_recipe
from slipstream.record import RunStore
from slipstream.settings import TrainConfig
from slipstream.training.policy import WarmProgress
from slipstream.training.run import TrainPlan, plan_training, run_training
from slipstream.types import SandboxSpec

SMALL = ["steps=0", "tasks.num=16", "groups=16", "held_out.source=", "deterministic=true", "seed=5",
         "warm_start.args.num=64", "warm_start.learning.num_epochs=4", "model.engine.num_slots=2"]  # fmt: skip


def small_plan() -> TrainPlan:
    config = apply_overrides(find_recipe("quickstart"), SMALL)
    assert isinstance(config, TrainConfig)
    return plan_training(config)


def session(folder: Path, *, stops_at: int | None = None) -> list[WarmProgress]:
    """Warm up, unless it is stopped after a step. Returns what was reported of its steps."""
    told: list[WarmProgress] = []

    def open_store() -> RunStore:
        return RunStore.open(folder) if (folder / "run.db").exists() else RunStore.create(folder, config={})

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None

        def on_warm(progress: WarmProgress) -> None:
            told.append(progress)
            if progress.step == stops_at:
                task.cancel()

        await run_training(small_plan(), open_store, on_warm=on_warm)

    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        assert stops_at is not None
    return told


def test_a_run_stopped_in_its_warm_start_goes_on_with_it_and_ends_the_same(tmp_path: Path) -> None:
    unbroken = session(tmp_path / "unbroken")
    num_steps = unbroken[0].steps
    assert [each.step for each in unbroken] == list(range(1, num_steps + 1))
    assert unbroken[0].seconds_left is None and unbroken[-1].seconds_left == 0.0
    stopped = tmp_path / "stopped"
    before = session(stopped, stops_at=2)
    assert not (stopped / "checkpoints").exists()
    assert (stopped / "warm_start").is_dir()
    assert RunStore.read(stopped).measured() == {}
    after = session(stopped)
    assert after[0].step > 2 and before[0].step == 1
    assert [each.loss for each in after] == [each.loss for each in unbroken[after[0].step - 1 :]]
    weights = [(tmp_path / run / "trained/model.safetensors").read_bytes() for run in ("unbroken", "stopped")]
    assert weights[0] == weights[1]
    assert RunStore.read(stopped).measured()[0, "warm_up"]["warm/steps"] == num_steps
    assert not (stopped / "warm_start").exists()


def test_a_sandbox_that_cannot_be_started_is_refused_before_the_warm_start(tmp_path: Path) -> None:
    plan, said = small_plan(), list[str]()
    task = next(iter(plan.tasks.values()))
    homeless = replace(task, sandbox=SandboxSpec(base=str(tmp_path / "gone")))
    plan = replace(plan, tasks={**plan.tasks, task.id: homeless})

    async def main() -> None:
        await run_training(plan, lambda: RunStore.create(tmp_path / "run", config={}), on_status=said.append)

    with pytest.raises(ConfigError, match="gone"):
        asyncio.run(main())
    assert said == []
