"""A set of tasks from commits in the formats of others.

Input: the folder of a set. Output: the file or folder that was written in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.tasks.commits.harbor import write_folders
from slipstream.tasks.commits.swebench import write_rows
from slipstream.tasks.factory.package.runner import DEPS
from slipstream.tasks.factory.task_set import REPORT
from slipstream.tasks.gate import TASKS
from slipstream.tasks.jsonl import read_tasks
from slipstream.types import Task


class Format(StrEnum):
    SWEBENCH = "swebench"
    HARBOR = "harbor"


def format_named(name: str) -> Format:
    if name not in set(Format):
        raise ConfigError(f'there is no format "{name}"{did_you_mean(name, list(Format))}: give {" or ".join(Format)}')
    return Format(name)


def write_format(format: Format, folder: Path) -> Path:
    """Write all tasks of a set in a format, in place of what was written before."""
    tasks = read_tasks(folder / TASKS)
    told: dict[str, Any] = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    facts: Mapping[str, Mapping[str, Any]] = {str(one["id"]): one for one in told["tasks"]}
    match format:
        case Format.SWEBENCH:
            return write_rows(tasks, facts, folder)
        case Format.HARBOR:
            return write_folders(tasks, facts, folder, python=_python_of(tasks[0]))


def _python_of(task: Task) -> str:
    """The version of Python that a tree's requirements were installed for."""
    assert task.sandbox is not None
    place = Path(task.sandbox.tree, DEPS, "pyvenv.cfg")
    lines = place.read_text(encoding="utf-8").splitlines() if place.is_file() else []
    return next((line.partition("=")[2].strip() for line in lines if line.startswith("version")), "3")
