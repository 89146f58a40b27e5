"""What an experiment compares: a training recipe, the tasks that it is measured on, and arms that change it.

Input: a name, or `file.py:function`, and a folder of tasks. Output: a Design, from which `plan` makes the settings of
every stage. Invariants: a design is data and loads no model; the start does not depend on the arm or the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean, load_object, user_code
from slipstream.settings import TasksConfig, TrainConfig

DESIGNS: Mapping[str, str] = {"swe": "slipstream.experiment.swe:design"}
FULL = "full"
"""The arm that changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """How an arm differs from the recipe, in training and in the evaluations of what it trained."""

    without_tools: tuple[str, ...] = ()
    """Names of tools, as the model sees them, that are taken out of every task."""
    settings: tuple[str, ...] = ()
    """Settings as `key=value`, of those that training and evaluation share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    name: str
    recipe: TrainConfig
    """With the tasks to train on and the warm start. Its held-out tasks are evaluated during training if `eval_every`
    is set, and not otherwise."""
    parts: Mapping[str, TasksConfig]
    """What can be evaluated, such as `held_out` and `validation`."""
    arms: Mapping[str, Arm] = field(default_factory=lambda: {FULL: Arm()})
    package_of: Callable[[str], str] = str
    """Of a task's id: tasks of a package are not independent, so intervals resample packages."""
    level_of: Callable[[str], str] = lambda task_id: "all"
    """Of a task's id: figures are given for each level."""

    def arm(self, name: str) -> Arm:
        if name not in self.arms:
            known = ", ".join(self.arms)
            raise ConfigError(f'there is no arm "{name}"{did_you_mean(name, list(self.arms))}: give one of {known}')
        return self.arms[name]

    def part(self, name: str) -> TasksConfig:
        if name not in self.parts:
            known = ", ".join(self.parts)
            raise ConfigError(f'there is no part "{name}"{did_you_mean(name, list(self.parts))}: give one of {known}')
        return self.parts[name]


def find_design(name: str, tasks: Path) -> Design:
    """The design of that name, or the one that a function returns, over the tasks in a folder."""
    path = DESIGNS.get(name, name)
    if ":" not in path:
        raise ConfigError(
            f'there is no experiment "{name}"{did_you_mean(name, DESIGNS)}: '
            f"use one of {', '.join(DESIGNS)}, or file.py:function"
        )
    function: Any = load_object(path, "experiment")
    with user_code(f'experiment "{name}"'):
        found = function(tasks) if callable(function) else function
    if not isinstance(found, Design):
        raise ConfigError(f'experiment "{name}" gave a {type(found).__name__}: return a Design')
    return found
