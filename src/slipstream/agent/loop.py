"""The agent: respond, run tools, record, until finished or a limit. It knows no task and no tool by name.

Input: a brief, a sandbox, a dialogue; of an attempt that stopped, also the turns it had taken. Output: an Ending.
Invariants: every call of a turn is answered; a turn without a call is answered too; nothing the model says raises.
A resumed attempt behaves as one that never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from slipstream.agent.answers import answers
from slipstream.agent.condense import HINT, Condenser, asks
from slipstream.agent.config import AgentConfig
from slipstream.agent.hints import Adviser
from slipstream.agent.nested import NestedDialogue
from slipstream.agent.prompts import code_prompt
from slipstream.agent.replay import check_replayable, external_calls, replay_turn
from slipstream.agent.stuck import StuckWatch
from slipstream.dialogue.base import Dialogue, Reply, is_rewrite
from slipstream.errors import ContextOverflow, SandboxBroken
from slipstream.sandbox.base import Sandbox
from slipstream.tools.base import Effect, Finish
from slipstream.tools.toolset import CallResult, OpenToolset, Toolset, context_edit
from slipstream.types import Brief, Ending, EndReason, Message, Role, Span, SpanKind, StopReason, Turn

MIN_TOOL_SECONDS = 1.0
"""With less than this left, the limit on tool time counts as reached: tools that end before their deadline would never
quite reach it."""

DEFAULTS = AgentConfig()


class Runner(Protocol):
    """Works on a brief: the loop below, or an unmodified agent program behind the gateway."""

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
    """The agent loop: everything is a tool call."""

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
        try:
            return await self._run(brief, sandbox, dialogue, past_turns, on_span)
        except ContextOverflow as raised:
            return Ending(reason=EndReason.TOKEN_LIMIT, detail=str(raised))
        except SandboxBroken as raised:
            return Ending(reason=EndReason.BROKE_SANDBOX, detail=str(raised))

    async def _run(
        self,
        brief: Brief,
        sandbox: Sandbox | None,
        dialogue: Dialogue,
        past_turns: Sequence[Turn],
        on_span: Callable[[Span], None],
    ) -> Ending:
        tool_seconds_left = brief.limits.tool_seconds
        brief = briefed(brief, self._config)
        incoming = opening(brief)
        condenser = Condenser(self._config.condense, incoming)
        watch = StuckWatch(self._config.stuck)
        adviser = self._adviser(brief)
        past: Reply | None = None
        if past_turns:
            check_replayable(past_turns, self._toolset.tools)
            dialogue.restore(past_turns)
            past = recorded_reply(past_turns[-1])
        async with self._toolset.open(
            sandbox=sandbox,
            model=NestedDialogue(dialogue),
            resources=brief.resources,
            opening=incoming,
            shows_hints=self._config.hints.from_tools,
        ) as tools:
            tool_seconds_left -= await self._replay(past_turns, tools, watch, adviser, tool_seconds_left, on_span)
            for _ in range(max(0, len(past_turns) - 1), brief.limits.turns):
                reply, past = past or await condenser.respond(dialogue, incoming, tools.specs), None
                if asks(dialogue.messages[:-1]):
                    adviser.recall((), ())
                    dialogue, incoming = condenser.rewritten(dialogue, reply), ()
                    continue
                calls = reply.message.calls
                if external_calls(calls, self._toolset.tools):
                    await dialogue.settled()  # otherwise a resumed run would not know of it, and repeat it
                results = await tools.run(calls, dialogue.messages, deadline_s=tools.now_s() + tool_seconds_left)
                for result in results:
                    on_span(_tool_span(result))
                    tool_seconds_left -= result.end_s - result.start_s
                results, hints = adviser.advise(results, dialogue.window)
                for result in results:
                    if isinstance(result.outcome, Finish):
                        return Ending(reason=EndReason.FINISHED, answer=result.outcome.answer)
                if tool_seconds_left < MIN_TOOL_SECONDS:
                    return Ending(
                        reason=EndReason.TOOL_TIME_LIMIT,
                        detail=f"the {brief.limits.tool_seconds:g} s of tool time are used up",
                    )
                was_cut = self._config.cut_replies == "cut_off" and cut_before_a_call(reply)
                if ending := watch.note(results, was_cut=was_cut):
                    return ending
                if edit := context_edit(results):
                    dialogue, incoming = dialogue.rewrite(edit.messages), ()
                else:
                    incoming = condenser.fit(dialogue, answers(results, was_cut=was_cut), hints, tools.specs)
        reason = EndReason.TOO_LATE if self._config.out_of_turns == "failed" else EndReason.TURN_LIMIT
        return Ending(reason=reason, detail=f"{brief.limits.turns} turns are used up")

    def _adviser(self, brief: Brief) -> Adviser:
        known = self._toolset.tools
        pure = [name for name, tool in known.items() if tool.effect in (Effect.PURE, Effect.STATE)]
        rules = self._config.hints
        if self._config.condense.on:
            rules = replace(rules, few_tokens=False)  # a full window is no reason to come to an end
        return Adviser(rules, tools=known, pure=pure, num_turns=brief.limits.turns)

    async def _replay(
        self,
        past_turns: Sequence[Turn],
        tools: OpenToolset,
        watch: StuckWatch,
        adviser: Adviser,
        tool_seconds: float,
        on_span: Callable[[Span], None],
    ) -> float:
        """Restore the tools, the watch and the adviser to their state before the last of `past_turns`; returns the tool
        seconds used."""
        messages: tuple[Message, ...] = ()
        left = tool_seconds
        for before, turn, after in zip((None, *past_turns), past_turns, past_turns[1:], strict=False):
            messages = turn.messages if before is None or is_rewrite(turn, before) else messages + turn.messages
            if asks(turn.messages[:-1]):
                adviser.recall((), ())
                continue
            replayed = await replay_turn(
                turn, after, messages, tools, self._toolset.tools, tool_seconds=left, hint_names={*adviser.names, HINT}
            )
            for result in replayed.results:
                if result.end_s > result.start_s:  # answers that were read back took no time
                    on_span(_tool_span(result, replayed=True))
                left -= result.end_s - result.start_s
            watch.note(replayed.results, was_cut=replayed.was_cut)
            adviser.recall(replayed.results, replayed.hints)
        return tool_seconds - left


def cut_before_a_call(reply: Reply) -> bool:
    """Whether a reply was cut off with no call in it that could be run."""
    return reply.stop is StopReason.LENGTH and all(call.problem is not None for call in reply.message.calls)


def recorded_reply(turn: Turn) -> Reply:
    stop = StopReason.STOP if turn.sampled is None else turn.sampled.stop
    return Reply(message=turn.messages[-1], stop=stop)


def briefed(brief: Brief, config: AgentConfig) -> Brief:
    """The brief as the agent sees it, with its system prompt."""
    if brief.system or config.prompt in ("auto", "none"):
        return brief
    if config.prompt == "code":
        return replace(brief, system=code_prompt([name.rpartition(":")[2] for name in brief.tools]))
    return replace(brief, system=config.prompt)


def opening(brief: Brief) -> tuple[Message, ...]:
    """The first messages of a conversation."""
    system = (Message(role=Role.SYSTEM, content=brief.system),) if brief.system else ()
    return (*system, Message(role=Role.USER, content=brief.instruction))


def _tool_span(result: CallResult, *, replayed: bool = False) -> Span:
    counts = {"error": int(result.is_error), "chars_cut": result.num_chars_cut}
    if replayed:
        counts["replayed"] = 1
    return Span(kind=SpanKind.TOOL, start_s=result.start_s, end_s=result.end_s, name=result.call.name, counts=counts)
