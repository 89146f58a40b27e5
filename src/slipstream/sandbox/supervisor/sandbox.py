"""A sandbox whose first process is our supervisor (`program.py`), whatever it is that holds it up.

Input: a channel to the supervisor, and the host's side of it. Output: all of `Sandbox` but `read_tree`, which is the
provider's, since only it knows how its files are come by.
Invariants: closing is done once, in this order: calls under way fail, shells end, the host's side ends, the provider
is told; closing is not undone by a cancellation. A sandbox that fails after a program has run in it raises
SandboxBroken, unless something shows the host at fault (`blame`): then, and before anything has run, SandboxError.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from slipstream.aio import outlast
from slipstream.errors import SandboxBroken, SandboxError, SandboxFileError, SandboxLimitError, boundary
from slipstream.sandbox.base import ExecResult, Shell, ShellResult
from slipstream.sandbox.blame import shortage_here
from slipstream.sandbox.supervisor.channel import Channel, memory_file, write_all
from slipstream.sandbox.supervisor.programs import Programs
from slipstream.sandbox.supervisor.shell import LocalShell
from slipstream.types import File, Json

T = TypeVar("T")

HEALTH_TIMEOUT_S = 5.0
INLINE_BYTES = 1 << 20
INLINE_FILES = 100
"""What is copied on the event loop; more of it in a thread."""


class HostSide(Protocol):
    """The host's side of one sandbox."""

    async def end(self) -> None:
        """Kill all of it and wait until it is gone. Called once, and never cancelled."""
        ...

    async def why_broken(self) -> str | None:
        """After a fault: what the programs inside did to bring it about. None: nothing that is known."""
        ...

    async def host_fault(self) -> str | None:
        """After a fault: what shows that the host, and not what ran inside, brought it about. None: nothing."""
        ...

    async def probe(self) -> str | None:
        """After `end`: what is wrong with the host, by a fresh sandbox of the same kind. None if that one works."""
        ...


class SupervisedSandbox:
    """One sandbox. `on_closed` is called with it once nothing of it is left."""

    def __init__(
        self, name: str, *, host: HostSide, channel: Channel, programs: Programs, on_closed: Callable[[Any], None]
    ) -> None:  # `Any`, since it is the provider's own kind of sandbox
        self._id = name
        self._host = host
        self._channel = channel
        self._programs = programs
        self._on_closed = on_closed
        self._shells: set[SupervisedShell] = set()
        self._broken: str | None = None
        self._judging: asyncio.Task[None] | None = None
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
                    raise SandboxFileError(f"{path}: {size} bytes came, where {reply.get('size')} were announced")
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

    async def healthy(self) -> bool:
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                await self._channel.ask({"op": "hello"})
        except (TimeoutError, SandboxError):
            return False
        return True

    def give_up(self, reason: str) -> None:
        """The programs inside have gone beyond what they may: from now on every call raises SandboxBroken."""
        if self._broken is None and self._closing is None:
            self._broken = reason
            self._channel.lose(f"the sandbox is gone: {reason}")

    @contextlib.asynccontextmanager
    async def attributed(self) -> AsyncIterator[None]:
        """Tell a sandbox that its own programs broke from one that provider or host have lost."""
        try:
            with boundary(SandboxError, f"the host of {self._id} failed"):
                yield
        except (SandboxFileError, SandboxLimitError):
            raise
        except SandboxError as error:
            if self._judging is None and self._broken is None and self._closing is None:
                self._judging = asyncio.ensure_future(self._judge(error))
            if self._judging is not None:
                await asyncio.wait([self._judging])  # calls that fail together hear the same
                self._judging.result()
            if self._broken is None:
                raise
            raise SandboxBroken(f"{self._id} was broken by what ran inside: {self._broken}") from error

    async def _judge(self, error: SandboxError) -> None:
        """Set `_broken` if the agent is to blame. The sandbox is closed before another is opened to find out, so that
        there are never more than the run may have."""
        if not self._programs.has_started:
            return
        broken = await self._host.why_broken()
        if broken is None and not shortage_here(error) and await self._host.host_fault() is None:
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
    """To its end, even if cancelled: the descriptor that it uses is closed afterwards."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    await outlast([working])
    return working.result()


class SupervisedShell:
    """A Shell that tells, as its sandbox does, whose fault it is when the sandbox is lost."""

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
