"""Going on from recorded turns: the tools of a fresh sandbox are brought to where the stopped ones were.

Input: the turns of an attempt that stopped, and the open tools of the one that goes on with them. Output: what came of
the calls of each turn but the last; the last one's may never have been run, so running them is what the agent does
next.
Invariants: a PURE call is not run again, its answer is read back from the turn after it; every other call is run
again, one by one in the order of the record, and must be answered as before; an EXTERNAL call is never run again.
Where that cannot be had there is a ReplayError; with an EXTERNAL call in the record, before any tool was touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from slipstream.agent.answers import answers, without_hints
from slipstream.errors import ReplayError, SandboxBroken
from slipstream.tools.base import Effect, Hint, Observation, Tool
from slipstream.tools.toolset import CallResult, OpenToolset
from slipstream.types import Message, ToolCall, Turn

_MAX_SHOWN_CHARS = 200


def check_replayable(turns: Sequence[Turn], tools: Mapping[str, Tool]) -> None:
    """Raise ReplayError if a call that changes something outside is on record: it may have been carried out."""
    for turn in turns:
        if external := external_calls(_calls(turn), tools):
            name = external[0].name
            raise ReplayError(f"turn {turn.index} called {name}, and what that does must not be done twice")


def external_calls(calls: Sequence[ToolCall], tools: Mapping[str, Tool]) -> list[ToolCall]:
    """Those that change something outside."""
    return [call for call in calls if _effect(call, tools) is Effect.EXTERNAL]


async def replay_turn(
    turn: Turn,
    after: Turn,
    messages: Sequence[Message],
    opened: OpenToolset,
    tools: Mapping[str, Tool],
    *,
    tool_seconds: float,
    hint_names: Collection[str] = (),
) -> tuple[tuple[CallResult, ...], tuple[Hint, ...]]:
    """What came of the calls of `turn`, as `after`, the turn that followed, has it on record, and the agent's hints.

    `messages` is the conversation up to `turn`; `tool_seconds` is what is left to tools; `hint_names` are those of the
    agent's hints, which are read back: a tool's own come with its answer.
    """
    recorded, hints = without_hints(after.messages[:-1], hint_names)
    calls = _calls(turn)
    if len(recorded) != max(1, len(calls)):
        raise ReplayError(f"turn {turn.index} made {len(calls)} calls, and {len(recorded)} answers are on record")
    results: list[CallResult] = []
    for call, answer in zip(calls, recorded, strict=bool(calls)):
        if _effect(call, tools) is Effect.PURE:
            result = _read_back(call, answer)
        else:
            result = await _run_again(call, messages, opened, tool_seconds)
            tool_seconds -= result.end_s - result.start_s
        results.append(result)
    _compare(turn, results, recorded)
    return tuple(results), hints


def _calls(turn: Turn) -> tuple[ToolCall, ...]:
    return turn.messages[-1].calls


def _effect(call: ToolCall, tools: Mapping[str, Tool]) -> Effect | None:
    """None for a call that is answered without being run."""
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
        raise ReplayError(f"{call.name} was answered before, and broke the sandbox now: {raised}") from raised
    if not isinstance(result.outcome, Observation):
        raise ReplayError(f"{call.name} was answered before, and gave a {type(result.outcome).__name__} now")
    return result


def _compare(turn: Turn, results: Sequence[CallResult], recorded: Sequence[Message]) -> None:
    for now, before in zip(answers(results), recorded, strict=True):
        if now != before:
            said, says = before.content[:_MAX_SHOWN_CHARS], now.content[:_MAX_SHOWN_CHARS]
            raise ReplayError(f"turn {turn.index}: {now.name or 'the answer'} said {said!r} before, and {says!r} now")
