"""Starting the keeper's bwrap as an unprivileged user, and ending the processes of one sandbox.

Input: bwrap's arguments; a pidfd of what the keeper has started. Output: a `SandboxProcess`.
Invariants: bwrap never runs as root; after `end` no process of the sandbox is left, and no descriptor of its process 1
is open here.

If this process dies, so does the sandbox: its supervisor exits when the control socket closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import functools
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from slipstream.sandbox.local.bwrap import Interpreter, Program, can_be_reached
from slipstream.sandbox.supervisor.channel import memory_file

NOBODY = 65534
"""The user that bwrap runs as if we are root: process limits do not bind root, and root owns /proc/sys."""
_DROPPING = ("--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
MAX_STDERR_BYTES = 4096


class PassedFds:
    """File descriptors that a child inherits, under the same numbers."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def add(self, fd: int) -> int:
        self.fds.append(fd)
        return fd


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


class SandboxProcess:
    """A sandbox's process 1, which the keeper started. Owns the descriptors. `on_end` is called when it ends on its
    own."""

    def __init__(self, *, pid: int, pidfd: int, stderr_fd: int, on_end: Callable[[], None]) -> None:
        self.pid = pid
        """The host's number of it."""
        self._pidfd = pidfd
        self._stderr = stderr_fd
        self._on_end = on_end
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._ended)

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._on_end()

    def stderr(self) -> str:
        """The end of its stderr."""
        return end_of(self._stderr)

    async def has_ended(self, grace_s: float) -> bool:
        """Whether it ends on its own within `grace_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await readable(self._pidfd)
                return True
        return False

    def check_alive(self) -> None:
        """Raise ProcessLookupError unless it is alive, so that what was opened by its pid before this call belongs to
        it, and not to a new process with the same pid."""
        poll = select.poll()
        if not self._is_closed:
            poll.register(self._pidfd, select.POLLIN)
        if self._is_closed or poll.poll(0):
            raise ProcessLookupError(errno.ESRCH, "the sandbox is gone")

    async def end(self) -> None:
        """Kill the sandbox and wait until all of it is dead. Called once; must not be cancelled."""
        self._loop.remove_reader(self._pidfd)
        try:
            kill(self._pidfd)
            await readable(self._pidfd)
        finally:
            self._is_closed = True
            os.close(self._pidfd)
            os.close(self._stderr)
