"""A run over several task sets: shares by weight, figures by set, the same tasks after a resume."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from train_stage import SETTINGS, TASKS, Run, make_run

from slipstream.errors import ConfigError
from slipstream.placement.simulated import Plan
from slipstream.record import MemoryJournal
from slipstream.settings import ModelConfig, TasksConfig, TaskSetConfig, TrainConfig
from slipstream.simulate.clock import run_virtual
from slipstream.tasks.mixture import mixed
from slipstream.training.held_out import success_by_set
from slipstream.training.run import feed_of, loop_settings, plan_training
from slipstream.types import Job

WEIGHTS = {"math": 2.0, "code": 1.0}
MIXED = mixed({"math": TASKS[:4], "code": TASKS[:3]})
HELD_OUT = mixed({"math": TASKS[4:6], "code": TASKS[3:4]})
MIXTURE = replace(SETTINGS, sets=tuple(WEIGHTS), eval_every=2)


def plan(job: Job, number: int) -> Plan:
    """Mathematics is solved by every second rollout, code never."""
    return Plan(reward=float(job.key.task_id.startswith("math/") and job.key.sample % 2 == 0))


def begun(folder: Path, journal: MemoryJournal, steps: int) -> Run:
    async def main() -> Run:
        run = make_run(
            folder,
            settings=replace(MIXTURE, steps=steps),
            plan=plan,
            journal=journal,
            tasks=MIXED,
            weights=WEIGHTS,
            held_out=HELD_OUT,
        )
        await run.trainer.run()
        await journal.flush()
        return run

    return run_virtual(main())


def planned(journal: MemoryJournal) -> list[list[str]]:
    return [list(dict.fromkeys(key.task_id for key in record.planned)) for record in journal.steps()]


def test_every_step_has_each_sets_share_and_figures_of_its_own(tmp_path: Path) -> None:
    journal = MemoryJournal()
    run = begun(tmp_path, journal, 4)
    assert [sum(task.startswith("math/") for task in step) for step in planned(journal)] == [2, 2, 2, 2]
    for record in journal.steps():
        metrics = record.metrics or {}
        assert metrics["set/math/groups/num"] == 2 and metrics["set/code/groups/num"] == 1
        assert metrics["set/math/reward/mean"] == 0.5 and metrics["set/code/reward/mean"] == 0.0
        assert metrics["set/code/groups/without_signal"] == 1 and metrics["set/math/groups/without_signal"] == 0
        assert metrics["reward/mean"] == pytest.approx(1 / 3)
    measured = journal.measured()[0, "held_out"]
    assert (measured["set/math/success"], measured["set/code/success"]) == (1.0, 0.0)
    assert measured["success"] == pytest.approx(2 / 3)
    assert success_by_set(journal.measured()) == {
        "math": dict.fromkeys((0, 2, 4), 1.0),
        "code": dict.fromkeys((0, 2, 4), 0.0),
    }
    assert run.told[-1].held_out_sets == run.trainer.set_success == success_by_set(journal.measured())


def test_a_resumed_run_plans_the_tasks_that_an_unbroken_one_does(tmp_path: Path) -> None:
    whole, broken = MemoryJournal(), MemoryJournal()
    begun(tmp_path / "whole", whole, 6)
    for steps in (1, 3, 6):
        begun(tmp_path / "broken", broken, steps)
    assert planned(broken) == planned(whole)


def test_without_a_mixture_there_are_no_figures_of_sets(tmp_path: Path) -> None:
    async def main() -> Run:
        run = make_run(tmp_path)
        await run.trainer.run()
        return run

    run = run_virtual(main())
    assert not any(name.startswith("set/") for record in run.journal.steps() for name in record.metrics or {})
    assert run.trainer.set_success == {}


def settings(folder: Path, **changed: object) -> TrainConfig:
    for name, num in (("math", 4), ("code", 1)):
        lines = [
            {"id": str(each), "instruction": "?", "grading": {"kind": "exact", "expected": "x"}} for each in range(num)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sets = {
        "math": TaskSetConfig(source=str(folder / "math.jsonl"), weight=2.0),
        "code": TaskSetConfig(source=str(folder / "code.jsonl")),
    }
    tasks = TasksConfig(sets=sets)
    config = TrainConfig(name="x", tasks=tasks, held_out=tasks, model=ModelConfig(kind="local", make="a:b"), groups=3)
    return replace(config, **changed)  # type: ignore[arg-type]


def test_a_mixture_is_planned_from_settings(tmp_path: Path) -> None:
    plan = plan_training(settings(tmp_path))
    assert plan.train_ids == ("math/0", "code/0", "math/1", "math/2", "math/3")
    assert len(plan.held_out) == 5 and loop_settings(plan.config).sets == ("math", "code")
    assert sorted(feed_of(plan.config, plan.train_ids).next_step())[0] == "code/0"


def test_a_set_that_is_too_small_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the set code has 1 tasks, and its weight of 1 asks for 2 of the 4"):
        plan_training(settings(tmp_path, groups=4))
    with pytest.raises(ConfigError, match=r"held_out\.num is set, and so are held_out\.sets"):
        plan_training(settings(tmp_path, held_out=replace(settings(tmp_path).held_out, num=2)))
