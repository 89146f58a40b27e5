"""The quickstart's settings name what there is, and what is held out is never trained on."""

from slipstream.config import checked_arguments
from slipstream.names import load_object
from slipstream.recipes.quickstart import recipe
from slipstream.recipes.quickstart.demonstrations import demonstrations
from slipstream.recipes.quickstart.model import make_model
from slipstream.settings import TasksConfig, check_settings
from slipstream.tasks.source import load_tasks


def combinations(tasks: TasksConfig) -> set[tuple[str, ...]]:
    loaded = load_tasks(tasks.source, num=tasks.num, args=tasks.args)
    return {tuple(task.id.split("-")[-3:]) for task in loaded}


def test_its_settings_can_be_run() -> None:
    config = recipe()
    check_settings(config)
    assert load_object(config.model.make, "model.make") is make_model
    source = load_object(config.warm_start.source, "warm_start.source")
    assert source is demonstrations
    assert checked_arguments(demonstrations, config.warm_start.args, "warm_start.args") == config.warm_start.args


def test_no_train_task_comes_twice() -> None:
    config = recipe()
    assert config.tasks.num == config.steps * config.groups


def test_what_is_held_out_is_neither_trained_on_nor_demonstrated() -> None:
    config = recipe()
    held_out = combinations(config.held_out)
    assert len(held_out) > 100
    assert held_out.isdisjoint(combinations(config.tasks))
    demonstrated = TasksConfig(source=config.tasks.source, num=2_000, args={"seed": config.seed, "split": "train"})
    assert held_out.isdisjoint(combinations(demonstrated))
