"""From the name of a task source to tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from slipstream.config import checked_arguments
from slipstream.errors import ConfigError
from slipstream.names import load_object, user_code
from slipstream.tasks.jsonl import check_task, read_tasks
from slipstream.types import Json, Task

TASK_FILE = "tasks.jsonl"
"""Of a folder that is a task set."""


def load_tasks(source: str, *, num: int | None, args: Mapping[str, Json]) -> tuple[Task, ...]:
    """The tasks of a JSONL file or of a Python function, the first `num` of them, each checked."""
    if not source:
        raise ConfigError("no tasks: set tasks.source to a JSONL file or to package.module:function")
    if num is not None and num < 1:
        raise ConfigError(f"tasks.num={num}: ask for at least one task")
    if ":" in source and not Path(source).is_file():
        tasks = _from_function(source, num, args)
    elif args:
        raise ConfigError(f"tasks.args are for Python functions, and {source} is a file: leave them out")
    else:
        path = Path(source)
        tasks = read_tasks(path / TASK_FILE if (path / TASK_FILE).is_file() else path)
    if num is not None and len(tasks) < num:
        raise ConfigError(f"tasks.num={num}, but {source} has {len(tasks)} tasks")
    return tasks[:num]


def digest_of(tasks: Iterable[Task]) -> str:
    """The same for the same tasks in the same order, and for no others."""
    digest = hashlib.blake2b(digest_size=16)
    for task in tasks:
        digest.update(repr(task).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _from_function(source: str, num: int | None, args: Mapping[str, Json]) -> tuple[Task, ...]:
    make: Any = load_object(source, "tasks.source")
    if not callable(make):
        raise ConfigError(f"tasks.source {source} is a {type(make).__name__}: name a function that returns tasks")
    given = checked_arguments(make, args, "tasks.args")
    if num is not None and "num" in (getattr(make, "__kwdefaults__", None) or {}):
        given["num"] = num
    with user_code(f"tasks.source {source}"):
        made: object = make(**given)
        if not isinstance(made, Iterable):
            raise ConfigError(f"tasks.source {source} returned a {type(made).__name__}: return Task values")
        listed = list(islice(made, num))  # a generator runs here
    tasks: dict[str, Task] = {}
    for task in listed:
        if not isinstance(task, Task):
            raise ConfigError(f"tasks.source {source} returned a {type(task).__name__} among its tasks")
        if task.id in tasks:
            raise ConfigError(f'tasks.source {source} gives the id "{task.id}" twice: ids must differ')
        check_task(task)
        tasks[task.id] = task
    if not tasks:
        raise ConfigError(f"tasks.source {source} returned no task")
    return tuple(tasks.values())
