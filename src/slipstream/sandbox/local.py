"""The `local` provider: sandboxes on this machine, made with bubblewrap.

Enters: a SandboxSpec. Leaves: a Sandbox whose process 1 is our supervisor (`inside.py`).
Always holds: nothing of a sandbox lies on the host's disk; when `aclose` returns, or `open` raises or is cancelled,
none of its processes is left; a sandbox that was lost says so at once, in every call.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence

from slipstream.errors import ConfigError, SandboxError, SandboxFileError, SlipstreamError, boundary
from slipstream.sandbox import bwrap
from slipstream.sandbox.base import ExecResult, Shell
from slipstream.sandbox.channel import Channel, memory_file, write_all
from slipstream.sandbox.launch import Launched, spawn, visible_home
from slipstream.sandbox.programs import Programs
from slipstream.sandbox.shell import LocalShell
from slipstream.types import File, Json, SandboxSpec

HEALTH_TIMEOUT_S = 5.0
CHECK_TIMEOUT_S = 30.0
NEEDED_MODULES = "import _ctypes, _socket, fcntl, resource, select, sys; sys.exit(sys.version_info < (3, 8))"

_numbers = itertools.count(1)


class LocalSandbox:
    """One sandbox on this machine. Made by `LocalProvider.open`."""

    def __init__(
        self, launched: Launched, channel: Channel, programs: Programs, on_closed: Callable[[LocalSandbox], None]
    ) -> None:
        self._id = f"local-{os.getpid()}-{next(_numbers)}"
        self._launched = launched
        self._channel = channel
        self._programs = programs
        self._on_closed = on_closed
        self._shells: set[LocalShell] = set()
        self._closing: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self._id

    @property
    def host_pid(self) -> int:
        """The sandbox's bwrap, as this machine sees it: for those who watch, or must kill, it from outside."""
        return self._launched.pid

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
        with boundary(SandboxError, f"the host of {self._id} failed"):
            return await self._programs.run(
                argv, stdin=stdin, env=env, cwd=cwd, timeout_s=timeout_s, max_output_bytes=max_output_bytes
            )

    async def shell(self) -> Shell:
        shell = LocalShell(self._programs)
        with boundary(SandboxError, f"the host of {self._id} failed"):
            await shell.start()
        self._shells.add(shell)
        return shell

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        target = memory_file()
        try:
            reply = await self._channel.ask({"op": "read", "path": path, "max_bytes": max_bytes}, [target])
            size = os.fstat(target).st_size
            if size > max_bytes or size != reply.get("size"):
                raise SandboxFileError(f"{path}: {size} bytes came, where {reply.get('size')} were announced")
            return os.pread(target, size, 0)
        finally:
            os.close(target)

    async def write(self, files: Mapping[str, File]) -> None:
        source = memory_file()
        try:
            index: list[Json] = []
            for path, file in files.items():
                write_all(source, file.data)
                index.append([path, file.mode, len(file.data)])
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

    async def aclose(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._channel.lose(f"the sandbox is gone: {self._id} was closed")
        for shell in self._shells:
            await shell.aclose()
        await self._launched.end()
        self._on_closed(self)


def launch(spec: SandboxSpec, program: bwrap.Program, interpreter: bwrap.Interpreter) -> tuple[Launched, Channel]:
    """Start bwrap with the supervisor in it; neither has answered yet."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.ExitStack() as undo, theirs:
        undo.callback(ours.close)
        data = bwrap.file_data(spec)
        try:
            args = bwrap.arguments(spec, visible_home(interpreter), data)
            args += ["--", interpreter.path, "-I", "-S", "-B", bwrap.SUPERVISOR, str(theirs.fileno())]
            args += [bwrap.workdir_of(spec), *(f"{name}={value}" for name, value in bwrap.rlimits(spec).items())]
            launched = Launched(
                program,
                args,
                fds=[theirs.fileno(), *data.values()],
                interpreter=interpreter,
                on_end=lambda: channel.lose("the sandbox is gone: bwrap has ended"),
            )
        finally:
            for fd in data.values():
                os.close(fd)
        channel = Channel(ours)
        undo.pop_all()
    return launched, channel


def try_out(program: bwrap.Program, interpreter: bwrap.Interpreter) -> str:
    """Run a sandbox that only sees whether the supervisor could run. Empty if so, else what was complained about."""
    spec = SandboxSpec()
    data = bwrap.file_data(spec)
    stderr = memory_file()
    try:
        args = bwrap.arguments(spec, visible_home(interpreter), data)
        args += ["--", interpreter.path, "-I", "-S", "-c", NEEDED_MODULES]
        process = spawn(program, args, fds=list(data.values()), stderr=stderr, interpreter=interpreter)
        try:
            code = process.wait(CHECK_TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
        said = os.pread(stderr, 1 << 12, 0).decode("utf-8", "replace")
        return "" if code == 0 else said.strip() or f"{interpreter.path} ended with {code}"
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    finally:
        for fd in (stderr, *data.values()):
            os.close(fd)


@functools.cache
def tools(use_base_python: bool) -> tuple[bwrap.Program, bwrap.Interpreter]:
    """What this machine runs sandboxes with, tried out once. Raises ConfigError, each time, if it cannot."""
    program = bwrap.find_bwrap()
    interpreters = [bwrap.own_interpreter()]
    if use_base_python:
        interpreters.insert(0, bwrap.base_interpreter())
    complaints = []
    for interpreter in interpreters:
        complaint = try_out(program, interpreter)
        if not complaint:
            return program, interpreter
        complaints.append(complaint)
    raise ConfigError(bwrap.explain_refusal("\n".join(complaints)))


class LocalProvider:
    """Sandboxes with bubblewrap on this machine.

    `use_base_python` lets the supervisor run on the base's own Python where that can do it; without, on the one that
    runs now.
    """

    def __init__(self, *, start_timeout_s: float = 30.0, use_base_python: bool = True) -> None:
        self._start_timeout_s = start_timeout_s
        self._use_base_python = use_base_python
        self._open: set[LocalSandbox] = set()

    def check(self) -> None:
        tools(self._use_base_python)

    def check_spec(self, spec: SandboxSpec) -> None:
        if spec.base != "host":
            raise ConfigError(f"the base {spec.base!r} is none of the local provider's: use 'host'")
        bwrap.workdir_of(spec)

    async def open(self, spec: SandboxSpec) -> LocalSandbox:
        self.check_spec(spec)
        program, interpreter = tools(self._use_base_python)
        with boundary(SandboxError, "the host could not start a sandbox"):
            launched, channel = launch(spec, program, interpreter)
        programs = Programs(channel, bwrap.environment(spec), bwrap.workdir_of(spec))
        sandbox = LocalSandbox(launched, channel, programs, self._open.discard)
        self._open.add(sandbox)
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await launched.find_first()
                await channel.ask({"op": "hello"})
            if spec.files:
                await sandbox.write(spec.files)
        except TimeoutError:
            said = launched.stderr()
            await sandbox.aclose()
            raise SandboxError(f"the sandbox did not start within {self._start_timeout_s:g} s: {said}") from None
        except SlipstreamError as error:
            said = launched.stderr()
            await sandbox.aclose()
            raise type(error)(f"{error}\n{said}" if said else str(error)) from error
        except BaseException:
            await sandbox.aclose()
            raise
        return sandbox

    async def aclose(self) -> None:
        for sandbox in list(self._open):
            await sandbox.aclose()
