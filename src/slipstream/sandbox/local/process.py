"""Starting and ending the bwrap process of one sandbox.

Input: bwrap's arguments. Output: a `BwrapProcess`, which holds pidfds of bwrap and of the sandbox's process 1.
Invariants: bwrap never runs as root; after `end` neither bwrap nor any process of the sandbox is left, and no
descriptor of theirs is open here.

If this process dies, so does the sandbox: its supervisor exits when the control socket closes, and bwrap with it.
bwrap's `--die-with-parent` is not used: it could kill only bwrap while process 1 still waits for bwrap's signal to
start, and process 1 would wait for ever. The supervisor requests the signal itself, once it runs.
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
"""The user that bwrap runs as if we are root: process limits do not bind root, and root owns /proc/sys."""
_DROPPING = ("--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
INFO_GRACE_S = 20.0
"""How long an abandoned start may take to report the pid of process 1. Killing bwrap earlier would leave it behind."""
REAP_GRACE_S = 2.0
MAX_STDERR_BYTES = 4096
FIRST_FD = 10


class PassedFds:
    """File descriptors that a child inherits, and their numbers there: the same, or small ones if they travel through
    the keeper."""

    def __init__(self, *, renumbered: bool) -> None:
        self.fds: list[int] = []
        self.numbers: list[int] = []
        self._renumbered = renumbered

    def add(self, fd: int) -> int:
        self.fds.append(fd)
        self.numbers.append(FIRST_FD + len(self.numbers) if self._renumbered else fd)
        return self.numbers[-1]


# ---------------------------------------------------------------- dropping privileges


@functools.cache
def reveal_point() -> Path:
    """Where a folder that NOBODY cannot reach is mounted for bwrap, in its own mount namespace: an empty folder, so
    that nothing is hidden."""
    for name in ("/srv", "/media", "/mnt", "/opt"):
        with contextlib.suppress(OSError):
            if not any(Path(name).iterdir()):
                return Path(name)
    return Path("/tmp")


def hidden_home(interpreter: Interpreter) -> Path | None:
    """The interpreter's folder, if bwrap cannot reach it."""
    if interpreter.home is not None and os.geteuid() == 0 and not can_be_reached(interpreter.home):
        return interpreter.home
    return None


def visible_home(interpreter: Interpreter) -> Path | None:
    """Where bwrap finds the interpreter's folder."""
    return reveal_point() if hidden_home(interpreter) is not None else interpreter.home


def _reveal(folder: Path) -> Callable[[], None]:
    """What the child does as root before it becomes bwrap: mount `folder` where NOBODY can reach it."""
    libc = ctypes.CDLL(None, use_errno=True)
    source, target = os.fsencode(folder), os.fsencode(reveal_point())

    def enter() -> None:
        failed = (
            libc.unshare(CLONE_NEWNS)
            or libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None)
            or libc.mount(source, target, None, MS_BIND | MS_REC, None)
        )
        if failed:
            raise OSError(ctypes.get_errno(), f"cannot make {folder} visible to bwrap")
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)

    return enter


@functools.cache
def find_setpriv() -> str | None:
    """util-linux's setpriv, if it is installed and works."""
    path = shutil.which("setpriv")
    if path is None:
        return None
    tried = subprocess.run([path, *_DROPPING, "--", "/bin/sh", "-c", "id -u"], capture_output=True, text=True)
    return path if tried.stdout.strip() == str(NOBODY) else None


@contextlib.contextmanager
def bwrap_command(
    program: Program, interpreter: Interpreter, passed: PassedFds
) -> Iterator[tuple[str, dict[str, str]]]:
    """How a child runs bwrap: the path and the environment.

    NOBODY may be unable to reach a virtual environment in a private home, and `reveal_point()` may cover another: then
    bwrap runs from in-memory copies, which are added to `passed`.
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
    argv: Sequence[str], *, env: dict[str, str], passed: PassedFds, stderr: int, interpreter: Interpreter
) -> subprocess.Popen[bytes]:
    """Run a program as NOBODY if we are root, otherwise as ourselves."""
    hidden = hidden_home(interpreter)
    dropped = NOBODY if os.geteuid() == 0 and hidden is None else None
    before: list[str] = []
    if dropped is not None and (setpriv := find_setpriv()):
        # With `user`, Python forks instead of spawning, which is slow for a process with a model in memory.
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
    """Wait until `fd` is readable; for a pidfd, until its process has ended."""
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
    """The end of what was written to an in-memory file."""
    size = os.fstat(stderr).st_size
    return os.pread(stderr, MAX_STDERR_BYTES, max(0, size - MAX_STDERR_BYTES)).decode("utf-8", "replace").strip()


class BwrapProcess:
    """A running bwrap, started by the keeper. Owns the descriptors. `on_end` is called when it exits on its own."""

    def __init__(self, *, pid: int, pidfd: int, info_fd: int, stderr_fd: int, on_end: Callable[[], None]) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._info_fd = info_fd
        self._stderr = stderr_fd
        self._on_end = on_end
        self._info = b""
        self._init_pidfd: int | None = None
        self.init_pid: int | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._ended)

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._on_end()

    def stderr(self) -> str:
        """The end of the stderr of bwrap and the supervisor."""
        return end_of(self._stderr)

    async def has_ended(self, grace_s: float) -> bool:
        """Whether bwrap exits on its own within `grace_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await readable(self._pidfd)
                return True
        return False

    async def find_init(self) -> int:
        """Wait until bwrap reports the pid of the sandbox's process 1, and open a pidfd of it."""
        while b"}" not in self._info:
            await readable(self._info_fd)
            piece = os.read(self._info_fd, 4096)
            if not piece:
                raise SandboxError(f"bwrap exited before the sandbox was ready: {self.stderr()}")
            self._info += piece
        if self.init_pid is None:
            pid = int(json.loads(self._info)["child-pid"])
            try:
                self._init_pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                raise SandboxError(f"the sandbox ended while it was starting: {self.stderr()}") from None
            self.init_pid = pid
        return self.init_pid

    def check_init_alive(self) -> None:
        """Raise ProcessLookupError unless the sandbox's process 1 is alive, so that what was opened by its pid before
        this call belongs to it, and not to a new process with the same pid."""
        if self._init_pidfd is None:
            raise ProcessLookupError(errno.ESRCH, "the sandbox is gone")
        signal.pidfd_send_signal(self._init_pidfd, 0)

    async def end(self) -> None:
        """Kill the sandbox and wait until it is dead. Called once; must not be cancelled. The channel to the supervisor
        is closed by now: if there is no pidfd of process 1, it exits because of that."""
        self._loop.remove_reader(self._pidfd)
        try:
            if self._init_pidfd is None:
                with contextlib.suppress(TimeoutError, SandboxError, OSError):
                    async with asyncio.timeout(INFO_GRACE_S):
                        await self.find_init()
            if self._init_pidfd is not None:
                kill(self._init_pidfd)
                await readable(self._init_pidfd)
            with contextlib.suppress(TimeoutError):  # bwrap reaps process 1, then exits
                async with asyncio.timeout(REAP_GRACE_S):
                    await readable(self._pidfd)
            kill(self._pidfd)
            await readable(self._pidfd)
        finally:
            for fd in (self._init_pidfd, self._pidfd, self._info_fd, self._stderr):
                if fd is not None:
                    os.close(fd)
            self._init_pidfd = None
