"""A run over several task sets: shares by weight, figures by set, the same tasks after a resume."""

from dataclasses import replace
from pathlib import Path

import pytest
from train_stage import SETTINGS, TASKS, Run, make_run

from slipstream.placement.simulated import Plan
from slipstream.record import MemoryJournal
from slipstream.simulate.clock import run_virtual
from slipstream.tasks.mixture import mixed
from slipstream.training.held_out import success_by_set
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
