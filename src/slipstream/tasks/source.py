"""Loads the tasks of a task source by its name."""

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
from slipstream.types import Activation, Json, Task

TASK_FILE = "tasks.jsonl"
"""The task file in the folder of a task set."""
FORMATS: Mapping[str, str] = {
    "made": "slipstream.tasks.factory.parts:read_part",
    "swebench": "slipstream.tasks.swe.swebench:read_swebench",
    "swegym": "slipstream.tasks.swe.swegym:read_swegym",
    "r2egym": "slipstream.tasks.swe.r2egym:read_r2egym",
    "swesmith": "slipstream.tasks.swe.swesmith:read_swesmith",
}
"""Readers by the names that stand for them as a source: of parts of a made task set, and of public formats."""


def load_tasks(source: str, *, num: int | None, args: Mapping[str, Json]) -> tuple[Task, ...]:
    """The tasks of a JSONL file or of a Python function, the first `num` of them, each checked."""
    if not source:
        raise ConfigError("no tasks: set tasks.source to a JSONL file or to package.module:function")
    if num is not None and num < 1:
        raise ConfigError(f"tasks.num={num}: set it to at least 1")
    if not Path(source).exists():
        source = FORMATS.get(source, source)
    if ":" in source and not Path(source).is_file():
        tasks = _from_function(source, num, args)
    elif args:
        raise ConfigError(f"tasks.args is for Python functions, but {source} is a file: remove tasks.args")
    else:
        path = Path(source)
        tasks = read_tasks(path / TASK_FILE if (path / TASK_FILE).is_file() else path)
    if num is not None and len(tasks) < num:
        raise ConfigError(f"tasks.num={num}, but {source} has only {len(tasks)} tasks: lower tasks.num")
    return tasks[:num]


def digest_of(tasks: Iterable[Task]) -> str:
    """A digest of the tasks and their order."""
    digest = hashlib.blake2b(digest_size=16)
    for task in tasks:
        digest.update(repr(task).encode("utf-8", "surrogatepass"))
        if task.sandbox is not None and task.sandbox.activation != Activation():
            digest.update(repr(task.sandbox.activation).encode("utf-8", "surrogatepass"))
        if task.brief.resources:
            digest.update(repr(task.brief.resources).encode("utf-8", "surrogatepass"))
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
            raise ConfigError(f"tasks.source {source} returned a {type(task).__name__} among its tasks: return Tasks")
        if task.id in tasks:
            raise ConfigError(f'tasks.source {source} returned the id "{task.id}" twice: give every task its own id')
        check_task(task)
        tasks[task.id] = task
    if not tasks:
        raise ConfigError(f"tasks.source {source} returned no tasks: return at least one")
    return tuple(tasks.values())
