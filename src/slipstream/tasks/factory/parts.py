"""Parts of a made task set: the tasks of a tier, and of those the ones to learn from or the ones to be held out.

Input: a folder that `slipstream tasks make` wrote. Output: Tasks, the packages mixed.

    tasks=slipstream.tasks.factory.parts:read_part tasks.args.path=DIR tasks.args.tier=tiny tasks.args.part=train

Invariants: a task's id alone decides whether it is held out, and its place; no task is in both parts.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.tasks.factory.difficulty import Tier
from slipstream.tasks.gate import file_of
from slipstream.tasks.jsonl import read_tasks
from slipstream.types import Task

ONE_IN = 8
"""Of so many tasks, about one is held out."""

Part = Literal["all", "train", "held_out"]


def read_part(*, path: str = "", tier: str = "", part: Part = "all", num: int | None = None) -> tuple[Task, ...]:
    """The first `num` tasks of a part. An empty tier is every tier."""
    if not path:
        raise ConfigError(
            "no folder of made tasks is named: set tasks.args.path, and held_out.args.path where tasks are held out, "
            "to what `slipstream tasks make` wrote"
        )
    if tier and tier not in set(Tier):
        raise ConfigError(f'there is no tier "{tier}"{did_you_mean(tier, list(Tier))}: give one of {", ".join(Tier)}')
    if part not in ("all", "train", "held_out"):
        raise ConfigError(f'there is no part "{part}": give all, train or held_out')
    found = [task for task in read_tasks(file_of(Path(path))) if not tier or tier_of(task) == tier]
    if part != "all":
        found = [task for task in found if (_lot(task.id) % ONE_IN == 0) == (part == "held_out")]
    if not found:
        raise ConfigError(f"{path} has no tasks of the tier {tier or 'any'} in the part {part}: make more tasks")
    return tuple(sorted(found, key=lambda task: _lot(task.id))[:num])


def tier_of(task: Task) -> str:
    """As the id of a made task ends."""
    return task.id.rpartition("-")[2]


def _lot(task_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(task_id.encode(), digest_size=8).digest(), "big")
