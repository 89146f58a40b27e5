"""Client of the keeper: asks it for layers, views and sandbox processes.

Input: the size of a layer, the contents of a view, or what to start. Output: a KeptLayer, or a process known by its
pidfd. Invariants: closing it ends the keeper, and with it every layer that no sandbox uses any more; a keeper that does
not reply in time is lost and killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from slipstream.errors import SandboxError
from slipstream.sandbox.local import bwrap
from slipstream.sandbox.local.process import (
    PassedFds,
    bwrap_command,
    end_of,
    kill,
    readable,
    spawn_unprivileged,
    visible_home,
)
from slipstream.sandbox.local.view import HostView
from slipstream.sandbox.supervisor.channel import Channel, Reply, Request, memory_file

PACKAGE = Path(__file__).parents[1]
LAYERS = "/slipstream/layers"
OWN_LAYER = f"{LAYERS}/own"
"""Where process 1 of a sandbox finds its own layer before the change of the root."""
VIEW_BYTES = 64 << 20
CODE = "/slipstream/code"
"""Where the keeper finds its program."""
PROGRAMS = ("keeper/program.py", "keeper/process_one.py", "keeper/layers.py", "keeper/copying.py", "keeper/kernel.py")
SOURCES = (*PROGRAMS, "supervisor/program.py")
"""The keeper's modules, below this package. None imports anything but the others and the standard library."""
IMPORT = f"import sys; sys.path.insert(0, '{CODE}'); from slipstream.sandbox.keeper.program import main"
RUN = f"{IMPORT}; main()"
COMPILE = f"{IMPORT}; import os; os.execv(sys.executable, [sys.executable, '-I', '-S', '-c', *sys.argv[1:]])"
"""Run first, since forks are cheaper without what compiling leaves in memory. The compiled modules stay in the keeper's
own file system."""
END_GRACE_S = 5.0
ANSWER_TIMEOUT_S = 30.0
CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_SYS_CHROOT")
"""In its own namespaces, to mount layers, to copy files that an agent made unreadable, and to put roots together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLayer:
    """A layer that the keeper holds, at `path`; `fd` is our own descriptor of it."""

    name: str
    """Its name in the keeper; empty for a sandbox's own layer, which goes with the sandbox."""
    path: str
    fd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRequest:
    """What a sandbox should be like."""

    num_bytes: int
    """The size of its own layer."""
    folders: dict[str, int]
    """Those of its layer, with their modes, outer folders first."""
    files: dict[str, bytes]
    """Files in its layer."""
    terminals: str
    """The layer's folder for pseudo-terminals."""
    view: str
    """The name of a layer from `make_view`."""
    root: str
    """The folder of its layer that is the root; empty if the view is."""
    overlays: list[tuple[str, tuple[str, ...]]]
    """Folders of its layer, and those below each, bottom to top: mounted over each other at `NAME-overlay`."""
    binds: list[tuple[str, str, bool]]
    """Folders and files of its layer, where each is mounted, and whether read-only; in this order."""
    workdir: str
    limits: dict[str, int]
    filter: bytes
    """The instructions of the seccomp filter; empty if there is none for this machine."""
    open_files: int | None
    """The soft limit of started programs; None for our own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawned:
    """Process 1 of a sandbox, and its layer."""

    pid: int
    pidfd: int
    layer: KeptLayer


def arguments(interpreter: bwrap.Interpreter, sources: Mapping[str, int]) -> list[str]:
    """bwrap's arguments before the command: the host as it is, the keeper's program, and a place for layers."""
    args = ["--unshare-user", "--uid", str(bwrap.INSIDE_UID), "--gid", str(bwrap.INSIDE_UID), "--new-session"]
    for name in CAPABILITIES:
        args += ["--cap-add", name]
    for entry in sorted(Path("/").iterdir()):
        if entry.is_symlink():
            args += ["--symlink", str(entry.readlink()), str(entry)]
        elif entry.is_dir():
            args += ["--dev-bind-try", str(entry), str(entry)]
    args += ["--perms", "0755", "--dir", LAYERS, "--setenv", "LD_BIND_NOW", "1"]
    for name, fd in sources.items():
        args += ["--ro-bind-data", str(fd), f"{CODE}/slipstream/sandbox/{name}"]
    home = visible_home(interpreter)
    return args if home is None else [*args, "--setenv", "LD_LIBRARY_PATH", f"{home}/lib"]


def python_of(interpreter: bwrap.Interpreter) -> str:
    """The interpreter's path outside of a sandbox."""
    home = visible_home(interpreter)
    return interpreter.path if home is None else str(home / "bin" / Path(interpreter.path).name)


def start(
    program: bwrap.Program, interpreter: bwrap.Interpreter, lease: str, stderr: int
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a keeper; returns its process and the socket to it. It has not replied yet."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    passed = PassedFds()
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as inherited:
        undo.callback(ours.close)
        inherited.callback(theirs.close)
        sources = {name: memory_file((PACKAGE / name).read_bytes()) for name in SOURCES}
        for source in sources.values():
            inherited.callback(os.close, passed.add(source))
        path, env = inherited.enter_context(bwrap_command(program, bwrap.own_interpreter(), passed))
        argv = [path, *arguments(interpreter, sources), "--", python_of(interpreter), "-I", "-S", "-c", COMPILE, RUN]
        argv += [str(passed.add(theirs.fileno())), LAYERS, f"slipstream-lease={lease}"]
        process = spawn_unprivileged(argv, env=env, passed=passed, stderr=stderr, interpreter=bwrap.own_interpreter())
        undo.pop_all()
    return process, ours


class KeeperClient:
    """A running keeper. `timeout_s` is how long it may take to reply."""

    def __init__(
        self,
        program: bwrap.Program,
        interpreter: bwrap.Interpreter,
        lease: str,
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self.program = program
        self.interpreter = interpreter
        self._numbers = itertools.count(1)
        self.timeout_s = timeout_s
        self._holders: dict[str, int] = {}
        self._stderr = memory_file()
        try:
            self._process, control = start(program, interpreter, lease, self._stderr)
        except (OSError, subprocess.SubprocessError) as error:
            os.close(self._stderr)
            raise SandboxError(f"bwrap could not be started: {error}") from error
        self._pidfd = os.pidfd_open(self._process.pid)
        self._channel = Channel(
            control, takes_fds=True, on_end=lambda: f"the sandbox keeper has ended: {self.stderr()}"
        )

    @property
    def is_lost(self) -> bool:
        return self._channel.is_lost

    @property
    def pid(self) -> int:
        return self._process.pid

    def stderr(self) -> str:
        return end_of(self._stderr)

    async def make(self, num_bytes: int, folders: dict[str, int]) -> KeptLayer:
        """A shared layer of this size, with folders of these modes in it."""
        return await self._layer({"op": "make", "num_bytes": num_bytes, "folders": folders})

    async def make_view(self, view: HostView) -> KeptLayer:
        """A layer with that view in it."""
        return await self._layer({"op": "make_view", "num_bytes": VIEW_BYTES, "folders": {}, "view": asdict(view)})

    async def _layer(self, message: Request) -> KeptLayer:
        name = str(next(self._numbers))
        try:
            (fd,) = await self._fds(self._ask({**message, "layer": name}), 1)
        except BaseException:
            with contextlib.suppress(SandboxError):  # nobody can reach a half-made layer
                self._ask({"op": "drop", "layer": name})
            raise
        return KeptLayer(name=name, path=f"{LAYERS}/{name}", fd=fd)

    async def listen(self, layer: KeptLayer, path: str) -> socket.socket:
        """A Unix socket that listens on a path in a layer."""
        (fd,) = await self._fds(self._ask({"op": "listen", "path": path}, [layer.fd]), 1)
        return socket.socket(fileno=fd)

    async def copy(self, source: KeptLayer, target: KeptLayer, folders: Sequence[str]) -> None:
        """Copy folders of one layer into those of another."""
        asked = self._ask({"op": "copy", "folders": list(folders)}, [source.fd, target.fd])
        while not (await asyncio.wait([asked], timeout=self.timeout_s))[0]:
            await self._reply(self._ask({"op": "hello"}))  # it may take long; the keeper still replies meanwhile
        asked.result()

    def hold(self, layer: KeptLayer) -> None:
        """Add a reference to a shared layer."""
        self._holders[layer.name] = self.num_holders(layer) + 1

    def num_holders(self, layer: KeptLayer) -> int:
        return self._holders.get(layer.name, 0)

    async def release(self, layer: KeptLayer) -> None:
        """Drop a reference; the last one drops the layer."""
        self._holders[layer.name] -= 1
        if not self._holders[layer.name]:
            del self._holders[layer.name]
            await self.drop(layer)

    async def drop(self, layer: KeptLayer) -> None:
        """Drop a layer. If the keeper is gone, the layer went with it."""
        os.close(layer.fd)
        if layer.name:
            with contextlib.suppress(SandboxError):
                await self._reply(self._ask({"op": "drop", "layer": layer.name}))

    async def spawn(self, request: SpawnRequest, *, control: int, stderr: int, join_fds: Sequence[int]) -> Spawned:
        """Start a sandbox. `control` is the supervisor's end of its socket; `join_fds` come from a
        meter."""
        message = {field.name: getattr(request, field.name) for field in fields(request)}
        asked = self._ask({**message, "op": "spawn"}, [control, stderr, *join_fds])
        pidfd, layer_fd = await self._fds(asked, 2)
        layer = KeptLayer(name="", path=OWN_LAYER, fd=layer_fd)
        return Spawned(pid=int(str(asked.result()["pid"])), pidfd=pidfd, layer=layer)

    async def was_killed(self, pid: int) -> bool:
        """For a sandbox that has ended: whether someone outside killed its process 1. No signal from inside can."""
        told = await self._reply(self._ask({"op": "status", "pid": pid}))
        return "signal" in told

    def _ask(self, message: Request, fds: Sequence[int] = ()) -> asyncio.Future[Reply]:
        return self._channel.request(message, fds)[1]

    async def _reply(self, asked: asyncio.Future[Reply]) -> Reply:
        """The reply. A keeper that does not reply in time is given up; the sandboxes it started keep running."""
        await asyncio.wait([asked], timeout=self.timeout_s)
        if not asked.done():
            self._channel.lose(f"the sandbox keeper did not reply within {self.timeout_s:g} s")
            kill(self._pidfd)
        return asked.result()

    async def _fds(self, asked: asyncio.Future[Reply], num: int) -> list[int]:
        """The `num` descriptors that come with a reply. They are closed if the caller was cancelled."""
        try:
            fds = _fds_in(await self._reply(asked))
        except asyncio.CancelledError:
            asked.add_done_callback(_close_fds)
            raise
        if len(fds) != num:
            _close_fds(asked)
            raise SandboxError(
                f"only {len(fds)} of {num} file descriptors arrived from the sandbox keeper: this process has reached "
                "its limit of open files, so raise it (ulimit -n)"
            )
        return fds

    async def aclose(self) -> None:
        self._channel.lose("the sandbox keeper was closed")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_GRACE_S):
                await readable(self._pidfd)
        kill(self._pidfd)
        self._process.wait()
        os.close(self._pidfd)
        os.close(self._stderr)


def _fds_in(reply: Reply) -> list[int]:
    fds = reply.get("fds")
    return [int(str(fd)) for fd in fds] if isinstance(fds, list) else []


def _close_fds(asked: asyncio.Future[Reply]) -> None:
    if not asked.cancelled() and asked.exception() is None:
        for fd in _fds_in(asked.result()):
            os.close(fd)
