"""The demo tasks: follow notes from folder to folder, then turn numbers into a file as the last note says.

Sixteen folders hold a note and a list of numbers. The instruction names a first folder. A note says either where to
look next, or what to compute from the numbers beside it: one of sixteen operations, in one of eight formats, each of
them a program. Folders off the path send the agent back to the first. The right way takes three to five turns:

    cat amber/note             ->  look in cedar
    cat cedar/note             ->  the largest, as json
    max cedar/data | json > out
    finish

Built for small models: the vocabulary is closed (folders, operations, formats), every choice depends on what was just
observed, and the numbers travel through pipes and never through the model. Any number of tasks from a seed; train and
held-out tasks share no combination of folder, operation and format.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

import slipstream as ss

FOLDERS = (
    "amber", "birch", "cedar", "delta", "ember", "flint", "grove", "haven",
    "ivory", "jade", "kelp", "lotus", "maple", "north", "olive", "pearl",
)  # fmt: skip

OPERATIONS: Mapping[str, tuple[str, str]] = {
    "sum": ("the total", "awk '{s += $1} END {print s}'"),
    "min": ("the smallest", "sort -n | head -n 1"),
    "max": ("the largest", "sort -n | tail -n 1"),
    "count": ("how many", "awk 'END {print NR}'"),
    "first": ("the first", "head -n 1"),
    "last": ("the last", "tail -n 1"),
    "up": ("rising", "sort -n"),
    "down": ("falling", "sort -rn"),
    "flip": ("backwards", "tac"),
    "uniq": ("each once", "sort -nu"),
    "even": ("the even ones", "awk '$1 % 2 == 0'"),
    "odd": ("the odd ones", "awk '$1 % 2 == 1'"),
    "double": ("twice each", "awk '{print $1 * 2}'"),
    "square": ("squared", "awk '{print $1 * $1}'"),
    "next": ("one more each", "awk '{print $1 + 1}'"),
    "steps": ("running total", "awk '{s += $1; print s}'"),
}
"""The program's name -> how a note asks for it, and what the program does to numbers, one a line."""

FORMATS: Mapping[str, str] = {
    "lines": "cat",
    "csv": "paste -sd,",
    "tabs": "paste -s",
    "words": "paste -sd' '",
    "json": "paste -sd, | sed 's/.*/[&]/'",
    "list": "sed 's/^/- /'",
    "quoted": "sed 's/.*/\"&\"/'",
    "numbered": "awk '{print NR \": \" $0}'",
}

MAX_TURNS = 6
"""Enough to recover from one mistake on the longest way."""

_NUM_HELD_OUT = 4  # one combination in four


class Split(StrEnum):
    ALL = "all"
    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """What a task is made of: the folders on the way, the last one holding the numbers."""

    folders: tuple[str, ...]
    operation: str
    format: str
    numbers: Mapping[str, tuple[int, ...]]

    @property
    def split(self) -> Split:
        place = FOLDERS.index(self.folders[-1]) * len(OPERATIONS) + list(OPERATIONS).index(self.operation)
        combination = place * len(FORMATS) + list(FORMATS).index(self.format)
        # A permutation of the combinations, so that every folder, operation and format is in both halves.
        scattered = combination * 2_654_435_761 % 2**32 >> 7
        return Split.HELD_OUT if scattered % _NUM_HELD_OUT == 0 else Split.TRAIN

    def note(self, folder: str) -> str:
        if folder == self.folders[-1]:
            return f"{OPERATIONS[self.operation][0]}, as {self.format}"
        if folder in self.folders:
            return f"look in {self.folders[self.folders.index(folder) + 1]}"
        return f"look in {self.folders[0]}"


def demo_tasks(*, num: int = 64, seed: int = 0, split: str = Split.ALL) -> tuple[ss.Task, ...]:
    """The first `num` tasks of a seed; the same for the same arguments, always."""
    if num < 1:
        raise ss.ConfigError(f"num={num}: ask for at least one task")
    if split not in list(Split):
        raise ss.ConfigError(f'there is no split "{split}": use one of {", ".join(Split)}')
    trails = (trail for trail in _trails(seed) if split in (Split.ALL, trail.split))
    return tuple(_as_task(index, trail) for index, trail in enumerate(islice(trails, num)))


def _trails(seed: int) -> Iterator[Trail]:
    chance = random.Random(f"demo tasks {seed}")
    while True:
        yield Trail(
            folders=tuple(chance.sample(FOLDERS, chance.randint(1, 3))),
            operation=chance.choice(list(OPERATIONS)),
            format=chance.choice(list(FORMATS)),
            numbers={folder: tuple(chance.choices(range(1, 50), k=chance.randint(4, 9))) for folder in FOLDERS},
        )


def _as_task(index: int, trail: Trail) -> ss.Task:
    data_folder = trail.folders[-1]
    check = f"{trail.operation} {data_folder}/data | {trail.format} | cmp -s - out || exit 1"
    return ss.Task(
        id=f"{index:05d}-{'-'.join((*trail.folders, trail.operation, trail.format))}",
        instruction=f"Start in {trail.folders[0]}.",
        tools=(f"{__package__}.tools:bash", f"{__package__}.tools:finish"),
        limits=ss.AgentLimits(turns=MAX_TURNS, context_tokens=8_192, tool_seconds=60.0),
        sandbox=ss.SandboxSpec(
            files=_files(trail),
            env={"PATH": "/work/bin:/usr/bin:/bin"},
            limits=ss.SandboxLimits(memory_mb=512, processes=64, disk_mb=16, file_mb=4),
        ),
        artifact=("out",),
        grader=ss.command(check, timeout_s=30.0),
    )


def _files(trail: Trail) -> dict[str, ss.File]:
    files: dict[str, ss.File] = {}
    for folder in FOLDERS:
        files[f"{folder}/note"] = ss.File(data=f"{trail.note(folder)}\n".encode())
        files[f"{folder}/data"] = ss.File(data="".join(f"{number}\n" for number in trail.numbers[folder]).encode())
    programs = {name: f'cat "$@" | {body}' for name, (_, body) in OPERATIONS.items()} | dict(FORMATS)
    for name, body in programs.items():
        files[f"bin/{name}"] = ss.File(data=f"#!/bin/sh\n{body}\n".encode(), mode=0o755)
    return files
