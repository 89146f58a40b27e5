"""The tools of a rollout; runs the calls of each turn.

Input: the calls a model wrote. Output: one CallResult for each, in order. Invariants: every call gets an answer, run or
not; mistakes of the model are error observations; each call has a deadline on the event loop's clock; infrastructure
errors and SandboxBroken are raised. All tools made for a rollout are closed when it ends, whatever is raised or
cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType

from slipstream.aio import finish_by, outlast, task_group
from slipstream.errors import (
    ConfigError,
    SandboxFileError,
    SandboxLimitError,
    SlipstreamError,
    ToolError,
    ToolFailure,
    boundary,
)
from slipstream.names import did_you_mean
from slipstream.sandbox.base import Sandbox
from slipstream.tools.base import (
    ContextEdit,
    Effect,
    Finish,
    NestedModel,
    Observation,
    Outcome,
    Tool,
    ToolContext,
    as_outcome,
)
from slipstream.tools.cut import cut
from slipstream.tools.registry import TOOLS, resolve
from slipstream.tools.signature import describe_arguments
from slipstream.types import MAX_CALL_DEPTH, CallProblem, Json, Message, ToolCall, ToolSpec

CALL_FORMAT = '{"name": "<tool>", "arguments": {"<argument>": <value>}}'
CLOSE_TIMEOUT_S = 10.0

_MAX_REFUSAL_CHARS = 4_000
_CALLS_AT_ONCE = 20
_PROBLEMS: Mapping[CallProblem, str] = {
    CallProblem.BAD_JSON: "it is not valid JSON",
    CallProblem.UNCLOSED: "it was not closed",
    CallProblem.NO_NAME: "it names no tool",
    CallProblem.TOO_DEEP: f"its arguments are nested more than {MAX_CALL_DEPTH} levels deep",
    CallProblem.SEVERAL: "it is several calls, where a reply can have one",
    CallProblem.BAD_SHAPE: "it is not an object with a name and an object of arguments",
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """The result of one call; `text` is what the model reads."""

    call: ToolCall
    outcome: Outcome
    text: str
    start_s: float
    end_s: float
    num_chars_cut: int = 0

    @property
    def is_error(self) -> bool:
        return isinstance(self.outcome, Observation) and self.outcome.is_error

    @property
    def hints(self) -> tuple[str, ...]:
        """The names of the hints at the end of the text."""
        if not isinstance(self.outcome, Observation) or not self.outcome.hints:
            return ()
        return tuple(hint.name for hint in self.outcome.hints)


def context_edit(results: Sequence[CallResult]) -> ContextEdit | None:
    """The edit among the results of a turn, if there is one: the first."""
    return next((result.outcome for result in results if isinstance(result.outcome, ContextEdit)), None)


class Toolset:
    """Tools by name: `Toolset.named(("bash", "finish"))`, or `Toolset([my_tool, ...])`."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        by_name: dict[str, Tool] = {}
        for tool in tools:
            name = tool.spec.name
            if name in by_name:
                raise ConfigError(f'two tools are named "{name}": leave one out, or rename it')
            if not (0 < tool.timeout_s < math.inf and tool.max_output_chars > 0):
                raise ConfigError(
                    f'tool "{name}" has timeout_s={tool.timeout_s} and max_output_chars={tool.max_output_chars}: '
                    "both must be finite and greater than 0"
                )
            by_name[name] = tool
        self.tools: Mapping[str, Tool] = MappingProxyType(by_name)

    @staticmethod
    def named(names: Iterable[str], registry: Mapping[str, str | Tool] = TOOLS) -> Toolset:
        return Toolset([resolve(name, registry) for name in names])

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self.tools.values())

    @asynccontextmanager
    async def open(
        self,
        *,
        sandbox: Sandbox | None = None,
        model: NestedModel | None = None,
        resources: Mapping[str, Json] | None = None,
        opening: Sequence[Message] = (),
        call_format: str = CALL_FORMAT,
        shows_hints: bool = True,
    ) -> AsyncIterator[OpenToolset]:
        """The tools for one rollout, which began with the messages `opening`. `call_format` is the line that shows a
        model how to write a call; without `shows_hints`, hints from tools are left out."""
        need_sandbox = [name for name, tool in self.tools.items() if tool.effect is Effect.SANDBOX]
        if need_sandbox and sandbox is None:
            raise ConfigError(f"these tools need a sandbox, but there is none: {', '.join(need_sandbox)}")
        opened = OpenToolset(
            self,
            sandbox=sandbox,
            model=model,
            resources=resources or {},
            opening=opening,
            call_format=call_format,
            shows_hints=shows_hints,
        )
        try:
            yield opened
        finally:
            await opened.aclose()

    async def aclose(self) -> None:
        """Close the tools that rollouts share. Those made for a single rollout were closed with it."""
        await _close_all(list(self.tools.values()))


class OpenToolset:
    """One rollout's tools and their state."""

    def __init__(
        self,
        toolset: Toolset,
        *,
        sandbox: Sandbox | None,
        model: NestedModel | None,
        resources: Mapping[str, Json],
        opening: Sequence[Message],
        call_format: str,
        shows_hints: bool = True,
    ) -> None:
        self.specs = toolset.specs
        self.state: dict[str, object] = {}
        self._sandbox = sandbox
        self._model = model
        self._resources = resources
        self._opening = tuple(opening)
        self._call_format = call_format
        self._shows_hints = shows_hints
        self._loop = asyncio.get_running_loop()  # each look for it asks the system for the process's number
        with boundary(ToolFailure, "making the tools of a rollout"):
            self._tools = {name: tool.fresh() for name, tool in toolset.tools.items()}
        self._own = [tool for name, tool in self._tools.items() if tool is not toolset.tools[name]]

    def now_s(self) -> float:
        """The event loop's time."""
        return self._loop.time()

    async def run(
        self, calls: Sequence[ToolCall], messages: Sequence[Message], *, deadline_s: float = math.inf
    ) -> tuple[CallResult, ...]:
        """Run the calls of one turn; `deadline_s` is the loop's time by which all of them must be done.

        They run concurrently if every tool of the turn allows it. Otherwise they run in order, and those after a Finish
        or a ContextEdit are answered without being run.
        """
        messages = tuple(messages)
        if len(calls) == 1:
            return (await self._run_one(calls[0], messages, deadline_s),)
        wanted = [self._tools[call.name] for call in calls if call.problem is None and call.name in self._tools]
        if len(wanted) > 1 and all(tool.concurrent for tool in wanted):
            return await self._run_beside(calls, messages, deadline_s)
        results: list[CallResult] = []
        last: CallResult | None = None
        for number, call in enumerate(calls, 1):
            if number % _CALLS_AT_ONCE == 0:
                await asyncio.sleep(0)  # invalid calls never await, and there may be thousands of them
            if last is None:
                result = await self._run_one(call, messages, deadline_s)
                last = result if isinstance(result.outcome, Finish | ContextEdit) else None
            else:
                did = "ended the rollout" if isinstance(last.outcome, Finish) else "rewrote the conversation"
                told = Observation(text=f"Not run: the call to {last.call.name} before it {did}.", is_error=True)
                result = self._result(call, told, last.end_s)
            results.append(result)
        return tuple(results)

    async def aclose(self) -> None:
        own, self._own = self._own, []
        if own:
            await _close_all(own)

    async def _run_beside(
        self, calls: Sequence[ToolCall], messages: Sequence[Message], deadline_s: float
    ) -> tuple[CallResult, ...]:
        async with task_group() as group:
            tasks = [group.create_task(self._run_one(call, messages, deadline_s)) for call in calls]
        return tuple(task.result() for task in tasks)

    async def _run_one(self, call: ToolCall, messages: Sequence[Message], deadline_s: float) -> CallResult:
        start_s = self._loop.time()
        try:
            outcome = await self._outcome(call, messages, deadline_s, start_s)
        except (ToolError, SandboxFileError, SandboxLimitError) as told:
            outcome = Observation(text=str(told), is_error=True)
        return self._result(call, outcome, start_s)

    async def _outcome(self, call: ToolCall, messages: Sequence[Message], deadline_s: float, now_s: float) -> Outcome:
        tool = self._runnable(call)
        deadline_s = min(deadline_s, now_s + tool.timeout_s)
        if deadline_s <= now_s:
            raise ToolError(f"{call.name}: not run, no time is left for tools")
        ctx = ToolContext(
            sandbox=self._sandbox,
            deadline_s=deadline_s,
            state=self.state,
            messages=messages,
            model=self._model,
            resources=self._resources,
            opening=self._opening,
        )
        try:
            return await finish_by(deadline_s, _called(tool, call, ctx))
        except TimeoutError:  # only from this deadline: the boundary renamed the tool's own
            raise ToolError(f"{call.name}: timed out after {round(deadline_s - now_s, 1):g} s") from None

    def _runnable(self, call: ToolCall) -> Tool:
        """The tool to call. Raises ToolError if the call is malformed or its tool unknown."""
        tool = self._tools.get(call.name)
        if tool is not None and call.problem is None:
            return tool
        known = f"Known tools: {', '.join(self._tools) or 'none'}."
        if call.problem is not None:
            about = f"{call.name}: {describe_arguments(tool.spec.parameters)}" if tool else known
            raise ToolError(
                f"This tool call was not run: {_PROBLEMS[call.problem]}.\nWrite it as: {self._call_format}\n{about}"
            )
        raise ToolError(f'There is no tool "{call.name[:100]}"{did_you_mean(call.name, self._tools)}. {known}')

    def _result(self, call: ToolCall, outcome: Outcome, start_s: float) -> CallResult:
        if isinstance(outcome, Observation) and outcome.hints and not self._shows_hints:
            outcome = replace(outcome, hints=())
        match outcome:
            case Observation():
                text = outcome.text
            case ContextEdit():
                text = outcome.note
            case Finish():
                text = outcome.answer or ""
        tool = self._tools.get(call.name)
        max_chars = tool.max_output_chars if tool else _MAX_REFUSAL_CHARS
        num_chars_cut = 0
        if len(text) > max_chars:
            shown = cut(text, max_chars)
            text, num_chars_cut = shown.text, shown.num_chars_left_out
        if not text.isascii():  # JSON can carry lone surrogates, which cannot be encoded or stored
            text = text.encode("utf-8", "replace").decode("utf-8")
        if isinstance(outcome, Observation) and outcome.hints:
            text = "\n\n".join(part for part in (text, *(f"Hint: {hint.text}" for hint in outcome.hints)) if part)
        return CallResult(
            call=call,
            outcome=outcome,
            text=text,
            start_s=start_s,
            end_s=self._loop.time(),
            num_chars_cut=num_chars_cut,
        )


async def _called(tool: Tool, call: ToolCall, ctx: ToolContext) -> Outcome:
    with boundary(ToolFailure, f"tool {call.name}"):
        returned: object = await tool.call(call.arguments, ctx)
    return as_outcome(returned, call.name)


async def _close_all(tools: Sequence[Tool]) -> None:
    """Close all tools, even if cancelled meanwhile.

    A failure to close is only logged: it must not replace the reason why the rollout ended, and what runs in the
    sandbox ends with it.
    """
    await outlast([asyncio.create_task(_close_each(tools))])


async def _close_each(tools: Sequence[Tool]) -> None:
    for tool in tools:
        try:
            with boundary(ToolFailure, f"closing tool {tool.spec.name}"):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await tool.aclose()
        except SlipstreamError as failed:
            _log.warning("%s", failed)
