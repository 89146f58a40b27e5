"""A local sandbox and its snapshots, as `LocalProvider` opens them.

Invariants: a sandbox that was lost raises at once, in every call; changes are found by comparing the writable layer
with its state at the last mark, without asking the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Protocol

from slipstream.errors import SandboxError, SandboxFileError, boundary
from slipstream.offload import WorkTooLarge, apart
from slipstream.sandbox.base import Changed, OnConnect
from slipstream.sandbox.files import safe_walk
from slipstream.sandbox.files.overlay import OverlayLayer
from slipstream.sandbox.files.safe_open import FOLDER as OPEN_FOLDER
from slipstream.sandbox.files.safe_open import acting_as, open_inside
from slipstream.sandbox.local import bwrap
from slipstream.sandbox.local.changes import LIMITS, compare_layers, compare_small, read_marked_layer
from slipstream.sandbox.local.keeper_client import KeeperClient, KeptLayer
from slipstream.sandbox.local.lower_folders import LowerFolders
from slipstream.sandbox.local.process import NOBODY
from slipstream.sandbox.local.resources import LocalHost
from slipstream.sandbox.local.shared_layers import SharedLayers, folder
from slipstream.sandbox.supervisor.channel import Channel
from slipstream.sandbox.supervisor.endpoints import EndpointServers
from slipstream.sandbox.supervisor.programs import Programs
from slipstream.sandbox.supervisor.sandbox import SupervisedSandbox
from slipstream.types import File, FileTree

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_numbers = itertools.count(1)


class LocalOwner(Protocol):
    """The provider, as its sandboxes see it."""

    async def open_on(
        self, lower: LowerFolders, tree: KeptLayer | None = None, keeper: KeeperClient | None = None
    ) -> LocalSandbox:
        """Start a sandbox, if necessary on the layers of this keeper."""
        ...

    def forget(self, sandbox: LocalSandbox) -> None:
        """Called when a sandbox is completely gone."""
        ...


class LocalSandbox(SupervisedSandbox):
    """One sandbox on this machine. Made by `LocalProvider.open`."""

    def __init__(self, owner: LocalOwner, lower: LowerFolders, host: LocalHost, channel: Channel) -> None:
        programs = Programs(channel, bwrap.environment(lower.spec), bwrap.workdir_of(lower.spec))
        super().__init__(
            f"local-{os.getpid()}-{next(_numbers)}",
            host=host,
            channel=channel,
            programs=programs,
            on_closed=owner.forget,
        )
        self._owner = owner
        self._lower = lower
        self._local_host = host
        self._marked: dict[str, OverlayLayer] = {}
        self._given: dict[str, File] | None = {}
        """Everything that was written from outside; None if that is uncertain."""
        self._endpoints = EndpointServers()

    @property
    def host_pid(self) -> int:
        """The host's pid of the sandbox's process 1, to watch or kill it from outside."""
        return self._local_host.process.pid

    def stderr(self) -> str:
        """The end of the supervisor's stderr."""
        return self._local_host.process.stderr()

    async def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until the supervisor responds and the meter is attached."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._channel.ask({"op": "hello"})
                self._local_host.meter.attach(self._local_host.process.pid)  # it has joined, so this does not wait
        except TimeoutError:
            raise SandboxError(f"the sandbox did not start within {timeout_s:g} s") from None
        except OSError as error:
            raise SandboxError(f"the limits of the sandbox could not be enforced: {error}") from error

    @contextlib.contextmanager
    def root(self) -> Iterator[int]:
        fd = os.open(f"/proc/{self._local_host.process.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._local_host.process.check_alive()
            yield fd
        finally:
            os.close(fd)

    def rights(self) -> contextlib.AbstractContextManager[None]:
        return acting_as(NOBODY, NOBODY)

    async def read_tree(self, path: str, *, max_bytes: int = 64 << 20, max_files: int = 10_000) -> FileTree:
        place = str(PurePosixPath(bwrap.workdir_of(self._lower.spec), path))

        def read() -> FileTree:
            with self.root() as root, self.rights():
                return safe_walk.read_tree(root, place, max_bytes, max_files)

        async with self.attributed():
            await self._channel.ask({"op": "hello"})
            return await asyncio.to_thread(read)

    # ---------------------------------------------------------------- changes

    async def write(self, files: Mapping[str, File]) -> None:
        if self._given is not None:
            self._given |= files
        try:
            await super().write(files)
        except BaseException:
            self._given = None
            raise

    async def mark(self) -> None:
        known = None
        if self._given is not None and not self._programs.has_started and not self._channel.is_lost:
            known = self._lower.written(self._given)  # nothing has run yet, so the layer need not be read

        def look() -> dict[str, OverlayLayer]:
            marked = {}
            for area in self._lower.areas:
                with self._upper(area) as upper:
                    marked[area.name] = read_marked_layer(upper)
            return marked

        async with self.attributed():
            self._marked = await asyncio.to_thread(look) if known is None else known

    async def changes(self, path: str | None = None, *, max_bytes: int = 16 << 20) -> Changed:
        area, below = self._lower.area_of(path or ".")
        async with self.attributed():
            await self._channel.ask({"op": "hello"})
            found = await asyncio.to_thread(self._compare_small, area, below, max_bytes)
            if found is not None:
                return found
            then = self._marked.get(area.name, OverlayLayer())
            with self._layers(area) as (upper, base, snapshots):
                fds = [fd for fd in (upper, base, *snapshots) if fd is not None]
                asked = (then, upper, base, snapshots, below, max_bytes)
                try:
                    return await apart(compare_layers, *asked, fds=fds, limits=LIMITS)
                except WorkTooLarge as raised:
                    raise SandboxFileError(f"the changes are too much to compare: {raised}") from raised

    def _compare_small(self, area: bwrap.Area, path: str, max_bytes: int) -> Changed | None:
        with self.root() as root, self.rights(), safe_walk.sandbox_file_errors(path):
            os.close(open_inside(root, os.fsencode(str(PurePosixPath(area.place, path))), OPEN_FOLDER))
        then = self._marked.get(area.name, OverlayLayer())
        with self._layers(area) as (upper, base, snapshots):
            return compare_small(then, upper, base_fd=base, snapshot_fds=snapshots, path=path, max_bytes=max_bytes)

    @contextlib.contextmanager
    def _layers(self, area: bwrap.Area) -> Iterator[tuple[int, int | None, list[int]]]:
        """Descriptors of the writable layer, the base (if there is one), and the snapshots between them."""
        with contextlib.ExitStack() as stack:
            upper = stack.enter_context(self._upper(area))
            base = None
            if area.lowers and not area.starts_empty:
                base = stack.enter_context(folder(area.lowers[0], self._local_host.below))
            snapshots = []
            for snapshot in self._lower.snapshots:
                snapshots.append(os.open(area.name, FOLDER, dir_fd=snapshot.fd))
                stack.callback(os.close, snapshots[-1])
            yield upper, base, snapshots

    @contextlib.contextmanager
    def _upper(self, area: bwrap.Area) -> Iterator[int]:
        fd = os.open(area.name, FOLDER, dir_fd=self._local_host.layer.fd)
        try:
            yield fd
        finally:
            os.close(fd)

    # ---------------------------------------------------------------- snapshots and endpoints

    async def snapshot(self) -> LocalSnapshot:
        async with self.attributed():
            return await self._save()

    async def _save(self) -> LocalSnapshot:
        """Copy what was written into a new layer, which then never changes."""
        lower, host = self._lower, self._local_host
        names = [area.name for area in lower.areas]
        layer = await host.keeper.make(lower.spec.limits.disk_mb * bwrap.MB, dict.fromkeys(names, 0o755))
        try:
            await host.keeper.copy(host.layer, layer, names)
        except BaseException:
            await host.keeper.drop(layer)
            raise
        return LocalSnapshot(self._owner, host.shared, lower.on_top_of(layer), host.tree)

    async def serve(self, name: str, on_connect: OnConnect) -> str:
        async with self.attributed():
            await self._channel.ask({"op": "hello"})
            self._endpoints.check(name)
            listening = await self._local_host.keeper.listen(self._local_host.layer, f"ends/{name}")
            await self._endpoints.add(name, listening, on_connect)
        return f"{bwrap.ENDPOINTS}/{name}"

    async def _close(self) -> None:
        try:
            await self._endpoints.aclose()
            await super()._close()
        finally:
            self._owner.forget(self)


class LocalSnapshot:
    """A snapshot of a local sandbox: one more layer."""

    def __init__(self, owner: LocalOwner, shared: SharedLayers, lower: LowerFolders, tree: KeptLayer | None) -> None:
        self._owner = owner
        self._shared = shared
        self._lower = lower
        self._tree = tree
        self._below = layers_below(lower, tree)
        for layer in self._below:
            shared.keeper.hold(layer)
        self._closed = False

    @property
    def id(self) -> str:
        return f"local-{os.getpid()}-layer-{self._lower.snapshots[-1].name}"

    async def open(self) -> LocalSandbox:
        if self._closed:
            raise SandboxError("the snapshot is closed")
        with boundary(SandboxError, "the host could not start a sandbox"):
            return await self._owner.open_on(self._lower, self._tree, self._shared.keeper)

    async def aclose(self) -> None:
        """Its layer is dropped with the last sandbox that uses it."""
        if not self._closed:
            self._closed = True
            for layer in self._below:
                await self._shared.release(layer)


def layers_below(lower: LowerFolders, tree: KeptLayer | None) -> list[KeptLayer]:
    """The layers that must exist as long as a sandbox or a snapshot uses these lower folders."""
    return [*lower.snapshots, *([] if tree is None else [tree])]
