"""Runs programs in a sandbox through the control channel and captures their output.

Input: an argument list and where to run it. Output: an ExecResult.
Invariants: a deadline or a cancellation kills the program with its process group and session; a background process that
still holds the output pipe delays nothing; no descriptor outlives the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence

from slipstream.errors import SandboxError
from slipstream.sandbox.base import ExecResult
from slipstream.sandbox.local.process import NOBODY
from slipstream.sandbox.supervisor.capture import Capture, PipeReader
from slipstream.sandbox.supervisor.channel import Channel, Reply, memory_file

KILL_GRACE_S = 5.0
"""How long a killed program may take to disappear before the sandbox counts as lost."""


class Running:
    """A started program."""

    def __init__(self, channel: Channel, request_id: int, exited: asyncio.Future[Reply]) -> None:
        self._channel = channel
        self._id = request_id
        self.exited = exited

    @property
    def has_ended(self) -> bool:
        return self.exited.done()

    def exit_code(self) -> int:
        """Its exit status, once it has ended. Raises why it could not start, or SandboxError if the sandbox is lost."""
        code = self.exited.result().get("exit")
        if not isinstance(code, int):
            raise SandboxError(f"the sandbox's supervisor sent an invalid exit status: {code!r}")
        return code

    def kill(self) -> None:
        """Kill it, its session and its descendants. Never waits; fine if it has ended or the sandbox is lost."""
        self._tell({"op": "kill", "target": self._id})

    def signal(self, number: int, *, leader: bool) -> None:
        """Signal what it started since the last `mark`; with `leader`, the program itself too."""
        self._tell({"op": "signal", "target": self._id, "signal": number, "leader": leader})

    async def mark(self) -> None:
        """From now on `signal` skips the processes that run at this moment."""
        await self._channel.ask({"op": "mark", "target": self._id})

    async def killed(self) -> None:
        """Kill it and wait until it is gone."""
        self.kill()
        await asyncio.wait([self.exited], timeout=KILL_GRACE_S)
        if not self.has_ended:
            raise SandboxError(f"a program was still running {KILL_GRACE_S:g} s after it was killed")

    def _tell(self, message: Reply) -> None:
        if not self.has_ended:
            with contextlib.suppress(SandboxError):
                self._channel.tell(message)


class Programs:
    """Starts programs in one sandbox, with its environment and, by default, its workdir."""

    def __init__(self, channel: Channel, env: Mapping[str, str], workdir: str) -> None:
        self._channel = channel
        self._env = dict(env)
        self.workdir = workdir
        self.has_started = False
        """Whether any program was started."""

    def replace_env(self, env: Mapping[str, str]) -> None:
        """From now on programs get these variables."""
        self._env = dict(env)

    def start(
        self,
        argv: Sequence[str],
        *,
        fds: Mapping[int, int],
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        terminal_fd: int | None = None,
    ) -> Running:
        """Start a program whose descriptor k is a copy of `fds[k]`. Never waits.

        `terminal_fd` becomes a terminal, if one is available: nobody reads it, and it is not the controlling terminal.
        """
        message: Reply = {
            "op": "exec",
            "argv": list(argv),
            "env": {**self._env, **(env or {})},
            "cwd": cwd or self.workdir,
            "targets": list(fds),
        }
        if terminal_fd is not None:
            message["terminal"] = terminal_fd
        self.has_started = True
        return Running(self._channel, *self._channel.request(message, list(fds.values())))

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes,
        env: Mapping[str, str] | None,
        cwd: str | None,
        timeout_s: float,
        max_output_bytes: int,
    ) -> ExecResult:
        with (
            input_file(stdin) as stdin_fd,
            output_pipe(max_output_bytes) as (out, out_fd),
            output_pipe(max_output_bytes) as (err, err_fd),
        ):
            running = self.start(argv, fds={0: stdin_fd, 1: out_fd, 2: err_fd}, env=env, cwd=cwd)
            try:
                await asyncio.wait([running.exited], timeout=max(0.0, timeout_s))
                timed_out = not running.has_ended
                if timed_out:
                    await running.killed()
            except BaseException:
                running.kill()
                raise
            exit_code = running.exit_code()
            out.drain()
            err.drain()
            return ExecResult(
                exit_code=None if timed_out else exit_code,
                stdout=out.capture.captured(),
                stderr=err.capture.captured(),
                timed_out=timed_out,
            )


@contextlib.contextmanager
def input_file(data: bytes) -> Iterator[int]:
    fd = memory_file(data, sealed=True) if data else os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def output_pipe(max_bytes: int) -> Iterator[tuple[PipeReader, int]]:
    """A pipe that is read into a capture, and its write end. Leaving the context closes both ends."""
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    reader = PipeReader(read_fd, Capture(max_bytes))
    try:
        if os.geteuid() == 0:  # so that programs inside may open /dev/stdout
            os.fchown(write_fd, NOBODY, NOBODY)
        yield reader, write_fd
    finally:
        os.close(write_fd)
        reader.close()
