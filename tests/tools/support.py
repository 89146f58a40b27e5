"""A sandbox of a dict of files and a scripted shell, and tools whose calls a test can watch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.errors import SandboxFileError
from slipstream.sandbox.base import Captured, ExecResult, Shell, ShellResult
from slipstream.tools import CallResult, Effect, Observation, Outcome, Tool, ToolContext, Toolset
from slipstream.types import File, Json, ToolCall, ToolSpec


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


@dataclass
class StubSandbox:
    files: dict[str, bytes] = field(default_factory=dict)
    shells: list[StubShell] = field(default_factory=list)
    script: list[ShellResult] = field(default_factory=list)
    id: str = "stub"

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float,
        max_output_bytes: int = 1 << 20,
    ) -> ExecResult:
        raise NotImplementedError

    async def shell(self) -> Shell:
        self.shells.append(StubShell(self.script))
        return self.shells[-1]

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        if path not in self.files:
            raise SandboxFileError(f"there is no file {path}")
        if len(self.files[path]) > max_bytes:
            raise SandboxFileError(f"{path} is larger than {max_bytes} bytes")
        return self.files[path]

    async def write(self, files: Mapping[str, File]) -> None:
        self.files.update({path: file.data for path, file in files.items()})

    async def healthy(self) -> bool:
        return True

    async def aclose(self) -> None: ...


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
