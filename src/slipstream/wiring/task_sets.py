"""The tasks that settings name: of one source, or of the sets of a mixture."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.errors import ConfigError
from slipstream.settings import TasksConfig
from slipstream.tasks.mixture import check_names, mixed
from slipstream.tasks.source import load_tasks
from slipstream.types import Task


def tasks_of(config: TasksConfig, *, key: str = "tasks") -> tuple[Task, ...]:
    """All of them. `key` is where the settings stand, for errors."""
    if not config.sets:
        return load_tasks(config.source, num=config.num, args=config.args)
    if config.source or config.num is not None or config.args:
        name = "source" if config.source else "num" if config.num is not None else "args"
        raise ConfigError(
            f"{key}.{name} is set, and so are {key}.sets ({', '.join(config.sets)}): with a mixture set it for each "
            f"set, as {key}.sets.{next(iter(config.sets))}.{name}"
        )
    check_names(config.sets, f"{key}.sets")
    found: dict[str, tuple[Task, ...]] = {}
    for name, each in config.sets.items():
        if not 0 < each.weight < float("inf"):
            raise ConfigError(f"{key}.sets.{name}.weight={each.weight}: give a number above 0, or leave the set out")
        if not each.source:
            raise ConfigError(f"the set {name} has no tasks: set {key}.sets.{name}.source")
        try:
            found[name] = load_tasks(each.source, num=each.num, args=each.args)
        except ConfigError as raised:
            raise ConfigError(f"{key}.sets.{name}: {raised}") from raised
    return mixed(found)


def weights_of(config: TasksConfig) -> Mapping[str, float]:
    """The weight of each set; none if the tasks are no mixture."""
    return {name: each.weight for name, each in config.sets.items()}
