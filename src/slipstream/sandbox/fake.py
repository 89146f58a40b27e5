"""An in-memory sandbox for tests and virtual time: no processes, threads or I/O.

Input: a SandboxSpec, and a function that stands in for programs. Output: what that function returns. Invariants: the
contract of `base.py`, except that nothing really runs: files are kept, deadlines and cancellation follow the event
loop's clock, and a sandbox that died or was closed raises SandboxError in every call.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import posixpath
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from slipstream.errors import SandboxError, SandboxFileError, SandboxLimitError
from slipstream.sandbox.base import Capability, Captured, ExecResult, ShellResult
from slipstream.sandbox.supervisor.capture import Capture
from slipstream.types import File, FileTree, SandboxSpec

Command: TypeAlias = str | Sequence[str]
"""A shell command, or the argument list of an exec."""
Files: TypeAlias = dict[str, File]
"""By absolute path. Programs may change it."""
Answer: TypeAlias = tuple[int, str]
"""An exit code and the output."""
Program: TypeAlias = Callable[[Command, Files], Answer | Awaitable[Answer]]

T = TypeVar("T")

MB = 1 << 20


async def few_programs(command: Command, files: Files) -> Answer:
    """The default programs: true, false, echo, cat, sleep, exit, and `sh -c` with one of them. Others are not found."""
    try:
        argv = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        return 2, f"{error}\n"
    match argv:
        case [] | ["true"]:
            return 0, ""
        case ["false"]:
            return 1, ""
        case ["echo", *words]:
            return 0, " ".join(words) + "\n"
        case ["cat", *paths]:
            missing = [path for path in paths if path not in files]
            if missing:
                return 1, f"cat: {missing[0]}: No such file or directory\n"
            return 0, "".join(files[path].data.decode("utf-8", "replace") for path in paths)
        case ["sleep", seconds]:
            await asyncio.sleep(float(seconds))
            return 0, ""
        case ["exit", code]:
            return int(code), ""
        case ["sh" | "bash" | "/bin/sh" | "/bin/bash", "-c", script]:
            return await few_programs(script, files)
        case [name, *_]:
            return 127, f"{name}: not found\n"
    raise AssertionError(f"unreachable: {argv}")


class FakeSandbox:
    """An in-memory sandbox. Tests may read and change `files`; `commands` lists what was run, in order."""

    def __init__(self, spec: SandboxSpec, program: Program, name: str) -> None:
        self.spec = spec
        self.files: Files = {}
        self.commands: list[Command] = []
        self.closed = False
        self._program = program
        self._id = name
        self._gone: str | None = None
        self._hanging = False
        self._calls: set[asyncio.Timeout] = set()
        self._keep(spec.files)

    @property
    def id(self) -> str:
        return self._id

    def die(self, reason: str = "a test made it die") -> None:
        """From now on every call raises SandboxError; calls in progress raise it at once."""
        if self._gone is None:
            self._gone = f"the sandbox is gone: {reason}"
            now = asyncio.get_running_loop().time()
            for call in self._calls:
                call.reschedule(now)

    def hang(self) -> None:
        """From now on nothing responds: programs run into their deadlines, other calls wait until cancelled."""
        self._hanging = True

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
        answer = await self._play(list(argv), timeout_s)
        return ExecResult(
            exit_code=None if answer is None else answer[0],
            stdout=_captured("" if answer is None else answer[1], max_output_bytes),
            stderr=Captured(head=b""),
            timed_out=answer is None,
        )

    async def shell(self) -> FakeShell:
        await self._alive()
        return FakeShell(self)

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        await self._alive()
        place = self._place(path)
        if place not in self.files:
            raise SandboxFileError(f"{place}: No such file or directory")
        data = self.files[place].data
        if len(data) > max_bytes:
            raise SandboxFileError(f"{place}: larger than {max_bytes} bytes")
        return data

    async def read_tree(self, path: str, *, max_bytes: int = 64 << 20, max_files: int = 10_000) -> FileTree:
        await self._alive()
        above = self._place(path).rstrip("/") + "/"
        below = sorted((name, file) for name, file in self.files.items() if name.startswith(above))
        if not below and above.rstrip("/") != posixpath.normpath(self.spec.workdir):
            raise SandboxFileError(f"{above.rstrip('/')}: No such folder")
        files: Files = {}
        left_out: dict[str, str] = {}
        room = max_bytes
        for name, file in below:
            if len(files) >= max_files or len(file.data) > room:
                left_out[name.removeprefix(above)] = "too much to read"
            else:
                files[name.removeprefix(above)] = file
                room -= len(file.data)
        return FileTree(files=files, left_out=left_out)

    async def write(self, files: Mapping[str, File]) -> None:
        await self._alive()
        self._keep(files)

    async def healthy(self) -> bool:
        return self._gone is None and not self._hanging

    async def aclose(self) -> None:
        self.die("it was closed")
        self.closed = True

    def _place(self, path: str) -> str:
        if "\0" in path:
            raise SandboxFileError(f"{path!r}: a path cannot contain a null byte")
        return posixpath.normpath(posixpath.join(self.spec.workdir, path))

    def _keep(self, files: Mapping[str, File]) -> None:
        kept = self.files | {self._place(path): file for path, file in files.items()}
        limits = self.spec.limits
        for path, file in files.items():
            above = self._place(path)
            if any(above.startswith(other + "/") for other in kept):
                raise SandboxFileError(f"{above}: Not a directory")
            if any(other.startswith(above + "/") for other in kept):
                raise SandboxFileError(f"{above}: not a regular file")
            if len(file.data) > limits.file_mb * MB:
                raise SandboxLimitError(
                    f"{above}: {len(file.data)} bytes exceed the limit of {limits.file_mb} MB per file"
                )
        if sum(len(file.data) for file in kept.values()) > limits.disk_mb * MB:
            raise SandboxLimitError(f"the sandbox's disk limit of {limits.disk_mb} MB is reached")
        self.files = kept

    async def _alive(self) -> None:
        if self._hanging:
            await self._within(None, asyncio.Event().wait)
        if self._gone is not None:
            raise SandboxError(self._gone)

    async def _play(self, command: Command, timeout_s: float) -> Answer | None:
        """The program's answer; None if it missed its deadline."""
        self.commands.append(command)
        return await self._within(max(0.0, timeout_s), lambda: self._answer(command))

    async def _answer(self, command: Command) -> Answer:
        if self._hanging:
            await asyncio.Event().wait()
        answer = self._program(command, self.files)
        return await answer if inspect.isawaitable(answer) else answer

    async def _within(self, timeout_s: float | None, work: Callable[[], Awaitable[T]]) -> T | None:
        """The result of `work`; None at the deadline, SandboxError as soon as the sandbox dies."""
        if self._gone is not None:
            raise SandboxError(self._gone)
        call = asyncio.timeout(timeout_s)
        self._calls.add(call)
        try:
            async with call:
                return await work()
        except TimeoutError:
            if not call.expired():
                raise
            if self._gone is not None:
                raise SandboxError(self._gone) from None
            return None
        finally:
            self._calls.discard(call)


class FakeShell:
    """A shell without state: each command goes to the program on its own."""

    def __init__(self, sandbox: FakeSandbox) -> None:
        self._sandbox = sandbox
        self._closed = False

    async def run(self, command: str, *, timeout_s: float, max_output_bytes: int = 1 << 20) -> ShellResult:
        if self._closed:
            raise SandboxError("the shell is closed: open another with `Sandbox.shell`")
        answer = await self._sandbox._play(command, timeout_s)
        return ShellResult(
            exit_code=None if answer is None else answer[0],
            output=_captured("" if answer is None else answer[1], max_output_bytes),
            timed_out=answer is None,
        )

    async def aclose(self) -> None:
        self._closed = True


class FakeProvider:
    """Opens fake sandboxes and keeps them in `sandboxes`, in order.

    Each start takes `start_s`; the first `num_failing` raise SandboxError, and the next `num_hanging` never return.
    """

    capabilities: frozenset[Capability] = frozenset()

    def __init__(
        self, program: Program = few_programs, *, start_s: float = 0.0, num_failing: int = 0, num_hanging: int = 0
    ) -> None:
        self.sandboxes: list[FakeSandbox] = []
        self.num_failing = num_failing
        self.num_hanging = num_hanging
        self._program = program
        self._start_s = start_s
        self._numbers = itertools.count(1)

    def check(self) -> None:
        """Works everywhere."""

    def check_spec(self, spec: SandboxSpec) -> None:
        """Accepts any spec."""

    async def open(self, spec: SandboxSpec) -> FakeSandbox:
        number = next(self._numbers)
        await asyncio.sleep(self._start_s)
        if self.num_failing > 0:
            self.num_failing -= 1
            raise SandboxError(f"fake sandbox {number} was made to fail")
        if self.num_hanging > 0:
            self.num_hanging -= 1
            await asyncio.Event().wait()
        sandbox = FakeSandbox(spec, self._program, f"fake-{number}")
        self.sandboxes.append(sandbox)
        return sandbox

    async def aclose(self) -> None:
        for sandbox in self.sandboxes:
            await sandbox.aclose()


def _captured(output: str, max_bytes: int) -> Captured:
    capture = Capture(max_bytes)
    capture.feed(output.encode("utf-8", "replace"))
    return capture.captured()
