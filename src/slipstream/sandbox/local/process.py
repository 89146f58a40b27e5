"""Starting and ending the bwrap process of one sandbox.

Input: the arguments of bwrap. Output: a `BwrapProcess`, which knows bwrap and the sandbox's process 1 by pidfd.
Invariants: bwrap never runs as root; after `end` neither bwrap nor any process of the sandbox is left, and no
descriptor of theirs is open here.

If we die, so does the sandbox: its supervisor ends with the control socket, and bwrap with the supervisor. bwrap's own
`--die-with-parent` is not used: it kills bwrap alone while process 1 still waits for bwrap's word to begin, and then
process 1 waits for ever. The supervisor asks for the signal itself, once it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import functools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from slipstream.errors import SandboxError
from slipstream.sandbox.local.bwrap import Interpreter, Program, can_be_reached
from slipstream.sandbox.supervisor.channel import memory_file

NOBODY = 65534
"""Whom bwrap runs as when we are root: limits on processes do not bind root, and root owns /proc/sys."""
_DROPPING = ("--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
INFO_GRACE_S = 20.0
"""How long a start that is given up may take to tell whom to kill. Killing bwrap before that would leave process 1."""
REAP_GRACE_S = 2.0
MAX_STDERR_BYTES = 4096
FIRST_FD = 10


class Passed:
    """Descriptors that a child is to have, and the numbers that it knows them by: their own, or small ones where they
    travel through the keeper."""

    def __init__(self, *, renumbered: bool) -> None:
        self.fds: list[int] = []
        self.numbers: list[int] = []
        self._renumbered = renumbered

    def add(self, fd: int) -> int:
        self.fds.append(fd)
        self.numbers.append(FIRST_FD + len(self.numbers) if self._renumbered else fd)
        return self.numbers[-1]


# ---------------------------------------------------------------- becoming someone who owns nothing


@functools.cache
def revealed() -> Path:
    """Where a folder that NOBODY cannot come to is shown to bwrap, in a mount namespace of its own: over a folder that
    has nothing in it, so that nothing is hidden."""
    for name in ("/srv", "/media", "/mnt", "/opt"):
        with contextlib.suppress(OSError):
            if not any(Path(name).iterdir()):
                return Path(name)
    return Path("/tmp")


def hidden_home(interpreter: Interpreter) -> Path | None:
    """The interpreter's folder, if bwrap could not come to it."""
    if interpreter.home is not None and os.geteuid() == 0 and not can_be_reached(interpreter.home):
        return interpreter.home
    return None


def visible_home(interpreter: Interpreter) -> Path | None:
    """Where bwrap finds the interpreter's folder."""
    return revealed() if hidden_home(interpreter) is not None else interpreter.home


def _reveal(folder: Path) -> Callable[[], None]:
    """What the child does, as root, before it becomes bwrap: show `folder` where NOBODY can come to it."""
    libc = ctypes.CDLL(None, use_errno=True)
    source, target = os.fsencode(folder), os.fsencode(revealed())

    def enter() -> None:
        failed = (
            libc.unshare(CLONE_NEWNS)
            or libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None)
            or libc.mount(source, target, None, MS_BIND | MS_REC, None)
        )
        if failed:
            raise OSError(ctypes.get_errno(), f"cannot show {folder} to bwrap")
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)

    return enter


@functools.cache
def find_setpriv() -> str | None:
    """util-linux's program that becomes another user and then another program, if it is here and works."""
    path = shutil.which("setpriv")
    if path is None:
        return None
    tried = subprocess.run([path, *_DROPPING, "--", "/bin/sh", "-c", "id -u"], capture_output=True, text=True)
    return path if tried.stdout.strip() == str(NOBODY) else None


@contextlib.contextmanager
def runnable(program: Program, interpreter: Interpreter, passed: Passed) -> Iterator[tuple[str, dict[str, str]]]:
    """How a child runs bwrap: by which path, with which environment.

    NOBODY may be unable to come to a virtual environment below a private home, and one below `revealed()` is covered
    where that is used: then bwrap is run from copies in memory, which are among `passed`.
    """
    if os.geteuid() != 0 or (hidden_home(interpreter) is None and can_be_reached(program.path)):
        yield str(program.path), {}
        return
    fds: list[int] = []
    try:
        fds.append(memory_file(program.path.read_bytes(), sealed=True))
        env: dict[str, str] = {}
        if program.library is not None:
            fds.append(memory_file(program.library.read_bytes(), sealed=True))
        numbers = [passed.add(fd) for fd in fds]
        if program.library is not None:
            env["LD_PRELOAD"] = f"/proc/self/fd/{numbers[1]}"
        yield f"/proc/self/fd/{numbers[0]}", env
    finally:
        for fd in fds:
            os.close(fd)


def spawn_unprivileged(
    argv: Sequence[str], *, env: dict[str, str], passed: Passed, stderr: int, interpreter: Interpreter
) -> subprocess.Popen[bytes]:
    """Run a program as someone who owns nothing, if we are root; else as ourselves."""
    hidden = hidden_home(interpreter)
    dropped = NOBODY if os.geteuid() == 0 and hidden is None else None
    before: list[str] = []
    if dropped is not None and (setpriv := find_setpriv()):
        # Given a user, Python forks instead of spawning: with a model in memory that takes longer than all the rest.
        before, dropped = [setpriv, *_DROPPING, "--"], None
    return subprocess.Popen(
        [*before, *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        env=env,
        cwd="/",
        pass_fds=passed.fds,
        user=dropped,
        group=dropped,
        extra_groups=None if dropped is None else [],
        preexec_fn=None if hidden is None else _reveal(hidden),
    )


# ---------------------------------------------------------------- one sandbox


async def readable(fd: int) -> None:
    """Wait until `fd` has something to say: for a pidfd, that its process has ended."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


def kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def end_of(stderr: int) -> str:
    """The last that was written to a file in memory."""
    size = os.fstat(stderr).st_size
    return os.pread(stderr, MAX_STDERR_BYTES, max(0, size - MAX_STDERR_BYTES)).decode("utf-8", "replace").strip()


class BwrapProcess:
    """One running bwrap, which the keeper started. Owns the descriptors. `on_end` is called when it ended by itself."""

    def __init__(self, *, pid: int, pidfd: int, info_fd: int, stderr_fd: int, on_end: Callable[[], None]) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._info_fd = info_fd
        self._stderr = stderr_fd
        self._on_end = on_end
        self._info = b""
        self._first_pidfd: int | None = None
        self.first_pid: int | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._ended)

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._on_end()

    def stderr(self) -> str:
        """The end of what bwrap and the supervisor complained about."""
        return end_of(self._stderr)

    async def has_ended(self, grace_s: float) -> bool:
        """Whether bwrap ends by itself, within so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await readable(self._pidfd)
                return True
        return False

    async def find_first(self) -> int:
        """Wait until bwrap has told the pid of the sandbox's process 1, and hold on to that process."""
        while b"}" not in self._info:
            await readable(self._info_fd)
            piece = os.read(self._info_fd, 4096)
            if not piece:
                raise SandboxError(f"bwrap ended before the sandbox was made: {self.stderr()}")
            self._info += piece
        if self.first_pid is None:
            pid = int(json.loads(self._info)["child-pid"])
            try:
                self._first_pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                raise SandboxError(f"the sandbox ended while it was made: {self.stderr()}") from None
            self.first_pid = pid
        return self.first_pid

    def check_first(self) -> None:
        """Raise ProcessLookupError unless the sandbox's process 1 lives: what was opened by its number until now is its
        own, and not of another process that has the number now."""
        if self._first_pidfd is None:
            raise ProcessLookupError(errno.ESRCH, "the sandbox is gone")
        signal.pidfd_send_signal(self._first_pidfd, 0)

    async def end(self) -> None:
        """Kill the sandbox and wait until all of it is dead. May be called once, and must not be cancelled. The channel
        to the supervisor is lost by now: where process 1 cannot be held on to, it ends with that."""
        self._loop.remove_reader(self._pidfd)
        try:
            if self._first_pidfd is None:
                with contextlib.suppress(TimeoutError, SandboxError, OSError):
                    async with asyncio.timeout(INFO_GRACE_S):
                        await self.find_first()
            if self._first_pidfd is not None:
                kill(self._first_pidfd)
                await readable(self._first_pidfd)
            with contextlib.suppress(TimeoutError):  # bwrap reaps process 1, then ends by itself
                async with asyncio.timeout(REAP_GRACE_S):
                    await readable(self._pidfd)
            kill(self._pidfd)
            await readable(self._pidfd)
        finally:
            for fd in (self._first_pidfd, self._pidfd, self._info_fd, self._stderr):
                if fd is not None:
                    os.close(fd)
            self._first_pidfd = None
