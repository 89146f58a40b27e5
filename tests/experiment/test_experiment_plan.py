"""What an experiment is made of, and what it may be resumed as."""

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.experiment.budget import FIRST_STEP_S, MARGIN, PACKING_S, Budget
from slipstream.experiment.plan import EVAL_SEED, ExperimentPlan, make_plan, record_plan, with_arm
from slipstream.tasks.source import load_tasks
from slipstream.types import Task

DESIGN = f"{Path(__file__).with_name('tiny_design.py')}:design"


def planned(arm: str = "full", seed: int = 1, *overrides: str, tasks: str = "here") -> ExperimentPlan:
    return make_plan(DESIGN, Path(tasks), arm=arm, seed=seed, overrides=overrides)


def tasks_of(plan: ExperimentPlan) -> tuple[Task, ...]:
    return load_tasks(plan.config.tasks.source, num=None, args=plan.config.tasks.args)


def test_the_start_and_the_draws_of_evaluations_are_the_same_for_every_arm_and_seed() -> None:
    plans = [planned(), planned("no-search", 2), planned("no-hints", 3)]
    assert len({plan.start_digest for plan in plans}) == 1
    assert len({plan.start_config.seed for plan in plans}) == 1
    assert [plan.config.seed for plan in plans] == [1, 2, 3]
    evaluated = [plan.eval_config("held_out", "full", samples=2, policy=plan.config) for plan in plans]
    assert evaluated[0] == evaluated[1] == evaluated[2] and evaluated[0].seed == EVAL_SEED
    assert planned("full", 1, "learner.lora.rank=3").start_digest != plans[0].start_digest
    assert planned("full", 1, "learner.learning_rate=1e-3", "groups=2").start_digest == plans[0].start_digest


def test_an_arm_changes_training_and_its_own_evaluation() -> None:
    plan = planned("no-hints")
    assert plan.config.agent.hints.on is False
    own = plan.eval_config("held_out", "no-hints", samples=2, policy=plan.config)
    assert own.agent.hints.on is False
    reduced = planned("no-search")
    assert [len(task.brief.tools) for task in tasks_of(planned())[:2]] == [3, 3]
    assert [task.brief.tools[-1].rpartition(":")[2] for task in tasks_of(reduced)[:2]] == ["finish", "finish"]
    assert all("search" not in tool for task in tasks_of(reduced) for tool in task.brief.tools)
    assert [task.id for task in tasks_of(reduced)] == [task.id for task in tasks_of(planned())]


def test_taking_away_what_no_task_offers_is_refused() -> None:
    plan = planned()
    arm = replace(plan.design.arm("no-search"), without_tools=("browse",))
    source = with_arm(plan.config.tasks, arm)
    with pytest.raises(ConfigError, match=r"takes browse away, but no task of .* offers it \(bash, finish, search\)"):
        load_tasks(source.source, num=None, args=source.args)


@pytest.mark.parametrize(
    ("arm", "seed", "overrides", "why"),
    [
        ("no-hints", 1, (), "--arm full, and this is no-hints"),
        ("full", 2, (), "--seed 1, and this is 2"),
        ("full", 1, ("tasks.args.num=7",), "the tasks to train on"),
        ("full", 1, ("learner.learning_rate=0.5",), "learner.learning_rate was"),
    ],
)
def test_another_experiment_is_not_resumed_in_its_folder(
    tmp_path: Path, arm: str, seed: int, overrides: tuple[str, ...], why: str
) -> None:
    record_plan(tmp_path, planned(), tasks_of(planned()))
    other = planned(arm, seed, *overrides)
    with pytest.raises(ConfigError, match=why):
        record_plan(tmp_path, other, tasks_of(other))


def test_tasks_may_lie_elsewhere_and_steps_may_be_added(tmp_path: Path) -> None:
    record_plan(tmp_path, planned(), tasks_of(planned()))
    record_plan(tmp_path, moved := planned("full", 1, "steps=9", tasks="elsewhere"), tasks_of(moved))


def test_unknown_names_are_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r'no arm "no-serch" \(did you mean "no-search"'):
        planned("no-serch")
    with pytest.raises(ConfigError, match='no part "heldout"'):
        planned().design.part("heldout")


def test_a_step_begins_only_if_there_is_time_for_it_and_for_what_follows() -> None:
    now_s = 0.0
    budget = Budget(10, now=lambda: now_s)
    assert budget.left_s == 600 - PACKING_S
    budget.begin_steps()
    assert budget.has_step(after_s=100)
    now_s = 20.0
    assert budget.has_step(after_s=100)
    now_s = 600 - PACKING_S - MARGIN * 120
    budget.begin_steps()
    assert budget.has_step(after_s=100), "a step took 20 s"
    now_s += 1
    assert not budget.has_step(after_s=100)
    assert Budget(None).has_step(after_s=1e9)
    assert not Budget((FIRST_STEP_S + PACKING_S) / 60, now=lambda: 0.0).has_step(after_s=0)
