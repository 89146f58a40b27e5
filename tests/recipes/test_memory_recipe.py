"""The memory recipe from end to end: a scripted reader that knows only what its tool shows."""

from dataclasses import replace
from pathlib import Path

import pytest

import slipstream as ss
from slipstream.agent.config import CondenseConfig
from slipstream.config import apply_overrides, checked_arguments
from slipstream.names import load_object
from slipstream.recipes import find_recipe
from slipstream.recipes.memory import recipe, training, window
from slipstream.recipes.memory.model import demonstrations, make_model, make_window_model
from slipstream.recipes.memory.needles import needle_tasks
from slipstream.recipes.memory.policy import reader, window_reader
from slipstream.settings import TrainConfig, check_settings
from slipstream.tasks.source import load_tasks
from slipstream.types import ForkReason

MAX_PROMPT_TOKENS = 150


def evaluated(tasks: list[ss.Task], runs: Path) -> ss.EvalResult:
    return ss.evaluate(tasks, config=recipe(), runs=runs, quiet=True)


def test_the_reader_answers_from_what_it_was_shown(tmp_path: Path) -> None:
    result = evaluated(list(needle_tasks(num=6, kind="mixed", sections=5)), tmp_path)
    assert (result.mean_reward, result.num_rollouts) == (1.0, 6)
    for rollout in result.rollouts():
        assert [turn.fork for turn in rollout.turns] == [None] + [ForkReason.CONTEXT_EDIT] * 6
        assert rollout.turns[0].messages[-2].content.count("\n") <= 2, "the question alone"
        assert len({len(turn.messages) for turn in rollout.turns}) == 1, "nothing but the last rewriting is read"


def test_without_the_tool_it_knows_nothing(tmp_path: Path) -> None:
    tasks = [
        replace(task, brief=replace(task.brief, tools=task.brief.tools[-1:]))
        for task in needle_tasks(num=6, kind="mixed", sections=5)
    ]
    result = evaluated(tasks, tmp_path)
    assert (result.mean_reward, result.report.endings) == (0.0, {"finished": 6})


def test_a_reader_that_forgets_fails_the_longer_the_document_the_more(tmp_path: Path) -> None:
    short, long = (
        ss.evaluate(
            list(needle_tasks(num=60, seed=1, sections=sections)),
            model=reader(quality=0.8),
            runs=tmp_path,
            quiet=True,
        ).mean_reward
        for sections in (2, 12)
    )
    assert short is not None and long is not None
    assert 0.5 < short < 1.0
    assert long < 0.5


def test_the_recipe_without_arguments_is_long_and_mixed() -> None:
    config = recipe()
    tasks = load_tasks(config.tasks.source, num=config.tasks.num, args=config.tasks.args)
    assert len(tasks) >= 16
    assert {task.id.split("-")[1] for task in tasks} == {"needle", "needles", "hops"}
    assert find_recipe("memory") == config
    assert find_recipe("memory", to_train=True) == training()


@pytest.mark.parametrize(("config", "make"), [(training(), make_model), (window(), make_window_model)])
def test_training_can_be_run_and_never_sees_what_is_held_out(config: TrainConfig, make: object) -> None:
    check_settings(config)
    assert load_object(config.model.make, "model.make") is make
    source = load_object(config.warm_start.source, "warm_start.source")
    assert source is demonstrations
    assert checked_arguments(demonstrations, config.warm_start.args, "warm_start.args") == config.warm_start.args
    assert config.tasks.num == config.steps * config.groups
    train, held_out = (
        load_tasks(each.source, num=each.num, args=each.args) for each in (config.tasks, config.held_out)
    )
    assert {str(task.grading.spec) for task in train}.isdisjoint(str(task.grading.spec) for task in held_out)


def test_every_prompt_of_the_small_models_is_short(tmp_path: Path) -> None:
    for is_window, make in ((False, make_model), (True, make_window_model)):
        folder = make(tmp_path / make.__name__, seed=0)
        made = demonstrations(folder, num=4, drills=2, seed=0, quality=0.5, window=is_window)
        lengths = [list(one.mask).index(1) for one in made]  # type: ignore[attr-defined]
        spoken = [sum(one.mask) for one in made]  # type: ignore[attr-defined]
        num_long, num_short = (4, 2) if is_window else (4 * 6, 2 * 3)
        assert max(lengths) < MAX_PROMPT_TOKENS
        assert spoken == [5] * num_long + [14] * num_short, "a choice is one token"


def test_the_teacher_of_the_single_window_reads_what_it_is_shown(tmp_path: Path) -> None:
    tasks = list(needle_tasks(num=30, kind="needle", window=True))
    right = ss.evaluate(tasks, model=window_reader(), runs=tmp_path, quiet=True)
    faulty = ss.evaluate(tasks, model=window_reader(quality=0.45), runs=tmp_path, quiet=True)
    assert right.mean_reward == 1.0
    assert faulty.mean_reward is not None and 0.2 < faulty.mean_reward < 0.7


def test_condensation_is_a_switch_of_any_recipe() -> None:
    for name in ("swe", "react", "memory"):
        changed = apply_overrides(find_recipe(name), ["agent.condense=true", "agent.condense.trained=false"])
        assert changed.agent.condense == CondenseConfig(on=True, trained=False)
