"""The fake sandbox with a scripted shell, and tools whose calls a test can watch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.sandbox.base import Captured, ShellResult
from slipstream.sandbox.fake import FakeSandbox, few_programs
from slipstream.tools import CallResult, Effect, Observation, Outcome, Tool, ToolContext, Toolset
from slipstream.types import File, Json, SandboxSpec, ToolCall, ToolSpec


def shell_result(
    output: bytes = b"", exit_code: int | None = 0, *, timed_out: bool = False, restarted: bool = False
) -> ShellResult:
    captured = Captured(head=output, num_bytes=len(output))
    return ShellResult(exit_code=exit_code, output=captured, timed_out=timed_out, restarted=restarted)


@dataclass
class StubShell:
    results: list[ShellResult]
    commands: list[tuple[str, float]] = field(default_factory=list)
    num_closed: int = 0

    async def run(self, command: str, *, timeout_s: float, max_output_bytes: int = 1 << 20) -> ShellResult:
        self.commands.append((command, timeout_s))
        return self.results.pop(0)

    async def aclose(self) -> None:
        self.num_closed += 1


class StubSandbox(FakeSandbox):
    """The fake, with shells that give the answers of `script` in turn: those that no program can bring about."""

    def __init__(self, files: Mapping[str, bytes] | None = None, script: Sequence[ShellResult] = ()) -> None:
        given = {path: File(data=data) for path, data in (files or {}).items()}
        super().__init__(SandboxSpec(files=given), few_programs, "stub")
        self.shells: list[StubShell] = []
        self._script = list(script)

    async def shell(self) -> StubShell:  # type: ignore[override]  # any Shell will do
        self.shells.append(StubShell(self._script))
        return self.shells[-1]


@dataclass
class Probe:
    """A tool that waits, then returns or raises what it was given, and writes down what happened."""

    name: str = "probe"
    outcome: Outcome | BaseException = field(default_factory=Observation)
    wait_s: float = 0.0
    effect: Effect = Effect.PURE
    timeout_s: float = 60.0
    max_output_chars: int = 1000
    concurrent: bool = True
    close_error: Exception | None = None
    close_s: float = 0.0
    log: list[str] = field(default_factory=list)
    contexts: list[ToolContext] = field(default_factory=list)
    is_shared: bool = False

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, description="Probe.", parameters={"type": "object", "properties": {}})

    def fresh(self) -> Tool:
        return self if self.is_shared else Probe(**vars(self))

    async def call(self, arguments: Mapping[str, Json], ctx: ToolContext) -> Outcome:
        self.log.append(f"start {self.name}")
        self.contexts.append(ctx)
        try:
            await asyncio.sleep(self.wait_s)
        except asyncio.CancelledError:
            self.log.append(f"cancelled {self.name}")
            raise
        self.log.append(f"end {self.name}")
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    async def aclose(self) -> None:
        await asyncio.sleep(self.close_s)
        self.log.append(f"close {self.name}")
        if self.close_error is not None:
            raise self.close_error


def call(name: str, **arguments: Json) -> ToolCall:
    return ToolCall(id=f"call-{name}", name=name, arguments=arguments)


async def run_once(
    tools: Sequence[Tool], *calls: ToolCall, sandbox: StubSandbox | None = None
) -> tuple[CallResult, ...]:
    """Open the tools, run one turn, close them."""
    async with Toolset(tools).open(sandbox=sandbox) as opened:
        return await opened.run(calls, ())
