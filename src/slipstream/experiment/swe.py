"""The experiment on software engineering: the recipe `swe-1.5b`, with and without what the agent is given.

    slipstream experiment swe --tasks DIR --out OUT --arm full --seed 1

DIR is a folder that `slipstream tasks make` wrote, with tasks of the packages that the recipe demonstrates, validates
on and holds out.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from slipstream.experiment.design import FULL, Arm, Design
from slipstream.recipes.swe import coder, measured
from slipstream.settings import TasksConfig
from slipstream.tasks.factory.levels import level_of, made_id

_NO_HINTS = ("agent.hints.on=false", "agent.hints.from_tools=false")
SEARCH = "search"


def design(tasks: Path) -> Design:
    recipe, path = coder(), str(tasks)
    return Design(
        name="swe",
        recipe=replace(
            recipe,
            tasks=_over(recipe.tasks, path),
            held_out=_over(recipe.held_out, path),
            warm_start=replace(recipe.warm_start, args={**recipe.warm_start.args, "path": path}),
            eval_every=0,
        ),
        parts={name: _over(measured(name), path) for name in ("validation", "held_out")},
        arms={
            FULL: Arm(),
            "no-search": Arm(without_tools=(SEARCH,)),
            "no-hints": Arm(settings=_NO_HINTS),
            "bare": Arm(without_tools=(SEARCH,), settings=_NO_HINTS),
        },
        package_of=package,
        level_of=level,
    )


def package(task_id: str) -> str:
    """`toolz-1.0.0` of `toolz-1.0.0-0003-tiny@named`."""
    return made_id(task_id).rsplit("-", 2)[0]


def level(task_id: str) -> str:
    return str(level_of(task_id) or "made")


def _over(tasks: TasksConfig, path: str) -> TasksConfig:
    return replace(tasks, args={**tasks.args, "path": path})
