"""The tools of a task without a model: for teachers that show how a task is done, and for trying tools.

async with Workbench() as bench, bench.open(task) as tools:
    (answer,) = await tools.answer(act("bash", command="ls"))
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

from slipstream.sandbox.base import SandboxProvider
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.sandbox.ready import open_sandbox
from slipstream.tools import OpenToolset, Toolset
from slipstream.types import Message, Role, Task, ToolSpec


class Workbench:
    """Opens tasks in local sandboxes, each task in one of its own; tasks may be open at the same time."""

    def __init__(self, *, start_timeout_s: float = 120.0) -> None:
        self._start_timeout_s = start_timeout_s
        self._provider: SandboxProvider = LocalProvider()

    async def __aenter__(self) -> Workbench:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._provider.aclose()

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[TaskTools]:
        """The tools of a task, in a sandbox as the agent finds it; both end with the context."""
        toolset = Toolset.named(task.brief.tools)
        sandbox = None
        if task.sandbox is not None:
            sandbox = await open_sandbox(self._provider, task.sandbox, timeout_s=self._start_timeout_s)
        try:
            async with toolset.open(sandbox=sandbox, resources=task.brief.resources) as tools:
                yield TaskTools(tools)
        finally:
            if sandbox is not None:
                await sandbox.aclose()


class TaskTools:
    """The open tools of one task."""

    def __init__(self, tools: OpenToolset) -> None:
        self._tools = tools

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return self._tools.specs

    async def answer(self, reply: Message) -> list[Message]:
        """Run the calls of a reply, and give what the model would read."""
        return [
            Message(
                role=Role.TOOL,
                content=result.text,
                call_id=result.call.id,
                name=result.call.name,
                is_error=result.is_error,
            )
            for result in await self._tools.run(reply.calls, [])
        ]
