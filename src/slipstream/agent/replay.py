"""Resumes from recorded turns: replays their calls, so that a fresh sandbox reaches the state of the stopped one.

Input: the turns of a stopped attempt, and the open tools of the one that resumes it. Output: the results of the calls
of each turn except the last, whose calls may never have been run: the agent runs them next. Invariants: a PURE call is
not run again, its answer is read from the following turn; every other call is run again, in the recorded order, and
must get the same answer; where a turn rewrote the conversation, its answers are not on record, so all its calls are run
again and must rewrite it in the same way; an EXTERNAL call is never run again. Otherwise a ReplayError is raised; for
an EXTERNAL call, before any tool is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from slipstream.agent.answers import CUT_OFF, answers, without_hints
from slipstream.dialogue.base import is_rewrite
from slipstream.dialogue.fitting import is_shortened
from slipstream.errors import ReplayError, SandboxBroken
from slipstream.tools.base import Effect, Hint, Observation, Tool
from slipstream.tools.toolset import CallResult, OpenToolset, context_edit
from slipstream.types import Message, ToolCall, Turn

_MAX_SHOWN_CHARS = 200


def check_replayable(turns: Sequence[Turn], tools: Mapping[str, Tool]) -> None:
    """Raise ReplayError if a recorded call changes something outside, since it may have been carried out."""
    for turn in turns:
        if external := external_calls(_calls(turn), tools):
            name = external[0].name
            raise ReplayError(f"turn {turn.index} called {name}, which must not be repeated")


def external_calls(calls: Sequence[ToolCall], tools: Mapping[str, Tool]) -> list[ToolCall]:
    """The calls that change something outside."""
    return [call for call in calls if _effect(call, tools) is Effect.EXTERNAL]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A recorded turn, with the results of its calls."""

    results: tuple[CallResult, ...]
    hints: tuple[Hint, ...]
    was_cut: bool
    """Whether the reply was cut off before a call that could be run."""


async def replay_turn(
    turn: Turn,
    after: Turn,
    messages: Sequence[Message],
    opened: OpenToolset,
    tools: Mapping[str, Tool],
    *,
    tool_seconds: float,
    hint_names: Collection[str] = (),
) -> Replayed:
    """The results of the calls of `turn`, as recorded in `after`, the following turn; and the agent's hints.

    `messages` is the conversation up to `turn`; `tool_seconds` is the tool time left; `hint_names` are the agent's
    hints, which are read back: hints of a tool come with its answer.
    """
    calls = _calls(turn)
    if is_rewrite(after, turn):
        return await _replay_edit(turn, after, messages, opened, tool_seconds)
    recorded, hints = without_hints(after.messages[:-1], hint_names)
    if len(recorded) != max(1, len(calls)):
        raise ReplayError(f"turn {turn.index} made {len(calls)} calls, but {len(recorded)} answers were recorded")
    results: list[CallResult] = []
    for call, answer in zip(calls, recorded, strict=bool(calls)):
        if _effect(call, tools) is Effect.PURE:
            result = _read_back(call, answer)
        else:
            result = await _run_again(call, messages, opened, tool_seconds)
            tool_seconds -= result.end_s - result.start_s
        results.append(result)
    was_cut = all(call.problem is not None for call in calls) and recorded[-1].content.endswith(CUT_OFF)
    _compare(turn, answers(results, was_cut=was_cut), recorded)
    return Replayed(results=tuple(results), hints=hints, was_cut=was_cut)


async def _replay_edit(
    turn: Turn, after: Turn, messages: Sequence[Message], opened: OpenToolset, tool_seconds: float
) -> Replayed:
    """A turn whose calls rewrote the conversation: their answers are not on record, so all of them are run again."""
    deadline_s = asyncio.get_running_loop().time() + tool_seconds
    try:
        results = await opened.run(_calls(turn), messages, deadline_s=deadline_s)
    except SandboxBroken as raised:
        raise ReplayError(f"turn {turn.index} broke the sandbox on replay: {raised}") from raised
    edit = context_edit(results)
    if edit is None:
        raise ReplayError(f"turn {turn.index} rewrote the conversation before, and does not on replay")
    if edit.messages != after.messages[:-1]:
        raise ReplayError(f"turn {turn.index} rewrote the conversation to something else on replay")
    return Replayed(results=results, hints=(), was_cut=False)


def _calls(turn: Turn) -> tuple[ToolCall, ...]:
    return turn.messages[-1].calls


def _effect(call: ToolCall, tools: Mapping[str, Tool]) -> Effect | None:
    """None for a call that is answered without running a tool."""
    tool = tools.get(call.name)
    return None if tool is None or call.problem is not None else tool.effect


def _read_back(call: ToolCall, answer: Message) -> CallResult:
    now_s = asyncio.get_running_loop().time()
    observation = Observation(
        text=answer.content,
        images=answer.images,
        is_error=answer.is_error,
        hints=tuple(Hint(name=name, text="") for name in answer.hints),
    )
    return CallResult(call=call, outcome=observation, text=answer.content, start_s=now_s, end_s=now_s)


async def _run_again(
    call: ToolCall, messages: Sequence[Message], opened: OpenToolset, tool_seconds: float
) -> CallResult:
    deadline_s = asyncio.get_running_loop().time() + tool_seconds
    try:
        (result,) = await opened.run((call,), messages, deadline_s=deadline_s)
    except SandboxBroken as raised:
        raise ReplayError(f"{call.name} succeeded before, but broke the sandbox on replay: {raised}") from raised
    if not isinstance(result.outcome, Observation):
        raise ReplayError(
            f"{call.name} returned an observation before, but a {type(result.outcome).__name__} on replay"
        )
    return result


def _compare(turn: Turn, told: Sequence[Message], recorded: Sequence[Message]) -> None:
    for now, before in zip(told, recorded, strict=True):
        shortened = is_shortened(before.content, now.content)
        if (replace(now, content=before.content) if shortened else now) != before:
            old, new = before.content[:_MAX_SHOWN_CHARS], now.content[:_MAX_SHOWN_CHARS]
            tool = now.name or "the agent"
            raise ReplayError(f"turn {turn.index}: {tool} answered {old!r} before, but {new!r} on replay")
