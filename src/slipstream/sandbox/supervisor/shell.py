"""The persistent shell of a sandbox: an interactive bash driven through pipes.

Input: the text of a command. Output: a ShellResult. Invariants: commands run one at a time; a command's exit status and
working directory arrive on a separate descriptor that the command does not hold, so no output can be mistaken for the
end; a command that cannot be interrupted costs the shell its variables, never more.

Bash reads two lines from its standard input for each command: one that evaluates the command's text (from a memory
file, so it needs no quoting), one that reports. An interrupt makes bash read on, as ^C does, and the report follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass

from slipstream.errors import SandboxError, SandboxFileError
from slipstream.sandbox.base import ShellResult
from slipstream.sandbox.supervisor.capture import Capture
from slipstream.sandbox.supervisor.channel import memory_file, write_all
from slipstream.sandbox.supervisor.programs import Programs, output_pipe

ARGV = ("bash", "--norc", "--noprofile", "--noediting", "-i")
COMMAND_FD, STATUS_FD, OUTPUT_FD = 202, 203, 204
INIT = (  # bash keeps a copy of its terminal, without which it complains whenever a signal ends a program
    "exec 2>/dev/null; PS1= PS2=; set +H +o history; unset MAILCHECK HISTFILE; "
    '__slip_status=0; __slip_return() { return "$1"; }\n'
)
EVALUATE = (
    f"IFS= builtin read -r -d '' -u {COMMAND_FD} __slip_command; "
    'case $- in *e*) ;; *) __slip_return "$__slip_status" ;; esac; '
    f'builtin eval "$__slip_command" </dev/null >&{OUTPUT_FD} 2>&1 {COMMAND_FD}<&- {STATUS_FD}>&- {OUTPUT_FD}>&-\n'
)
REPORT = '__slip_status=$?; builtin printf \'%s\\0\' {number} "$__slip_status" "$PWD" >&{fd}\n'
MAX_STATUS_BYTES = 1 << 16
MAX_DIGITS = 9
START_TIMEOUT_S = 30.0
INTERRUPT_S = 2.0
"""How long a shell may take to respond after a deadline before it is replaced."""
STEP_S = 0.1
BETWEEN_BYTES = 1 << 16
"""How much output of background processes is kept between two commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandStatus:
    exit_code: int
    cwd: str


class Bash:
    """One bash process and the pipes to it."""

    def __init__(self, programs: Programs, cwd: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._reports: dict[int, CommandStatus] = {}
        self._pending = b""
        with contextlib.ExitStack() as stack, contextlib.ExitStack() as child_ends:
            self._command_fd = memory_file()  # unsealable, since bash, and so the agent, can open it
            stack.callback(os.close, self._command_fd)
            stdin_fd, self._lines_fd = os.pipe2(os.O_CLOEXEC)
            child_ends.callback(os.close, stdin_fd)
            stack.callback(os.close, self._lines_fd)
            self._status_fd, status_fd = os.pipe2(os.O_CLOEXEC)
            child_ends.callback(os.close, status_fd)
            stack.callback(os.close, self._status_fd)
            self.reader, output_fd = stack.enter_context(output_pipe(BETWEEN_BYTES))
            null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            child_ends.callback(os.close, null)
            for fd in (self._lines_fd, self._status_fd):
                os.set_blocking(fd, False)
            self._changed = asyncio.Event()
            self._loop.add_reader(self._status_fd, self._on_status)
            stack.callback(self._loop.remove_reader, self._status_fd)
            self.running = programs.start(
                ARGV,
                fds={
                    0: stdin_fd,
                    1: null,
                    2: null,
                    COMMAND_FD: self._command_fd,
                    STATUS_FD: status_fd,
                    OUTPUT_FD: output_fd,
                },
                cwd=cwd,
                terminal_fd=2,
            )
            self.running.exited.add_done_callback(lambda _: self._changed.set())
            self._held = stack.pop_all()
        self._write(INIT)

    def _write(self, lines: str) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # then no report comes, and bash is replaced
            os.write(self._lines_fd, lines.encode())

    def _on_status(self) -> None:
        try:
            data = os.read(self._status_fd, MAX_STATUS_BYTES)
        except BlockingIOError:
            return
        self._pending += data
        if not data or len(self._pending) > MAX_STATUS_BYTES:
            self._loop.remove_reader(self._status_fd)
            return
        while self._pending.count(b"\0") >= 3:
            number, code, cwd, self._pending = self._pending.split(b"\0", 3)
            if number.isdigit() and code.isdigit() and len(number) <= MAX_DIGITS >= len(code):
                self._reports[int(number)] = CommandStatus(exit_code=int(code), cwd=os.fsdecode(cwd))
        self._changed.set()

    def begin(self, command: str | None) -> None:
        """Have a command evaluated (None: only the report)."""
        self._number += 1
        self._reports.clear()
        lines = ""
        if command is not None:
            text = command.replace("\0", "").encode("utf-8", "replace")
            os.ftruncate(self._command_fd, 0)
            os.lseek(self._command_fd, 0, os.SEEK_SET)
            write_all(self._command_fd, text + b"\0")
            os.lseek(self._command_fd, 0, os.SEEK_SET)
            lines = EVALUATE
        self._write(lines)
        self.ask_report()

    def ask_report(self) -> None:
        self._write(REPORT.format(number=self._number, fd=STATUS_FD))

    async def report(self, timeout_s: float) -> CommandStatus | None:
        """The report on the last command; None if the shell ended or the time ran out."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._number not in self._reports and not self.running.has_ended:
                    self._changed.clear()
                    await self._changed.wait()
        return self._reports.get(self._number)

    async def interrupt(self) -> CommandStatus | None:
        """Stop the command as ^C would, then by force; None if the shell does not respond."""
        deadline = self._loop.time() + INTERRUPT_S
        while self._loop.time() < deadline and not self.running.has_ended:
            self.running.signal(signal.SIGINT, leader=True)
            if report := await self.report(STEP_S):
                return report
            self.running.signal(signal.SIGKILL, leader=False)
            self.ask_report()
            if report := await self.report(STEP_S):
                return report
        return None

    def abandon(self) -> None:
        """Kill bash and what its last command started; earlier background processes keep running. Never waits."""
        self.running.signal(signal.SIGKILL, leader=True)
        self.close()

    def close(self) -> None:
        self._held.close()


class LocalShell:
    """A Shell. After a restart it starts in the last known directory."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._bash: Bash | None = None
        self._cwd = programs.workdir
        self._turn = asyncio.Lock()
        self.is_closed = False

    async def start(self) -> None:
        """Start bash in the last known directory, or in the workdir if that is gone."""
        try:
            await self._start(self._cwd)
        except SandboxFileError:
            await self._start(self._programs.workdir)

    async def _start(self, cwd: str) -> None:
        bash = Bash(self._programs, cwd)
        try:
            bash.begin(None)
            if await bash.report(START_TIMEOUT_S) is None:
                why = f"it exited with {bash.running.exit_code()}" if bash.running.has_ended else "it does not respond"
                raise SandboxError(f"bash did not start in the sandbox: {why}")
        except BaseException:
            bash.abandon()
            raise
        self._bash = bash

    async def run(self, command: str, *, timeout_s: float, max_output_bytes: int = 1 << 20) -> ShellResult:
        async with self._turn:
            died = self._bash is not None and self._bash.running.has_ended
            if died:
                self._drop()
            if self._bash is None:
                await self.start()
            assert self._bash is not None
            try:
                return await self._run(self._bash, command, timeout_s, max_output_bytes, restarted=died)
            except BaseException:
                self._drop()
                raise

    async def _run(
        self, bash: Bash, command: str, timeout_s: float, max_output_bytes: int, *, restarted: bool
    ) -> ShellResult:
        capture = Capture(max_output_bytes)
        earlier = bash.reader.capture.captured()
        capture.feed(earlier.head + earlier.tail)
        bash.reader.capture = capture
        await bash.running.mark()
        bash.begin(command)
        report = await bash.report(max(0.0, timeout_s))
        timed_out = report is None and not bash.running.has_ended
        if timed_out:
            report = await bash.interrupt()
        exit_code: int | None = None
        if report is None:
            if not bash.running.has_ended:
                await bash.running.killed()
            exit_code = bash.running.exit_code()
        else:
            exit_code, self._cwd = report.exit_code, report.cwd
        bash.reader.drain()
        bash.reader.capture = Capture(BETWEEN_BYTES)
        if report is None:
            self._drop()
        return ShellResult(
            exit_code=None if timed_out else exit_code,
            output=capture.captured(),
            timed_out=timed_out,
            restarted=restarted or report is None,
        )

    def _drop(self) -> None:
        if self._bash is not None:
            self._bash.abandon()
            self._bash = None

    async def aclose(self) -> None:
        """End the shell and everything it started, background processes included."""
        self.is_closed = True
        if self._bash is not None:
            bash, self._bash = self._bash, None
            bash.running.kill()
            bash.close()
