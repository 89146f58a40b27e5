"""Parts of a made task set: the tasks of some tiers, split by package into what is learnt from and what is not.

Input: a folder that `slipstream tasks make` wrote, and the names of the packages that are demonstrated, kept for
validation or held out. Output: Tasks, the packages mixed.

    tasks=made tasks.args.path=DIR tasks.args.tier=tiny tasks.args.part=train

Invariants: a package is in one part alone, whatever its version; a task's id alone decides its place, and at which
levels it comes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.tasks.factory.difficulty import tier_named
from slipstream.tasks.factory.levels import Level, at_levels, made_id
from slipstream.tasks.factory.package.sources import normal_name
from slipstream.tasks.gate import file_of
from slipstream.tasks.jsonl import read_tasks
from slipstream.types import Task

Part = Literal["all", "train", "demonstrated", "validation", "held_out"]
PARTS: tuple[Part, ...] = ("all", "train", "demonstrated", "validation", "held_out")


def read_part(
    *,
    path: str = "",
    tier: str | Sequence[str] = "",
    part: Part = "all",
    demonstrated: Sequence[str] = (),
    validation: Sequence[str] = (),
    held_out: Sequence[str] = (),
    levels: Mapping[str, float] | None = None,
    num: int | None = None,
) -> tuple[Task, ...]:
    """The first `num` tasks of a part. An empty tier is every tier. `demonstrated` (for a warm start), `validation` and
    `held_out` name packages; the others are for training. `levels` says which share of the tasks comes at each level,
    such as `{"shown": 1, "search": 0.25}`; without it they are as they were made."""
    if not path:
        raise ConfigError(
            "no folder of made tasks is named: set tasks.args.path, and held_out.args.path where tasks are held out, "
            "to what `slipstream tasks make` wrote"
        )
    tiers = {tier_named(one) for one in ([tier] if isinstance(tier, str) else tier) if one}
    if part not in PARTS:
        raise ConfigError(f"there is no part {part!r}: give {', '.join(PARTS)}")
    shares = _shares(levels)
    split: dict[Part, Sequence[str]] = {
        "demonstrated": demonstrated,
        "validation": validation,
        "held_out": held_out,
    }
    _check_split(part, split)
    found = [task for task in read_tasks(file_of(Path(path))) if not tiers or tier_of(task) in tiers]
    if part != "all":
        found = [task for task in found if part_of(task, split) == part]
    if not found:
        named = ", ".join(sorted(tiers)) or "any"
        raise ConfigError(f"{path} has no tasks of the tier {named} in the part {part}: make more tasks")
    found.sort(key=lambda task: _lot(task.id))
    if shares:
        found = [made for task in found for made in _at_levels(task, shares)]
    return tuple(found[:num])


def tier_of(task: Task) -> str:
    """As the id of a made task ends."""
    return made_id(task.id).rpartition("-")[2]


def package_name(task: Task) -> str:
    """Without the version: `toolz` of `toolz-1.0.0-0003-tiny`."""
    return normal_name(made_id(task.id).rsplit("-", 3)[0])


def part_of(task: Task, split: Mapping[Part, Sequence[str]]) -> Part:
    """By the packages that each part names; the others are trained on."""
    name = package_name(task)
    return next((part for part, names in split.items() if name in map(normal_name, names)), "train")


def _check_split(part: Part, split: Mapping[Part, Sequence[str]]) -> None:
    times = Counter(name for names in split.values() for name in {*map(normal_name, names)})
    if twice := sorted(name for name, number in times.items() if number > 1):
        raise ConfigError(f"{', '.join(twice)}: a package is in one part, so name it once")
    if part in split and not split[part]:
        raise ConfigError(f"no package is named for the part {part}: give {part}=[NAME, ...]")


def _shares(levels: Mapping[str, float] | None) -> dict[Level, float]:
    shares: dict[Level, float] = {}
    for name, share in (levels or {}).items():
        if name not in set(Level):
            known = ", ".join(Level)
            raise ConfigError(f'there is no level "{name}"{did_you_mean(name, list(Level))}: give one of {known}')
        if not 0 <= share <= 1:
            raise ConfigError(f"levels.{name}={share}: give the share of the tasks that come at it, from 0 to 1")
        shares[Level(name)] = share
    return shares


def _at_levels(task: Task, shares: Mapping[Level, float]) -> list[Task]:
    wanted = [level for level, share in shares.items() if _lot(f"{task.id} {level}") < share * 2**64]
    return at_levels(task, wanted)


def _lot(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
