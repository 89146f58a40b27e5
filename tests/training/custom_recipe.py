"""A custom task as a user would write it, with the default learner: a note says what to compute from the numbers beside
it.

    slipstream train tests/training/custom_recipe.py:recipe

Two plain Python tools, so nothing but torch is needed. The model is the quickstart's, which knows the form of a
command by example, and whose choices are right less than half of the time.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

from slipstream.errors import ToolError
from slipstream.recipes.demo.tasks import FOLDERS, FORMATS, OPERATIONS
from slipstream.recipes.quickstart import recipe as quickstart
from slipstream.settings import DemonstrationsConfig, ModelConfig, TasksConfig, TrainConfig
from slipstream.tools import Effect, Finish, tool
from slipstream.types import AgentLimits, Brief, Grading, Task

HERE = Path(__file__).resolve()
_READ = re.compile(r"cat (\w+)/note")
_MADE = re.compile(r"(\w+) (\w+)/data \| (\w+) > out")


def note_of(folder: str) -> tuple[str, str]:
    """The operation and the format that the note in a folder names."""
    chance = random.Random(f"note {folder}")
    return chance.choice(sorted(OPERATIONS)), chance.choice(sorted(FORMATS))


@tool(effect=Effect.PURE)
async def bash(command: str) -> str | Finish:
    """Read a note, or make the file that it asks for."""
    if (read := _READ.fullmatch(command)) and read[1] in FOLDERS:
        operation, form = note_of(read[1])
        return f"{OPERATIONS[operation][0]}, as {form}"
    if made := _MADE.fullmatch(command):
        return Finish(answer=" ".join(made.groups()))
    raise ToolError("no such command")


@tool(effect=Effect.PURE)
async def finish() -> Finish:
    """End."""
    return Finish(answer="nothing")


def notes(*, num: int = 1_000, seed: int = 0) -> list[Task]:
    chance = random.Random(f"notes {seed}")
    return [_task(number, chance.choice(FOLDERS), seed) for number in range(num)]


def _task(number: int, folder: str, seed: int) -> Task:
    operation, form = note_of(folder)
    return Task(
        id=f"note-{seed}-{number}",
        brief=Brief(
            instruction=f"Start in {folder}.",
            tools=(f"{HERE}:bash", f"{HERE}:finish"),
            limits=AgentLimits(turns=4, context_tokens=512),
        ),
        sandbox=None,
        grading=Grading(kind="exact", spec={"expected": f"{operation} {folder} {form}"}),
    )


def recipe() -> TrainConfig:
    """Tasks and a model; `learner`, `groups`, `samples` and `advantages` are as they come."""
    made = quickstart()
    return TrainConfig(
        name="notes",
        tasks=TasksConfig(source=f"{HERE}:notes", num=1_000, args={"seed": 1}),
        held_out=TasksConfig(source=f"{HERE}:notes", num=64, args={"seed": 2}),
        model=ModelConfig(
            kind="local",
            make=made.model.make,
            family_args=made.model.family_args,
            max_tokens=24,
            context_tokens=512,
        ),
        warm_start=DemonstrationsConfig(
            source=made.warm_start.source, args=made.warm_start.args, learning=made.warm_start.learning
        ),
        steps=30,
        eval_every=10,
    )
