"""A mixture: the tasks of several sets, each task known by its set.

Input: task sets by name. Output: their tasks with ids `SET/ID`, of which `types.set_of` gives the set.
Invariants: a set keeps its order, and the sets come in the order in which they are named; ids of different sets never
collide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import zip_longest

from slipstream.errors import ConfigError
from slipstream.types import SET_MARK, Task

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_names(names: Iterable[str], key: str) -> None:
    """Raise ConfigError for a name that is no name of a set. `key` is where they were set."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(f'{key} names a set "{name}": use letters, digits, "_", "-" and "."')


def mixed(sets: Mapping[str, Iterable[Task]]) -> tuple[Task, ...]:
    """The tasks of all sets, by turns, so that the first ones are of all of them."""
    marked = [[replace(task, id=f"{name}{SET_MARK}{task.id}") for task in tasks] for name, tasks in sets.items()]
    return tuple(task for row in zip_longest(*marked) for task in row if task is not None)
