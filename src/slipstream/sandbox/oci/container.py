"""The host side of one container: starts, watches and removes it.

Input: the arguments of `run`. Output: a channel to its supervisor, and a descriptor of its root. Invariants: after
`end` the container, its host folder and all descriptors are gone, however far the start got; before the supervisor
runs, nothing is accepted from the container except that one descriptor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from slipstream.errors import SandboxError
from slipstream.sandbox import supervisor
from slipstream.sandbox.oci import arguments
from slipstream.sandbox.oci.engine import Engine
from slipstream.sandbox.oci.watch import Watch
from slipstream.sandbox.supervisor.channel import Channel

LOOK_INTERVAL_S = 2.0
END_GRACE_S = 3.0
"""How long an unresponsive supervisor may take to die."""
SIZE_INTERVAL_S = 10.0
REMOVE_TRIES = 4
REMOVE_TIMEOUT_S = 120.0
EXIT_OF_KILLED = "137"
PROGRAMS = (supervisor.PROGRAM, supervisor.OCI_ENTRY)
CONTROL = "control"
ENDPOINTS = "endpoints"


class Container:
    """Owns `folder`, which is mounted read-only at RUN_FOLDER."""

    def __init__(self, engine: Engine, name: str, folder: Path, turns: asyncio.Semaphore) -> None:
        """`turns` limits how many containers are started and removed at once."""
        self._engine = engine
        self._turns = turns
        self.name = name
        self.folder = folder
        self.root_fd = -1
        self.uid = self.gid = -1
        """The host user and group of its programs."""
        self.watch: Watch | None = None
        self._pidfd = -1
        self._has_run = False
        self._ended = asyncio.Event()
        self._num_killed = 0
        self._next_size_s = 0.0
        self._ran_out_of_memory = False

    async def start(self, args: list[str], *, timeout_s: float) -> Channel:
        """Run it, and wait for the supervisor to connect. Raises SandboxError; call `end` even then."""
        for program in PROGRAMS:
            shutil.copyfile(program, self.folder / program.name)
            (self.folder / program.name).chmod(0o644)
        (self.folder / ENDPOINTS).mkdir()
        (self.folder / ENDPOINTS).chmod(0o755)
        with bound(self.folder / CONTROL, socket.SOCK_SEQPACKET) as listener:
            try:
                async with self._turns, asyncio.timeout(timeout_s):
                    control = await self._call(args, listener, timeout_s)
            except TimeoutError:
                raise SandboxError(
                    f"the container {self.name} did not start within {timeout_s:g} s: {await self.log()}"
                ) from None
        try:
            await self._receive_root(control)
        except BaseException:
            control.close()
            raise
        return Channel(control)

    async def _call(self, args: list[str], listener: socket.socket, timeout_s: float) -> socket.socket:
        """Run the engine until it has exited and the supervisor has connected."""
        loop = asyncio.get_running_loop()
        self._has_run = True
        accepting = asyncio.ensure_future(loop.sock_accept(listener))
        try:
            await self._engine.must(args, timeout_s=timeout_s, cwd=self.folder.parent)
            while not accepting.done():
                await asyncio.wait([accepting], timeout=LOOK_INTERVAL_S)
                if not accepting.done() and not await self._is_running():
                    raise SandboxError(f"the supervisor of {self.name} exited at once: {await self.log()}")
            return accepting.result()[0]
        except BaseException:
            if accepting.done() and not accepting.cancelled() and accepting.exception() is None:
                accepting.result()[0].close()
            accepting.cancel()
            raise

    async def _receive_root(self, control: socket.socket) -> None:
        """The first packet: a descriptor of the container's root. No program of the agent has run yet."""
        pid, self.uid, self.gid = struct.unpack("3i", control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        control.setblocking(False)
        for _ in range(1000):
            try:
                packet, fds, _, _ = socket.recv_fds(control, 16, 1)
                break
            except BlockingIOError:
                await asyncio.sleep(0.002)
        else:
            raise SandboxError(f"the supervisor of {self.name} connected but sent nothing: {await self.log()}")
        if packet != b"root" or not fds:
            raise SandboxError(f"the supervisor of {self.name} sent an unexpected first message: {await self.log()}")
        self.root_fd = fds[0]
        os.set_inheritable(self.root_fd, False)
        if pid <= 0:
            raise SandboxError("the container does not run on this machine: use a local container engine")
        self.watch = Watch(pid)
        with contextlib.suppress(OSError):
            self._pidfd = os.pidfd_open(pid)
            asyncio.get_running_loop().add_reader(self._pidfd, self._on_end)

    def _on_end(self) -> None:
        """The supervisor exited: find out why before the engine cleans up."""
        self._drop_pidfd()
        if self.watch is not None:
            self._ran_out_of_memory = self.watch.num_killed() > self._num_killed
        self._ended.set()

    def look_at_memory(self) -> None:
        """OOM kills up to now will not explain a later end of the sandbox."""
        if self.watch is not None and not self._ended.is_set():
            self._num_killed = self.watch.num_killed()

    def _drop_pidfd(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    async def why_broken(self) -> str | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_GRACE_S):  # process 1 is the last to end
                await self._ended.wait()
        if self._ran_out_of_memory:
            return "it exceeded its memory limit, and its supervisor was killed too"
        return None

    async def host_fault(self) -> str | None:
        """Evidence that someone outside killed it: no signal from inside can kill a container's process 1, and an OOM
        kill is already known."""
        state = ["container", "inspect", "--format", "{{.State.Running}} {{.State.ExitCode}}", self.name]
        result = await self._engine.call(state)
        if result.exit_code != 0:
            return f"the engine no longer knows the container {self.name}: {result.stderr}"
        killed = result.stdout.split() == ["false", EXIT_OF_KILLED]
        return "the container was killed from outside" if killed else None

    async def disk_bytes(self) -> int | None:
        """The disk space its files take beyond the image. Where we cannot see it, the engine is asked, but not
        often."""
        if self.watch is not None and self.watch.upper is not None:
            used = await asyncio.to_thread(self.watch.disk_bytes)
            if used is not None:
                return used
        now = asyncio.get_running_loop().time()
        if now < self._next_size_s:
            return None
        self._next_size_s = now + SIZE_INTERVAL_S
        result = await self._engine.call(["container", "inspect", "--size", "--format", "{{.SizeRw}}", self.name])
        return int(result.stdout) if result.stdout.strip().isdecimal() else None

    def listen(self, name: str) -> socket.socket:
        """A socket that programs inside find under this name in ENDPOINTS."""
        return bind(self.folder / ENDPOINTS / name, socket.SOCK_STREAM)

    async def _is_running(self) -> bool:
        result = await self._engine.call(["container", "inspect", "--format", "{{.State.Running}}", self.name])
        return result.stdout.strip() == "true"

    async def log(self) -> str:
        """The log of its first program."""
        with contextlib.suppress(SandboxError):
            result = await self._engine.call(["logs", self.name], timeout_s=10)
            return (result.stdout + result.stderr).strip()[-2000:] or "it said nothing"
        return "it said nothing"

    async def end(self) -> None:
        """Remove it and wait until it is gone. Raises SandboxError if that fails."""
        self._drop_pidfd()
        if self.root_fd >= 0:
            os.close(self.root_fd)
            self.root_fd = -1
        try:
            if self._has_run:
                async with self._turns:
                    await remove_container(self._engine, self.name)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


async def remove_container(engine: Engine, name: str) -> None:
    """Kill and remove a container, if it exists, and wait until it is gone."""
    complaint = ""
    for attempt in range(REMOVE_TRIES):
        result = await engine.call(arguments.remove(engine.kind, name), timeout_s=REMOVE_TIMEOUT_S)
        if result.exit_code == 0 or "no such container" in result.stderr.lower():
            return
        complaint = result.stderr
        await asyncio.sleep(0.1 * 2**attempt)
    raise SandboxError(f"the container {name} cannot be removed: {complaint}")


def bind(path: Path, kind: int) -> socket.socket:
    """A listening socket that anyone who can see it may connect to."""
    folder_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
    try:
        listener.bind(f"/proc/self/fd/{folder_fd}/{path.name}")  # because socket paths must be short
        path.chmod(0o666)
        listener.listen()
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder_fd)
    return listener


@contextlib.contextmanager
def bound(path: Path, kind: int) -> Iterator[socket.socket]:
    """Like `bind`, until the context ends."""
    listener = bind(path, kind)
    try:
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)
