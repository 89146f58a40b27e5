"""Starting and ending the bwrap process of one sandbox.

Enters: the arguments of bwrap. Leaves: a `Launched`, which knows bwrap and the sandbox's process 1 by pidfd.
Always holds: bwrap never runs as root; after `end` neither bwrap nor any process of the sandbox is left, and no
descriptor of theirs is open here.

If we die, so does the sandbox: its supervisor ends with the control socket, and bwrap with the supervisor. bwrap's own
`--die-with-parent` is not used: it kills bwrap alone while process 1 still waits for bwrap's word to begin, and then
process 1 waits for ever. The supervisor asks for the signal itself, once it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from slipstream.errors import SandboxError
from slipstream.sandbox.bwrap import Interpreter, Program, can_be_reached
from slipstream.sandbox.channel import memory_file

NOBODY = 65534
"""Whom bwrap runs as when we are root: limits on processes do not bind root, and root owns /proc/sys."""
REVEALED = Path("/tmp")
"""Where a folder that NOBODY cannot come to is shown to bwrap, in a mount namespace of its own."""
_DROPPING = ("--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
INFO_GRACE_S = 20.0
"""How long a start that is given up may take to tell whom to kill. Killing bwrap before that would leave process 1."""
REAP_GRACE_S = 2.0
MAX_STDERR_BYTES = 4096


def hidden_home(interpreter: Interpreter) -> Path | None:
    """The interpreter's folder, if bwrap could not come to it."""
    if interpreter.home is not None and os.geteuid() == 0 and not can_be_reached(interpreter.home):
        return interpreter.home
    return None


def visible_home(interpreter: Interpreter) -> Path | None:
    """Where bwrap finds the interpreter's folder."""
    return REVEALED if hidden_home(interpreter) is not None else interpreter.home


def _reveal(folder: Path) -> Callable[[], None]:
    """What the child does, as root, before it becomes bwrap: show `folder` where NOBODY can come to it."""
    libc = ctypes.CDLL(None, use_errno=True)
    source, target = os.fsencode(folder), os.fsencode(REVEALED)

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
def _command(program: Program, *, in_place: bool) -> Iterator[tuple[str, dict[str, str], list[int]]]:
    """How to run bwrap: its path, its environment, the descriptors it needs.

    NOBODY may be unable to come to a virtual environment below a private home, and one below REVEALED is covered where
    that is used: then bwrap is run from copies in memory.
    """
    if in_place:
        yield str(program.path), {}, []
        return
    fds: list[int] = []
    try:
        fds.append(memory_file(program.path.read_bytes(), sealed=True))
        preload: dict[str, str] = {}
        if program.library is not None:
            fds.append(memory_file(program.library.read_bytes(), sealed=True))
            preload["LD_PRELOAD"] = f"/proc/self/fd/{fds[1]}"
        yield f"/proc/self/fd/{fds[0]}", preload, fds
    finally:
        for fd in fds:
            os.close(fd)


def spawn(
    program: Program, args: Sequence[str], *, fds: Sequence[int], stderr: int, interpreter: Interpreter
) -> subprocess.Popen[bytes]:
    """Run bwrap, unprivileged."""
    as_nobody = os.geteuid() == 0
    hidden = hidden_home(interpreter)
    dropped = NOBODY if as_nobody and hidden is None else None
    in_place = not as_nobody or (hidden is None and can_be_reached(program.path))
    if dropped is not None and (setpriv := find_setpriv()):
        # Given a user, Python forks instead of spawning: with a model in memory that takes longer than all the rest.
        before, dropped = [setpriv, *_DROPPING, "--"], None
    else:
        before = []
    with _command(program, in_place=in_place) as (path, env, own_fds):
        return subprocess.Popen(
            [*before, path, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=env,
            cwd="/",
            pass_fds=[*fds, *own_fds],
            user=dropped,
            group=dropped,
            extra_groups=None if dropped is None else [],
            preexec_fn=None if hidden is None else _reveal(hidden),
        )


async def readable(fd: int) -> None:
    """Wait until `fd` has something to say: for a pidfd, that its process has ended."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


def _kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


class Launched:
    """One running bwrap. `on_end` is called when bwrap has ended by itself."""

    def __init__(
        self,
        program: Program,
        args: Sequence[str],
        *,
        fds: Sequence[int],
        interpreter: Interpreter,
        on_end: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._info = b""
        self._first_pidfd: int | None = None
        with contextlib.ExitStack() as undo:
            self._stderr = memory_file()
            undo.callback(os.close, self._stderr)
            self._info_fd, info_write = os.pipe()
            undo.callback(os.close, self._info_fd)
            try:
                self._process = spawn(
                    program,
                    ["--info-fd", str(info_write), *args],
                    # It holds the reading end too, so that it can write even if we are dead by then.
                    fds=[*fds, info_write, self._info_fd],
                    stderr=self._stderr,
                    interpreter=interpreter,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise SandboxError(f"bwrap could not be started: {error}") from error
            finally:
                os.close(info_write)
            undo.pop_all()
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._ended)

    @property
    def pid(self) -> int:
        return self._process.pid

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._on_end()

    def stderr(self) -> str:
        """The end of what bwrap and the supervisor complained about."""
        size = os.fstat(self._stderr).st_size
        data = os.pread(self._stderr, MAX_STDERR_BYTES, max(0, size - MAX_STDERR_BYTES))
        return data.decode("utf-8", "replace").strip()

    async def find_first(self) -> None:
        """Wait until bwrap has told the pid of the sandbox's process 1, and hold on to that process."""
        while b"}" not in self._info:
            await readable(self._info_fd)
            piece = os.read(self._info_fd, 4096)
            if not piece:
                raise SandboxError(f"bwrap ended before the sandbox was made: {self.stderr()}")
            self._info += piece
        if self._first_pidfd is None:
            try:
                self._first_pidfd = os.pidfd_open(json.loads(self._info)["child-pid"])
            except ProcessLookupError:
                raise SandboxError(f"the sandbox ended while it was made: {self.stderr()}") from None

    async def end(self) -> None:
        """Kill the sandbox and wait until all of it is dead. May be called once, and must not be cancelled."""
        if self._first_pidfd is None:
            with contextlib.suppress(TimeoutError, SandboxError):
                async with asyncio.timeout(INFO_GRACE_S):
                    await self.find_first()
        self._loop.remove_reader(self._pidfd)
        if self._first_pidfd is not None:
            _kill(self._first_pidfd)
            await readable(self._first_pidfd)
            os.close(self._first_pidfd)
            with contextlib.suppress(TimeoutError):  # bwrap reaps process 1, then ends by itself
                async with asyncio.timeout(REAP_GRACE_S):
                    await readable(self._pidfd)
        _kill(self._pidfd)
        await readable(self._pidfd)
        self._process.wait()
        for fd in (self._pidfd, self._info_fd, self._stderr):
            os.close(fd)
