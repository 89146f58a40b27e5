"""The agent: respond, run tools, record, until finished or a limit. It knows no task and no tool by name.

Enters: a brief, a sandbox, a dialogue. Leaves: an Ending.
Always holds: every call of a turn is answered; a turn without a call is answered too; nothing the model says raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from slipstream.agent.config import AgentConfig
from slipstream.agent.nested import NestedDialogue
from slipstream.agent.stuck import StuckWatch
from slipstream.dialogue.base import Dialogue
from slipstream.errors import ConfigError, ContextOverflow, SandboxBroken
from slipstream.sandbox.base import Sandbox
from slipstream.tools.base import ContextEdit, Finish, Observation
from slipstream.tools.toolset import CallResult, Toolset
from slipstream.types import Brief, Ending, EndReason, Message, Role, Span, SpanKind, Turn

LEAST_TOOL_SECONDS = 1.0
"""With less than this left, the limit on tool time counts as reached: a tool that ends before its deadline would only
ever come nearer to it."""

DEFAULTS = AgentConfig()
NO_CALL = "There was no tool call in your reply. Act by calling a tool; to end, call finish."


class Runner(Protocol):
    """Whatever can work on a brief: the loop below, or an unmodified program behind the gateway."""

    async def run(
        self,
        brief: Brief,
        sandbox: Sandbox | None,
        dialogue: Dialogue,
        past_turns: Sequence[Turn],
        *,
        on_span: Callable[[Span], None],
    ) -> Ending: ...


class ToolAgent:
    """The tool-centric loop."""

    def __init__(self, toolset: Toolset, config: AgentConfig = DEFAULTS) -> None:
        self._toolset = toolset
        self._config = config

    async def run(
        self,
        brief: Brief,
        sandbox: Sandbox | None,
        dialogue: Dialogue,
        past_turns: Sequence[Turn],
        *,
        on_span: Callable[[Span], None],
    ) -> Ending:
        if past_turns:
            raise ConfigError("this agent cannot go on from recorded turns: start the attempt anew")
        try:
            return await self._run(brief, sandbox, dialogue, on_span)
        except ContextOverflow as raised:
            return Ending(reason=EndReason.TOKEN_LIMIT, detail=str(raised))
        except SandboxBroken as raised:
            return Ending(reason=EndReason.BROKE_SANDBOX, detail=str(raised))

    async def _run(
        self, brief: Brief, sandbox: Sandbox | None, dialogue: Dialogue, on_span: Callable[[Span], None]
    ) -> Ending:
        tool_seconds_left = brief.limits.tool_seconds
        incoming = opening(brief)
        watch = StuckWatch(self._config.stuck)
        async with self._toolset.open(sandbox=sandbox, model=NestedDialogue(dialogue)) as tools:
            for _ in range(brief.limits.turns):
                reply = await dialogue.respond(incoming, tools.specs)
                now_s = asyncio.get_running_loop().time()
                results = await tools.run(reply.message.calls, dialogue.messages, deadline_s=now_s + tool_seconds_left)
                for result in results:
                    on_span(_tool_span(result))
                    tool_seconds_left -= result.end_s - result.start_s
                for result in results:
                    if isinstance(result.outcome, Finish):
                        return Ending(reason=EndReason.FINISHED, answer=result.outcome.answer)
                if tool_seconds_left < LEAST_TOOL_SECONDS:
                    return Ending(
                        reason=EndReason.TOOL_TIME_LIMIT, detail=f"{brief.limits.tool_seconds:g} s of tools are used up"
                    )
                if why := watch.note(results):
                    return Ending(reason=EndReason.STUCK, detail=why)
                incoming = answers(results)
                for result in results:
                    if isinstance(result.outcome, ContextEdit):
                        dialogue, incoming = dialogue.rewrite(result.outcome.messages), ()
                        break
        return Ending(reason=EndReason.TURN_LIMIT, detail=f"{brief.limits.turns} turns are used up")


def opening(brief: Brief) -> tuple[Message, ...]:
    """The messages a conversation begins with."""
    system = (Message(role=Role.SYSTEM, content=brief.system),) if brief.system else ()
    return (*system, Message(role=Role.USER, content=brief.instruction))


def answers(results: Sequence[CallResult]) -> tuple[Message, ...]:
    """What the model reads next: one answer for each call, or a word about the missing one."""
    if not results:
        return (Message(role=Role.USER, content=NO_CALL),)
    return tuple(
        Message(
            role=Role.TOOL,
            content=result.text,
            call_id=result.call.id,
            name=result.call.name,
            images=result.outcome.images if isinstance(result.outcome, Observation) else (),
            hints=result.hints,
        )
        for result in results
    )


def _tool_span(result: CallResult) -> Span:
    counts = {"error": int(result.is_error), "chars_cut": result.num_chars_cut}
    return Span(kind=SpanKind.TOOL, start_s=result.start_s, end_s=result.end_s, name=result.call.name, counts=counts)
