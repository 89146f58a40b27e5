"""One container, from the host's side: started, watched, removed.

Input: the arguments of `run`. Output: a channel to the supervisor in it, and a descriptor of its root.
Invariants: after `end` the container is gone, and so are its folder here and all descriptors, however far its start
had come; of what the container sends, nothing is taken before the supervisor runs but that one descriptor.
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
"""How long a supervisor that no longer answers may take to be dead."""
SIZE_INTERVAL_S = 10.0
REMOVE_TRIES = 4
REMOVE_TIMEOUT_S = 120.0
EXIT_OF_KILLED = "137"
PROGRAMS = (supervisor.PROGRAM, supervisor.OCI_ENTRY)
CONTROL = "control"
ENDPOINTS = "endpoints"


class Container:
    """Its folder is bound at RUN_FOLDER, read-only, and belongs to it."""

    def __init__(self, engine: Engine, name: str, folder: Path, turns: asyncio.Semaphore) -> None:
        """`turns` bounds how many containers are started and removed at once."""
        self._engine = engine
        self._turns = turns
        self.name = name
        self.folder = folder
        self.root_fd = -1
        self.uid = self.gid = -1
        """Whom its programs run as, as this machine sees it."""
        self.watch: Watch | None = None
        self._pidfd = -1
        self._has_run = False
        self._ended = asyncio.Event()
        self._num_killed = 0
        self._next_size_s = 0.0
        self._ran_out_of_memory = False

    async def start(self, args: list[str], *, timeout_s: float) -> Channel:
        """Run it, and wait for the supervisor's call. Raises SandboxError; `end` is to be called then too."""
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
                    f"the container {self.name} did not come up within {timeout_s:g} s: {await self.log()}"
                ) from None
        try:
            await self._receive_root(control)
        except BaseException:
            control.close()
            raise
        return Channel(control)

    async def _call(self, args: list[str], listener: socket.socket, timeout_s: float) -> socket.socket:
        """Run the engine until the supervisor has called and the engine is done."""
        loop = asyncio.get_running_loop()
        self._has_run = True
        accepting = asyncio.ensure_future(loop.sock_accept(listener))
        try:
            await self._engine.must(args, timeout_s=timeout_s, cwd=self.folder.parent)
            while not accepting.done():
                await asyncio.wait([accepting], timeout=LOOK_INTERVAL_S)
                if not accepting.done() and not await self._is_running():
                    raise SandboxError(f"the supervisor of {self.name} ended at once: {await self.log()}")
            return accepting.result()[0]
        except BaseException:
            if accepting.done() and not accepting.cancelled() and accepting.exception() is None:
                accepting.result()[0].close()
            accepting.cancel()
            raise

    async def _receive_root(self, control: socket.socket) -> None:
        """The first packet: a descriptor of the container's root. No program of the agent's has run yet."""
        pid, self.uid, self.gid = struct.unpack("3i", control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        control.setblocking(False)
        for _ in range(1000):
            try:
                packet, fds, _, _ = socket.recv_fds(control, 16, 1)
                break
            except BlockingIOError:
                await asyncio.sleep(0.002)
        else:
            raise SandboxError(f"the supervisor of {self.name} called and said nothing: {await self.log()}")
        if packet != b"root" or not fds:
            raise SandboxError(f"the supervisor of {self.name} did not begin as ours does: {await self.log()}")
        self.root_fd = fds[0]
        os.set_inheritable(self.root_fd, False)
        if pid <= 0:
            raise SandboxError("the container runs where this process cannot see it: use an engine on this machine")
        self.watch = Watch(pid)
        with contextlib.suppress(OSError):
            self._pidfd = os.pidfd_open(pid)
            asyncio.get_running_loop().add_reader(self._pidfd, self._on_end)

    def _on_end(self) -> None:
        """The supervisor has ended: look why, before the engine has tidied up."""
        self._drop_pidfd()
        if self.watch is not None:
            self._ran_out_of_memory = self.watch.num_killed() > self._num_killed
        self._ended.set()

    def look_at_memory(self) -> None:
        """Programs that were killed for their memory until now have nothing to do with an end that is to come."""
        if self.watch is not None and not self._ended.is_set():
            self._num_killed = self.watch.num_killed()

    def _drop_pidfd(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    async def why_broken(self) -> str | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_GRACE_S):  # all other processes end before the first one has
                await self._ended.wait()
        if self._ran_out_of_memory:
            return "it used more memory than it may, and its supervisor was killed with the rest"
        return None

    async def host_fault(self) -> str | None:
        """What shows that somebody outside killed it. No signal from inside can kill the first process of a container,
        and one that memory killed is known by now."""
        state = ["container", "inspect", "--format", "{{.State.Running}} {{.State.ExitCode}}", self.name]
        said = await self._engine.call(state)
        if said.code != 0:
            return f"the container {self.name} is not known to the engine any more: {said.complaint}"
        killed = said.out.split() == ["false", EXIT_OF_KILLED]
        return "the container was killed from outside" if killed else None

    async def disk_bytes(self) -> int | None:
        """What its files take up beyond the image's. The engine is asked where we cannot see it, and not often."""
        if self.watch is not None and self.watch.upper is not None:
            used = await asyncio.to_thread(self.watch.disk_bytes)
            if used is not None:
                return used
        now = asyncio.get_running_loop().time()
        if now < self._next_size_s:
            return None
        self._next_size_s = now + SIZE_INTERVAL_S
        said = await self._engine.call(["container", "inspect", "--size", "--format", "{{.SizeRw}}", self.name])
        return int(said.out) if said.out.strip().isdecimal() else None

    def listen(self, name: str) -> socket.socket:
        """A socket that programs inside find by that name in ENDPOINTS."""
        return bind(self.folder / ENDPOINTS / name, socket.SOCK_STREAM)

    async def _is_running(self) -> bool:
        said = await self._engine.call(["container", "inspect", "--format", "{{.State.Running}}", self.name])
        return said.out.strip() == "true"

    async def log(self) -> str:
        """What its first program complained about."""
        with contextlib.suppress(SandboxError):
            said = await self._engine.call(["logs", self.name], timeout_s=10)
            return (said.out + said.complaint).strip()[-2000:] or "it said nothing"
        return "it said nothing"

    async def end(self) -> None:
        """Remove it and wait until it is gone. Raises SandboxError if it does not go."""
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
    """Kill and remove a container, if it is there, and wait until it is gone."""
    complaint = ""
    for attempt in range(REMOVE_TRIES):
        said = await engine.call(arguments.remove(engine.kind, name), timeout_s=REMOVE_TIMEOUT_S)
        if said.code == 0 or "no such container" in said.complaint.lower():
            return
        complaint = said.complaint
        await asyncio.sleep(0.1 * 2**attempt)
    raise SandboxError(f"the container {name} cannot be removed: {complaint}")


def bind(path: Path, kind: int) -> socket.socket:
    """A socket that all who see it may connect to."""
    folder_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
    try:
        listener.bind(f"/proc/self/fd/{folder_fd}/{path.name}")  # since the path of a socket must be short
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
    """The same until the context ends: then nobody can connect any more."""
    listener = bind(path, kind)
    try:
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)
