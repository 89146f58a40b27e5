"""A sandbox that is a container, and its snapshots, which are images.

Input: a container whose supervisor has connected. Output: a Sandbox with Endpoints; also with Changes and Snapshots if
its files are in a layer of the engine. Invariants: files are read through a descriptor of the container's root, as in
`safe_walk.py`; changes are found by comparison with a second container, made from the original image or from the one
saved by `mark`, in which nothing ran.
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
from slipstream.sandbox.supervisor.endpoints import EndpointServers
from slipstream.sandbox.supervisor.programs import Programs, Running
from slipstream.sandbox.supervisor.sandbox import SupervisedSandbox
from slipstream.types import File, FileTree, SandboxSpec


class OciOwner(Protocol):
    """The provider, as its sandboxes see it."""

    @property
    def probe(self) -> Probe: ...

    async def start(self, spec: SandboxSpec, image: Image, *, base_image: Image, write_files: bool) -> OciSandbox:
        """A container of `image`, which was made from `base_image` and runs like it."""
        ...

    async def commit(self, container: Container, image: Image) -> Image:
        """Save the container's files as an image with one reference."""
        ...

    def hold(self, image: Image) -> None: ...

    async def release(self, image: Image) -> None: ...

    def forget(self, sandbox: OciSandbox) -> None: ...


class ContainerHost:
    """The host side of one container: what ends with it."""

    def __init__(self, owner: OciOwner, container: Container, held: list[Image], spec: SandboxSpec) -> None:
        self._owner = owner
        self._spec = spec
        self.container = container
        self.held = held
        self.endpoints = EndpointServers()

    async def end(self) -> None:
        await self.endpoints.aclose()
        try:
            await self.container.end()
        finally:
            for image in self.held:
                await self._owner.release(image)

    async def why_broken(self) -> str | None:
        return await self.container.why_broken()

    async def host_fault(self) -> str | None:
        return await self.container.host_fault()

    async def probe(self) -> str | None:
        return await self._owner.probe.fault(self._spec)


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
                with contextlib.suppress(OSError):  # only root may change the owner
                    os.fchown(fd, *self._owner)
        return super().start(argv, fds=fds, env=env, cwd=cwd, terminal_fd=terminal_fd)


class OciSandbox(SupervisedSandbox):
    """One container. Made by `OciProvider.open`, or by a snapshot."""

    def __init__(
        self,
        owner: OciOwner,
        container: Container,
        channel: Channel,
        *,
        spec: SandboxSpec,
        image: Image,
        base_image: Image,
        write_files: bool,
    ) -> None:
        self._container_host = ContainerHost(owner, container, [image], spec)
        self._owner = owner
        self._container = container
        self._spec = spec
        self._base_image = base_image
        self._first = (image, write_files)
        """The original files: an image, and whether the spec's files were written on top."""
        self._disk_bytes = 0
        programs = OwnedPrograms(
            container, channel, arguments.environment(spec, base_image), arguments.workdir_of(spec)
        )
        super().__init__(
            container.name, host=self._container_host, channel=channel, programs=programs, on_closed=owner.forget
        )
        owner.hold(image)

    async def ready(self, *, timeout_s: float) -> None:
        """Wait for the supervisor's first answer, and write the spec's files."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._channel.ask({"op": "hello"})
                await self.enter(self._spec, timeout_s=timeout_s)
                if self._first[1] and self._spec.files:
                    await self.write(self._spec.files)
        except TimeoutError:
            raise SandboxError(
                f"the supervisor of {self._id} did not answer within {timeout_s:g} s: {await self._container.log()}"
            ) from None
        except SandboxError as error:
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
            raise SandboxLimitError(f"the sandbox's disk limit of {self._spec.limits.disk_mb} MB is reached")
        await super().write(files)
        self._disk_bytes += num_bytes

    def _place(self, path: str) -> str:
        return os.path.join(arguments.workdir_of(self._spec), path)  # noqa: PTH118  the path is one inside

    def _root(self) -> Root:
        if self._channel.is_lost or self._container.root_fd < 0:
            raise SandboxError(f"the sandbox is gone: {self._id} was closed or has ended")
        return Root(os.dup(self._container.root_fd))

    async def look_at_limits(self) -> None:
        """End it if it exceeded a limit that the engine does not enforce."""
        watch, limits = self._container.watch, self._spec.limits
        if watch is None or self._channel.is_lost:
            return
        self._container.look_at_memory()
        cpu_s = watch.cpu_s()
        if cpu_s is not None and cpu_s > limits.cpu_s:
            self.mark_broken(f"it used {cpu_s:.0f} s of CPU time, more than the {limits.cpu_s} allowed")
            return
        try:
            used = await self._container.disk_bytes()
        except TooDeep:
            self.mark_broken("its folders are nested too deeply for its files to be counted")
            return
        if used is not None:
            self._disk_bytes = used
            if used > limits.disk_mb * MB:
                self.mark_broken(f"it wrote {used // MB} MB, more than the {limits.disk_mb} allowed")

    async def serve(self, name: str, on_connect: OnConnect) -> str:
        async with self.attributed():
            if self._closing is not None:
                raise SandboxError(f"the sandbox is gone: {self._id} was closed")
            self._container_host.endpoints.check(name)
            await self._container_host.endpoints.add(name, self._container.listen(name), on_connect)
        return f"{RUN_FOLDER}/{ENDPOINTS}/{name}"


class LayeredOciSandbox(OciSandbox):
    """A container whose files are in a layer of the engine, so that they can be saved as an image."""

    async def mark(self) -> None:
        async with self.attributed():
            committed = await self._owner.commit(self._container, self._base_image)
        last, self._first = self._first[0], (committed, False)
        self._container_host.held.append(committed)
        self._container_host.held.remove(last)
        await self._owner.release(last)

    async def changes(self, path: str | None = None, *, max_bytes: int = 16 << 20) -> Changed:
        place = self._place(path or ".")
        image, write_files = self._first
        async with self.attributed():
            with self._root() as root:
                other = await self._owner.start(self._spec, image, base_image=self._base_image, write_files=write_files)
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
            committed = await self._owner.commit(self._container, self._base_image)
        return OciSnapshot(self._owner, self._spec, committed, self._base_image)


class Root:
    """A descriptor of a container's root, closed with the context."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __enter__(self) -> Root:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


class OciSnapshot:
    """An unnamed image, which exists as long as the snapshot or a sandbox opened from it."""

    def __init__(self, owner: OciOwner, spec: SandboxSpec, image: Image, base_image: Image) -> None:
        self._owner = owner
        self._spec = spec
        self._image = image
        self._base_image = base_image
        self._is_closed = False

    @property
    def id(self) -> str:
        return self._image.id

    async def open(self) -> OciSandbox:
        if self._is_closed:
            raise SandboxError(f"the snapshot {self.id} was closed")
        return await self._owner.start(self._spec, self._image, base_image=self._base_image, write_files=False)

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._owner.release(self._image)
