"""A run that is stopped during its warm start, and gone on with."""

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
from slipstream.train.run import TrainPlan, carry_out_training, plan_training
from slipstream.types import SandboxSpec

SMALL = ["steps=0", "tasks.num=16", "held_out.source=", "deterministic=true", "seed=5",
         "warm_start.args.num=8", "warm_start.learning.num_epochs=2", "model.engine.num_slots=2"]  # fmt: skip


def small_plan() -> TrainPlan:
    config = apply_overrides(find_recipe("quickstart"), SMALL)
    assert isinstance(config, TrainConfig)
    return plan_training(config)


def session(folder: Path, *, stops_at: str | None = None) -> list[str]:
    """Warm up, unless it is stopped when a word begins so. Returns what was said."""
    said: list[str] = []

    def open_store() -> RunStore:
        return RunStore.open(folder) if (folder / "run.db").exists() else RunStore.create(folder, config={})

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None

        def on_word(word: str) -> None:
            said.append(word)
            if stops_at is not None and word.startswith(stops_at):
                task.cancel()

        await carry_out_training(small_plan(), open_store, on_word=on_word)

    asyncio.run(main())
    return said


def test_a_run_stopped_in_its_warm_start_makes_it_anew_and_ends_the_same(tmp_path: Path) -> None:
    session(tmp_path / "unbroken")
    stopped = tmp_path / "stopped"
    with pytest.raises(asyncio.CancelledError):
        session(stopped, stops_at="warm start on")
    assert not (stopped / "checkpoints").exists()
    assert RunStore.read(stopped).measured() == {}
    assert "warm start on 8 demonstrations" in session(stopped)
    weights = [(tmp_path / run / "trained/model.safetensors").read_bytes() for run in ("unbroken", "stopped")]
    assert weights[0] == weights[1]
    assert (0, "warm_up") in RunStore.read(stopped).measured()


def test_a_sandbox_that_cannot_be_started_is_refused_before_the_warm_start(tmp_path: Path) -> None:
    plan, said = small_plan(), list[str]()
    task = next(iter(plan.tasks.values()))
    homeless = replace(task, sandbox=SandboxSpec(base=str(tmp_path / "gone")))
    plan = replace(plan, tasks={**plan.tasks, task.id: homeless})

    async def main() -> None:
        await carry_out_training(plan, lambda: RunStore.create(tmp_path / "run", config={}), on_word=said.append)

    with pytest.raises(ConfigError, match="gone"):
        asyncio.run(main())
    assert said == []
