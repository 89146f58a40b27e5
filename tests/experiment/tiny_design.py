"""An experiment that two cores run in seconds: the quickstart's model with an adapter, on tasks that pay by a coin.

`TASKS` is any folder. The tools answer the same every time, and even a model that knows next to nothing gets different
rewards, so there is something to learn.
"""

import zlib
from dataclasses import replace
from pathlib import Path

from slipstream.engine.training.config import LoraConfig
from slipstream.experiment.design import FULL, Arm, Design
from slipstream.recipes.demo.tasks import FOLDERS
from slipstream.recipes.quickstart import recipe as quickstart
from slipstream.settings import TasksConfig
from slipstream.tools import Effect, Finish, ToolContext, tool
from slipstream.types import AgentLimits, Brief, Grading, Task

HERE = Path(__file__).resolve()


def _said(ctx: ToolContext) -> list[str]:
    calls = (call for message in ctx.messages for call in message.calls)
    return [repr(call.arguments) for call in calls if call.name == "bash" and call.problem is None]


def _toss(ctx: ToolContext) -> Finish:
    return Finish(answer=str(zlib.crc32(repr(_said(ctx)).encode()) % 2))


@tool(effect=Effect.PURE, concurrent=False)
async def bash(command: str, ctx: ToolContext) -> str | Finish:
    """Run a command; the third is the last."""
    if len(_said(ctx)) >= 3:
        return _toss(ctx)
    return f"look in {FOLDERS[zlib.crc32(command.encode()) % len(FOLDERS)]}"


@tool(effect=Effect.PURE, concurrent=False)
async def search(ctx: ToolContext) -> str:
    """Look it up."""
    return "nothing"


@tool(effect=Effect.PURE, concurrent=False)
async def finish(ctx: ToolContext) -> Finish:
    """End."""
    return _toss(ctx)


def tasks(*, num: int = 8, seed: int = 1, path: str = "") -> tuple[Task, ...]:
    return tuple(
        Task(
            id=f"pack{number % 3}-{seed}-{number}@{'easy' if number % 2 else 'hard'}",
            brief=Brief(
                instruction=f"Start in {FOLDERS[(number + seed) % len(FOLDERS)]}.",
                tools=(f"{HERE}:bash", f"{HERE}:search", f"{HERE}:finish"),
                limits=AgentLimits(turns=5, context_tokens=8_192),
            ),
            sandbox=None,
            grading=Grading(kind="exact", spec={"expected": "1"}),
        )
        for number in range(num)
    )


def design(folder: Path) -> Design:
    base = quickstart()
    source = f"{HERE}:tasks"
    learning = replace(base.warm_start.learning, num_epochs=1)
    return Design(
        name="tiny",
        recipe=replace(
            base,
            name="tiny",
            tasks=TasksConfig(source=source, args={"num": 8, "seed": 1, "path": str(folder)}),
            held_out=TasksConfig(),
            warm_start=replace(base.warm_start, args={"num": 40, "quality": 0.45}, learning=learning),
            learner=replace(base.learner, method="lora", lora=LoraConfig(rank=2, alpha=4), num_epochs=1),
            model=replace(base.model, engine=replace(base.model.engine, num_slots=8)),
            steps=2,
            groups=3,
            samples=3,
            eval_every=0,
            deterministic=True,
        ),
        parts={"held_out": TasksConfig(source=source, args={"num": 5, "seed": 2, "path": str(folder)})},
        arms={
            FULL: Arm(),
            "no-search": Arm(without_tools=("search",)),
            "no-hints": Arm(settings=("agent.hints.on=false",)),
        },
        package_of=lambda task_id: task_id.partition("-")[0],
        level_of=lambda task_id: task_id.partition("@")[2],
    )
