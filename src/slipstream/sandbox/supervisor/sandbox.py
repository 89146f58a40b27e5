"""A sandbox whose process 1 is our supervisor (`program.py`), whichever provider runs it.

Input: a channel to the supervisor, and the host side. Output: all of `Sandbox` except `read_tree`, which depends on how
a provider reaches the files. Invariants: closing happens once, in this order: calls in progress fail, shells end, the
host side ends, the provider is notified; a cancellation does not stop it. A sandbox that fails after a program has run
in it raises SandboxBroken unless there is evidence against the host (`blame`); then, and before anything has run, it
raises SandboxError.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from slipstream.aio import outlast
from slipstream.errors import AgentError, SandboxBroken, SandboxError, SandboxFileError, boundary
from slipstream.sandbox.activation import ENTER, MAX_ENV_BYTES, read_entered
from slipstream.sandbox.base import ExecResult, Shell, ShellResult
from slipstream.sandbox.blame import is_local_shortage
from slipstream.sandbox.supervisor.channel import Channel, memory_file, write_all
from slipstream.sandbox.supervisor.programs import Programs
from slipstream.sandbox.supervisor.shell import LocalShell
from slipstream.types import File, Json, SandboxSpec

T = TypeVar("T")

HEALTH_TIMEOUT_S = 5.0
INLINE_BYTES = 1 << 20
INLINE_FILES = 100
"""Up to this much is copied on the event loop; more is copied in a thread."""


class HostSide(Protocol):
    """The host side of one sandbox."""

    async def end(self) -> None:
        """Kill the whole sandbox and wait until it is gone. Called once, and never cancelled."""
        ...

    async def why_broken(self) -> str | None:
        """After a failure: what the programs inside did to cause it. None if nothing is known."""
        ...

    async def host_fault(self) -> str | None:
        """After a failure: evidence that the host caused it, not the programs inside. None if there is none."""
        ...

    async def probe(self) -> str | None:
        """After `end`: what is wrong with the host, found by opening a fresh sandbox. None if that one works."""
        ...


class SupervisedSandbox:
    """One sandbox. `on_closed` is called with it once it is completely gone."""

    def __init__(
        self, name: str, *, host: HostSide, channel: Channel, programs: Programs, on_closed: Callable[[Any], None]
    ) -> None:  # `Any`: it is the provider's own sandbox type
        self._id = name
        self._host = host
        self._channel = channel
        self._programs = programs
        self._on_closed = on_closed
        self._shells: set[SupervisedShell] = set()
        self._broken: str | None = None
        self._blaming: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self._id

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
        if not argv:
            raise ValueError("a program needs at least its name in argv")
        async with self.attributed():
            return await self._programs.run(
                argv, stdin=stdin, env=env, cwd=cwd, timeout_s=timeout_s, max_output_bytes=max_output_bytes
            )

    async def shell(self) -> Shell:
        shell = LocalShell(self._programs)
        async with self.attributed():
            await shell.start()
        supervised = SupervisedShell(self, shell, self._shells.discard)
        self._shells.add(supervised)
        return supervised

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        async with self.attributed():
            target = memory_file()
            try:
                reply = await self._channel.ask({"op": "read", "path": path, "max_bytes": max_bytes}, [target])
                size = os.fstat(target).st_size
                if size > max_bytes or size != reply.get("size"):
                    raise SandboxFileError(f"{path}: {size} bytes arrived, but {reply.get('size')} were announced")
                if size <= INLINE_BYTES:
                    return os.pread(target, size, 0)
                return await _in_thread(lambda: os.pread(target, size, 0))
            finally:
                os.close(target)

    async def write(self, files: Mapping[str, File]) -> None:
        async with self.attributed():
            source = memory_file()
            try:
                num_bytes = sum(len(file.data) for file in files.values())

                def fill() -> list[Json]:
                    for file in files.values():
                        write_all(source, file.data)
                    return [[path, file.mode, len(file.data)] for path, file in files.items()]

                is_small = num_bytes <= INLINE_BYTES and len(files) <= INLINE_FILES
                index = fill() if is_small else await _in_thread(fill)
                await self._channel.ask({"op": "write", "files": index}, [source])
            finally:
                os.close(source)

    async def enter(self, spec: SandboxSpec, *, timeout_s: float) -> None:
        """Run the script of the spec's activation, whose variables all later programs get."""
        if spec.activation.script:
            argv = ["bash", "-c", ENTER, "bash", spec.activation.script]
            result = await self.exec(argv, timeout_s=timeout_s, max_output_bytes=MAX_ENV_BYTES)
            self._programs.replace_env(read_entered(result, spec))

    async def healthy(self) -> bool:
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                await self._channel.ask({"op": "hello"})
        except (TimeoutError, SandboxError, AgentError):
            return False
        return True

    def mark_broken(self, reason: str) -> None:
        """The programs inside exceeded a limit: from now on every call raises SandboxBroken."""
        if self._broken is None and self._closing is None:
            self._broken = reason
            self._channel.lose(f"the sandbox is gone: {reason}")

    @contextlib.asynccontextmanager
    async def attributed(self) -> AsyncIterator[None]:
        """Raise SandboxBroken if the programs inside broke the sandbox, SandboxError if the provider or the host
        did."""
        try:
            with boundary(SandboxError, f"the host of {self._id} failed"):
                yield
        except SandboxError as error:
            if self._blaming is None and self._broken is None and self._closing is None:
                self._blaming = asyncio.ensure_future(self._assign_blame(error))
            if self._blaming is not None:
                await asyncio.wait([self._blaming])  # calls that fail together get the same error
                self._blaming.result()
            if self._broken is None:
                raise
            raise SandboxBroken(f"{self._id} was broken by the programs inside: {self._broken}") from error

    async def _assign_blame(self, error: SandboxError) -> None:
        """Set `_broken` if the agent is to blame. The sandbox is closed before the probe opens another, so that the run
        never has more than its limit."""
        if not self._programs.has_started:
            return
        broken = await self._host.why_broken()
        if broken is None and not is_local_shortage(error) and await self._host.host_fault() is None:
            await self.aclose()
            if await self._host.probe() is None:
                broken = f"{error}; a fresh sandbox works"
        self._broken = broken

    async def aclose(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._channel.lose(f"the sandbox is gone: {self._id} was closed")
        for shell in list(self._shells):
            await shell.aclose()
        await self._host.end()
        self._on_closed(self)


async def _in_thread(work: Callable[[], T]) -> T:
    """Runs to its end even if cancelled, since the caller then closes the descriptor it uses."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    await outlast([working])
    return working.result()


class SupervisedShell:
    """A Shell that, like its sandbox, reports who is at fault when the sandbox is lost."""

    def __init__(
        self, sandbox: SupervisedSandbox, shell: LocalShell, on_closed: Callable[[SupervisedShell], None]
    ) -> None:
        self._sandbox = sandbox
        self._shell = shell
        self._on_closed = on_closed

    async def run(self, command: str, *, timeout_s: float, max_output_bytes: int = 1 << 20) -> ShellResult:
        if self._shell.is_closed:
            raise SandboxError("the shell is closed: open another with `Sandbox.shell`")
        async with self._sandbox.attributed():
            return await self._shell.run(command, timeout_s=timeout_s, max_output_bytes=max_output_bytes)

    async def aclose(self) -> None:
        await self._shell.aclose()
        self._on_closed(self)
