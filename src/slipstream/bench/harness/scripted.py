"""The task, tool and replies that the benchmarks of the harness share: the model and the tool answer from memory."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.tools import Effect, Toolset, tool
from slipstream.types import AgentLimits, Brief, Grading, Job, JobKey, Message, Role, Rollout, Task, ToolCall

TASK_ID = "overhead"


def observation(at: int) -> str:
    return f"At {at} there is a thing like any other, and it leads to the next."


@tool(effect=Effect.PURE)
async def look(at: int) -> str:
    """Look at a thing."""
    return observation(at)


def make_toolset() -> Toolset:
    return Toolset([look, *Toolset.named(("finish",)).tools.values()])


def make_replies(num_turns: int) -> list[Message]:
    """Replies that call the tool at every turn but the last, then finish."""
    calls = [ToolCall(id=f"call_{turn}", name="look", arguments={"at": turn}) for turn in range(num_turns - 1)]
    calls.append(ToolCall(id="call_last", name="finish", arguments={"answer": "42"}))
    return [Message(role=Role.ASSISTANT, content="I look at the next thing.", calls=(call,)) for call in calls]


def make_task(num_turns: int) -> Task:
    return Task(
        id=TASK_ID,
        brief=Brief(instruction="Look around.", system="You look.", limits=AgentLimits(turns=num_turns)),
        grading=Grading(kind="exact", spec={"expected": "42"}),
        sandbox=None,
    )


def make_jobs(num: int) -> list[Job]:
    keys = [JobKey(phase="bench", step=0, task_id=TASK_ID, sample=sample) for sample in range(num)]
    return [Job(key=key, seed=key.sample, weight=0) for key in keys]


def check_complete(rollouts: Sequence[Rollout], num_turns: int) -> None:
    """Raises RuntimeError unless every rollout has all its turns and a verdict."""
    if not all(len(rollout.turns) == num_turns and rollout.verdict is not None for rollout in rollouts):
        raise RuntimeError(f"a rollout did not reach {num_turns} turns and a verdict: {rollouts[0].ending}")
