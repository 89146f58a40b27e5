"""Tasks whose reward is a coin that depends on what was done, with tools that answer the same every time.

Even a model that knows next to nothing gets different rewards for different rollouts, so there is something to learn;
and nothing here depends on the order in which processes happen to write.
"""

import zlib
from pathlib import Path

from slipstream.recipes.demo.tasks import FOLDERS
from slipstream.tools import Effect, Finish, ToolContext, tool
from slipstream.types import AgentLimits, Brief, Grading, Task


def _said(ctx: ToolContext) -> list[str]:
    """The commands of the conversation: a tool that is PURE keeps nothing, or it could not be resumed."""
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
async def finish(ctx: ToolContext) -> Finish:
    """End."""
    return _toss(ctx)


def coin_tasks(*, num: int = 12, seed: int = 1, split: str = "train") -> tuple[Task, ...]:
    here = Path(__file__).resolve()
    return tuple(
        Task(
            id=f"{split}-{number}",
            brief=Brief(
                instruction=f"Start in {FOLDERS[(number + seed) % len(FOLDERS)]}.",
                tools=(f"{here}:bash", f"{here}:finish"),
                limits=AgentLimits(turns=6, context_tokens=8_192),
            ),
            sandbox=None,
            grading=Grading(kind="exact", spec={"expected": "1"}),
        )
        for number in range(num)
    )
