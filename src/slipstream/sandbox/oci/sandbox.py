"""A sandbox that is a container, and the images that snapshots of it are.

Input: a container whose supervisor has called. Output: a Sandbox with Endpoints; with Changes and Snapshots too if its
files are in a layer of the engine's.
Invariants: files are read through a descriptor of the container's root, as `safe_walk.py` says; what changed is told by
comparing with another container, made from the same image or from the one kept at the mark, in which nothing ran.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Protocol

from slipstream.errors import SandboxError, SandboxFileError, SandboxLimitError
from slipstream.offload import WorkTooLarge, apart
from slipstream.sandbox.base import Changed, OnConnect
from slipstream.sandbox.blame import Probe
from slipstream.sandbox.files.safe_walk import read_tree
from slipstream.sandbox.oci import arguments
from slipstream.sandbox.oci.arguments import MB, RUN_FOLDER, Image
from slipstream.sandbox.oci.changes import LIMITS, compare
from slipstream.sandbox.oci.container import ENDPOINTS, Container
from slipstream.sandbox.oci.watch import TooDeep
from slipstream.sandbox.supervisor.channel import Channel
from slipstream.sandbox.supervisor.endpoints import Served
from slipstream.sandbox.supervisor.programs import Programs, Running
from slipstream.sandbox.supervisor.sandbox import SupervisedSandbox
from slipstream.types import File, FileTree, SandboxSpec


class OciOwner(Protocol):
    """The provider, as its sandboxes know it."""

    @property
    def probe(self) -> Probe: ...

    async def start(self, spec: SandboxSpec, image: Image, *, way_of: Image, write_files: bool) -> OciSandbox:
        """A container of `image`, which was made from `way_of` and runs like it."""
        ...

    async def keep(self, container: Container, image: Image) -> Image:
        """The container's files as an image, held once."""
        ...

    def hold(self, image: Image) -> None: ...

    async def let_go(self, image: Image) -> None: ...

    def closed(self, sandbox: OciSandbox) -> None: ...


class Side:
    """The host's side of one container: what goes with it."""

    def __init__(self, keeper: OciOwner, container: Container, held: list[Image], spec: SandboxSpec) -> None:
        self._keeper = keeper
        self._spec = spec
        self.container = container
        self.held = held
        self.served = Served()

    async def end(self) -> None:
        await self.served.aclose()
        try:
            await self.container.end()
        finally:
            for image in self.held:
                await self._keeper.let_go(image)

    async def why_broken(self) -> str | None:
        return await self.container.why_broken()

    async def host_fault(self) -> str | None:
        return await self.container.host_fault()

    async def probe(self) -> str | None:
        return await self._keeper.probe.fault(self._spec)


class OwnedPrograms(Programs):
    """Programs whose pipes belong to the container's user, who may then open /dev/stdout."""

    def __init__(self, container: Container, channel: Channel, env: Mapping[str, str], workdir: str) -> None:
        super().__init__(channel, env, workdir)
        self._owner = (container.uid, container.gid)

    def start(
        self,
        argv: Sequence[str],
        *,
        fds: Mapping[int, int],
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        terminal_fd: int | None = None,
    ) -> Running:
        for fd in fds.values():
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                with contextlib.suppress(OSError):  # it is ours alone to give away if we are root
                    os.fchown(fd, *self._owner)
        return super().start(argv, fds=fds, env=env, cwd=cwd, terminal_fd=terminal_fd)


class OciSandbox(SupervisedSandbox):
    """One container. Made by `OciProvider.open`, or by a snapshot."""

    def __init__(
        self,
        keeper: OciOwner,
        container: Container,
        channel: Channel,
        *,
        spec: SandboxSpec,
        image: Image,
        way_of: Image,
        write_files: bool,
    ) -> None:
        self._side = Side(keeper, container, [image], spec)
        self._keeper = keeper
        self._container = container
        self._spec = spec
        self._way_of = way_of
        self._first = (image, write_files)
        """What the files were at first: an image, and whether the spec's were written over it."""
        self._disk_bytes = 0
        programs = OwnedPrograms(container, channel, arguments.environment(spec, way_of), arguments.workdir_of(spec))
        super().__init__(container.name, host=self._side, channel=channel, programs=programs, on_closed=keeper.closed)
        keeper.hold(image)

    async def ready(self, *, timeout_s: float) -> None:
        """Wait for the supervisor's first answer, and write the spec's files."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._channel.ask({"op": "hello"})
                if self._first[1] and self._spec.files:
                    await self.write(self._spec.files)
        except TimeoutError:
            raise SandboxError(
                f"the supervisor of {self._id} did not answer within {timeout_s:g} s: {await self._container.log()}"
            ) from None
        except SandboxError as error:
            if type(error) is not SandboxError:
                raise
            raise SandboxError(f"{error}: {await self._container.log()}") from error

    # ---------------------------------------------------------------- files

    async def read_tree(self, path: str, *, max_bytes: int = 64 << 20, max_files: int = 10_000) -> FileTree:
        place = self._place(path)
        async with self.attributed():
            with self._root() as root:
                return await asyncio.to_thread(read_tree, root.fd, place, max_bytes, max_files)

    async def write(self, files: Mapping[str, File]) -> None:
        num_bytes = sum(len(file.data) for file in files.values())
        if self._disk_bytes + num_bytes > self._spec.limits.disk_mb * MB:
            raise SandboxLimitError(f"the sandbox's {self._spec.limits.disk_mb} MB are full")
        await super().write(files)
        self._disk_bytes += num_bytes

    def _place(self, path: str) -> str:
        return os.path.join(arguments.workdir_of(self._spec), path)  # noqa: PTH118  the path is one inside

    def _root(self) -> Root:
        if self._channel.is_lost or self._container.root_fd < 0:
            raise SandboxError(f"the sandbox is gone: {self._id} was closed or has ended")
        return Root(os.dup(self._container.root_fd))

    async def look_at_limits(self) -> None:
        """End it if it went beyond a limit that the engine does not hold it to."""
        watch, limits = self._container.watch, self._spec.limits
        if watch is None or self._channel.is_lost:
            return
        self._container.look_at_memory()
        cpu_s = watch.cpu_s()
        if cpu_s is not None and cpu_s > limits.cpu_s:
            self.give_up(f"it used {cpu_s:.0f} s of CPU time, where {limits.cpu_s} are allowed")
            return
        try:
            used = await self._container.disk_bytes()
        except TooDeep:
            self.give_up("its folders lie too deep in each other for its files to be counted")
            return
        if used is not None:
            self._disk_bytes = used
            if used > limits.disk_mb * MB:
                self.give_up(f"it wrote {used // MB} MB, where {limits.disk_mb} are allowed")

    async def serve(self, name: str, on_connect: OnConnect) -> str:
        async with self.attributed():
            if self._closing is not None:
                raise SandboxError(f"the sandbox is gone: {self._id} was closed")
            self._side.served.check(name)
            await self._side.served.add(name, self._container.listen(name), on_connect)
        return f"{RUN_FOLDER}/{ENDPOINTS}/{name}"


class KeptOciSandbox(OciSandbox):
    """One whose files lie in a layer of the engine's, so that they can be kept as an image."""

    async def mark(self) -> None:
        async with self.attributed():
            kept = await self._keeper.keep(self._container, self._way_of)
        last, self._first = self._first[0], (kept, False)
        self._side.held.append(kept)
        self._side.held.remove(last)
        await self._keeper.let_go(last)

    async def changes(self, path: str | None = None, *, max_bytes: int = 16 << 20) -> Changed:
        place = self._place(path or ".")
        image, write_files = self._first
        async with self.attributed():
            with self._root() as root:
                other = await self._keeper.start(self._spec, image, way_of=self._way_of, write_files=write_files)
                try:
                    with other._root() as other_root:
                        fds = (other_root.fd, root.fd)
                        return await apart(compare, *fds, place, max_bytes, fds=fds, limits=LIMITS)
                except WorkTooLarge as raised:
                    raise SandboxFileError(f"the changes are too much to compare: {raised}") from raised
                finally:
                    await other.aclose()

    async def snapshot(self) -> OciSnapshot:
        async with self.attributed():
            kept = await self._keeper.keep(self._container, self._way_of)
        return OciSnapshot(self._keeper, self._spec, kept, self._way_of)


class Root:
    """A descriptor of a container's root for as long as the context lasts."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __enter__(self) -> Root:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


class OciSnapshot:
    """An image without a name, which is there as long as the snapshot or a sandbox that was opened from it."""

    def __init__(self, keeper: OciOwner, spec: SandboxSpec, image: Image, way_of: Image) -> None:
        self._keeper = keeper
        self._spec = spec
        self._image = image
        self._way_of = way_of
        self._is_closed = False

    @property
    def id(self) -> str:
        return self._image.id

    async def open(self) -> OciSandbox:
        if self._is_closed:
            raise SandboxError(f"the snapshot {self.id} was closed")
        return await self._keeper.start(self._spec, self._image, way_of=self._way_of, write_files=False)

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._keeper.let_go(self._image)
