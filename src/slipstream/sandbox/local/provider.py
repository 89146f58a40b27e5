"""The `local` provider: sandboxes on this machine, made with bubblewrap.

Input: a SandboxSpec. Output: a Sandbox whose process 1 is our supervisor (`sandbox/supervisor/program.py`).
Invariants: nothing of a sandbox lies on the host's disk; when `aclose` returns, or `open` raises or is cancelled,
none of its processes is left; a sandbox that was lost says so at once, in every call.

What a sandbox writes goes to a layer that the keeper holds (`keeper.py`); the view of this machine, the base, a tree
and snapshots lie below it and are shared. A snapshot is one more layer, made of what was written until then; forks lie
on top of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import PurePosixPath

from slipstream.errors import SandboxError, SandboxFileError, SlipstreamError, boundary
from slipstream.offload import WorkTooLarge, apart
from slipstream.sandbox.base import Capability, Changed, OnConnect
from slipstream.sandbox.blame import Probe
from slipstream.sandbox.files import safe_walk
from slipstream.sandbox.files.overlay import OverlayLayer
from slipstream.sandbox.files.safe_open import FOLDER as BENEATH_FOLDER
from slipstream.sandbox.files.safe_open import acting_as, open_inside
from slipstream.sandbox.limits import check_limits
from slipstream.sandbox.local import bwrap
from slipstream.sandbox.local.bwrap_probe import tools
from slipstream.sandbox.local.changes import LIMITS, differences, small_differences, take
from slipstream.sandbox.local.keeper_client import ANSWER_TIMEOUT_S, KeeperClient, KeptLayer
from slipstream.sandbox.local.lower_folders import LowerFolders, check_folder
from slipstream.sandbox.local.process import NOBODY, visible_home
from slipstream.sandbox.local.resources import LocalHost
from slipstream.sandbox.local.shared_layers import SharedLayers, folder, place_of
from slipstream.sandbox.local.start_request import StartRequest, launch
from slipstream.sandbox.metering.cores import num_cores
from slipstream.sandbox.metering.meter import UNLEASED, Meters
from slipstream.sandbox.supervisor.channel import Channel
from slipstream.sandbox.supervisor.endpoints import Served
from slipstream.sandbox.supervisor.programs import Programs
from slipstream.sandbox.supervisor.sandbox import SupervisedSandbox
from slipstream.types import File, FileTree, SandboxSpec

STARTS_PER_CORE = 2
"""How many may be starting at once: a start is work for a core, and more of them get in each other's way."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_numbers = itertools.count(1)


class LocalSandbox(SupervisedSandbox):
    """One sandbox on this machine. Made by `LocalProvider.open`."""

    def __init__(self, provider: LocalProvider, ground: LowerFolders, host: LocalHost, channel: Channel) -> None:
        programs = Programs(channel, bwrap.environment(ground.spec), bwrap.workdir_of(ground.spec))
        super().__init__(
            f"local-{os.getpid()}-{next(_numbers)}",
            host=host,
            channel=channel,
            programs=programs,
            on_closed=provider._forget,
        )
        self._provider = provider
        self._ground = ground
        self._outside = host
        self._marked: dict[str, OverlayLayer] = {}
        self._given: dict[str, File] | None = {}
        """All that was written from outside; None if that cannot be told."""
        self._served = Served()

    @property
    def host_pid(self) -> int:
        """The sandbox's bwrap, as this machine sees it: for those who watch, or must kill, it from outside."""
        return self._outside.launched.pid

    def stderr(self) -> str:
        """The end of what bwrap and the supervisor complained about."""
        return self._outside.launched.stderr()

    async def _greet(self, timeout_s: float) -> None:
        """Wait until the supervisor answers, with the meter on it."""
        try:
            async with asyncio.timeout(timeout_s):
                first = await self._outside.launched.find_first()
                attaching = asyncio.to_thread(self._outside.meter.attach, first)
                await asyncio.gather(attaching, self._channel.ask({"op": "hello"}))
        except TimeoutError:
            raise SandboxError(f"the sandbox did not start within {timeout_s:g} s") from None
        except OSError as error:
            raise SandboxError(f"the sandbox could not be held to its limits: {error}") from error

    @contextlib.contextmanager
    def root(self) -> Iterator[int]:
        fd = os.open(f"/proc/{self._outside.launched.first_pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._outside.launched.check_first()
            yield fd
        finally:
            os.close(fd)

    def rights(self) -> contextlib.AbstractContextManager[None]:
        return acting_as(NOBODY, NOBODY)

    async def read_tree(self, path: str, *, max_bytes: int = 64 << 20, max_files: int = 10_000) -> FileTree:
        place = str(PurePosixPath(bwrap.workdir_of(self._ground.spec), path))

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
            known = self._ground.written(self._given)  # before anything has run there is no need to look

        def look() -> dict[str, OverlayLayer]:
            marked = {}
            for area in self._ground.areas:
                with self._upper(area) as upper:
                    marked[area.name] = take(upper)
            return marked

        async with self.attributed():
            self._marked = await asyncio.to_thread(look) if known is None else known

    async def changes(self, path: str | None = None, *, max_bytes: int = 16 << 20) -> Changed:
        area, below = self._ground.area_of(path or ".")
        async with self.attributed():
            await self._channel.ask({"op": "hello"})
            found = await asyncio.to_thread(self._small_differences, area, below, max_bytes)
            if found is not None:
                return found
            then = self._marked.get(area.name, OverlayLayer())
            with self._layers(area) as (upper, base, snapshots):
                fds = [fd for fd in (upper, base, *snapshots) if fd is not None]
                asked = (then, upper, base, snapshots, below, max_bytes)
                try:
                    return await apart(differences, *asked, fds=fds, limits=LIMITS)
                except WorkTooLarge as raised:
                    raise SandboxFileError(f"the changes are too much to compare: {raised}") from raised

    def _small_differences(self, area: bwrap.Area, path: str, max_bytes: int) -> Changed | None:
        with self.root() as root, self.rights(), safe_walk.told(path):
            os.close(open_inside(root, os.fsencode(str(PurePosixPath(area.place, path))), BENEATH_FOLDER))
        then = self._marked.get(area.name, OverlayLayer())
        with self._layers(area) as (upper, base, snapshots):
            return small_differences(then, upper, base_fd=base, snapshot_fds=snapshots, path=path, max_bytes=max_bytes)

    @contextlib.contextmanager
    def _layers(self, area: bwrap.Area) -> Iterator[tuple[int, int | None, list[int]]]:
        """Descriptors of the writable layer, of the base if there is one, and of the snapshots between them."""
        with contextlib.ExitStack() as stack:
            upper = stack.enter_context(self._upper(area))
            base = None
            if area.lowers and not area.starts_empty:
                base = stack.enter_context(folder(area.lowers[0], self._outside.below))
            snapshots = []
            for snapshot in self._ground.snapshots:
                snapshots.append(os.open(area.name, FOLDER, dir_fd=snapshot.fd))
                stack.callback(os.close, snapshots[-1])
            yield upper, base, snapshots

    @contextlib.contextmanager
    def _upper(self, area: bwrap.Area) -> Iterator[int]:
        fd = os.open(area.name, FOLDER, dir_fd=self._outside.layer.fd)
        try:
            yield fd
        finally:
            os.close(fd)

    # ---------------------------------------------------------------- snapshots and endpoints

    async def snapshot(self) -> LocalSnapshot:
        async with self.attributed():
            return await self._provider._snapshot(self._ground, self._outside)

    async def serve(self, name: str, on_connect: OnConnect) -> str:
        async with self.attributed():
            await self._channel.ask({"op": "hello"})
            self._served.check(name)
            listening = await self._outside.keeper.listen(self._outside.layer, f"ends/{name}")
            await self._served.add(name, listening, on_connect)
        return f"{bwrap.ENDPOINTS}/{name}"

    async def _close(self) -> None:
        try:
            await self._served.aclose()
            await super()._close()
        finally:
            self._provider._forget(self)


class LocalSnapshot:
    """The files of a local sandbox, as a layer."""

    def __init__(
        self, provider: LocalProvider, shared: SharedLayers, ground: LowerFolders, tree: KeptLayer | None
    ) -> None:
        self._provider = provider
        self._shared = shared
        self._ground = ground
        self._tree = tree
        self._below = _layers_of(ground, tree)
        for layer in self._below:
            shared.keeper.hold(layer)
        self._closed = False

    @property
    def id(self) -> str:
        return f"local-{os.getpid()}-layer-{self._ground.snapshots[-1].name}"

    async def open(self) -> LocalSandbox:
        if self._closed:
            raise SandboxError("the snapshot was closed")
        with boundary(SandboxError, "the host could not start a sandbox"):
            return await self._provider._open(self._ground, self._tree, self._shared.keeper)

    async def aclose(self) -> None:
        """Its layer goes with the last sandbox on top of it."""
        if not self._closed:
            self._closed = True
            for layer in self._below:
                await self._shared.release(layer)


class LocalProvider:
    """Sandboxes with bubblewrap on this machine.

    `use_base_python` lets the supervisor run on the base's own Python where that can do it; without, on the one that
    runs now. `program` and `interpreter` are found if they are not given. `lease` is written on every process.
    `sharers` is how many processes of a run start sandboxes on this machine.
    """

    capabilities = frozenset(Capability)

    def __init__(
        self,
        *,
        lease: str = "",
        start_timeout_s: float = 30.0,
        use_base_python: bool = True,
        program: bwrap.Program | None = None,
        interpreter: bwrap.Interpreter | None = None,
        meters: Meters | None = None,
        sharers: int = 1,
        open_files: int | None = None,
    ) -> None:
        """`open_files`: the soft limit of programs inside; None is that of this process."""
        self._starting = asyncio.Semaphore(starts_at_once(num_cores(), sharers))
        self._lease = lease or f"{UNLEASED}{os.getpid()}-{next(_numbers)}"
        self._start_timeout_s = start_timeout_s
        self._open_files = open_files
        self._use_base_python = use_base_python
        self._given = None if program is None or interpreter is None else (program, interpreter)
        self._meters = meters
        self._open_ones: set[LocalSandbox] = set()
        self._shared: SharedLayers | None = None
        self._lost: list[SharedLayers] = []
        self._works: dict[str, bwrap.Interpreter] = {}
        self._probe = Probe(lambda spec: self.open(spec))

    def _tools(self) -> tuple[bwrap.Program, bwrap.Interpreter]:
        return self._given or tools(_provider_with, self._use_base_python)

    def check(self) -> None:
        self._tools()

    def check_spec(self, spec: SandboxSpec) -> None:
        bwrap.workdir_of(spec)
        if spec.base != "host":
            check_folder("base", spec.base)
        if spec.tree:
            check_folder("tree", spec.tree)
        check_limits(spec.limits)

    async def open(self, spec: SandboxSpec) -> LocalSandbox:
        self.check_spec(spec)
        with boundary(SandboxError, "the host could not start a sandbox"):
            sandbox = await (self._open_on_tree(spec) if spec.tree else self._open(_ground_of(spec)))
        if spec.files or spec.base != "host":
            async with _closed_on_error(sandbox):
                await sandbox.write(spec.files)
                await sandbox.mark()
        return sandbox

    async def aclose(self) -> None:
        """If something cannot be closed the rest is, and then that is raised."""
        shared = [*self._lost, *filter(None, [self._shared])]
        async with contextlib.AsyncExitStack() as closing:  # last come, first closed
            if self._meters is not None:
                closing.push_async_callback(self._meters.aclose)
            for made in shared:
                closing.push_async_callback(made.aclose)
            for sandbox in self._open_ones:
                closing.push_async_callback(sandbox.aclose)
            closing.push_async_callback(self._probe.aclose)
            self._shared, self._lost, self._meters = None, [], None

    # ---------------------------------------------------------------- starting one

    def _shared_now(self, needed: KeeperClient | None = None) -> SharedLayers:
        """What sandboxes are started on. Layers of a keeper can be found on it alone: raises SandboxError if they are
        of one that is `needed` and lost."""
        if needed is not None and (self._shared is None or self._shared.keeper is not needed or needed.is_lost):
            raise SandboxError("the keeper of sandboxes has ended, and the layers to start from with it")
        if self._shared is None or self._shared.keeper.is_lost:
            program, interpreter = self._tools()
            if self._shared is not None:
                self._lost.append(self._shared)
            timeout_s = max(ANSWER_TIMEOUT_S, self._start_timeout_s)
            keeper = KeeperClient(program, interpreter, self._lease, timeout_s=timeout_s, open_files=self._open_files)
            self._shared = SharedLayers(keeper)
        return self._shared

    async def _open_on_tree(self, spec: SandboxSpec) -> LocalSandbox:
        shared = self._shared_now()
        tree = await shared.hold_tree(spec.tree)
        if tree is None:
            return await self._open(_ground_of(spec, spec.tree))
        try:
            return await self._open(_ground_of(spec, place_of(tree)), tree, shared.keeper)
        finally:
            await shared.release(tree)

    async def _open(
        self, ground: LowerFolders, tree: KeptLayer | None = None, keeper: KeeperClient | None = None
    ) -> LocalSandbox:
        """Start a sandbox, if need be on the layers of that keeper. If that is cancelled, what was begun is brought to
        an end first."""
        async with self._starting:
            shared = self._shared_now(keeper)
            candidates = self._interpreters(ground.spec.base)
            for interpreter in candidates[:-1]:
                try:
                    return await self._open_with(shared, interpreter, ground, tree)
                except SandboxError:
                    continue
            sandbox = await self._open_with(shared, candidates[-1], ground, tree)
        self._works.setdefault(ground.spec.base, candidates[-1])
        return sandbox

    def _interpreters(self, base: str) -> list[bwrap.Interpreter]:
        """Those that may run the supervisor on a base: the one that did, or else the base's own, then ours."""
        if base == "host":
            return [self._tools()[1]]
        if base in self._works:
            return [self._works[base]]
        has_own = os.path.lexists(f"{base}{bwrap.base_interpreter().path}")
        return [bwrap.base_interpreter(), bwrap.own_interpreter()] if has_own else [bwrap.own_interpreter()]

    async def _open_with(
        self, shared: SharedLayers, interpreter: bwrap.Interpreter, ground: LowerFolders, tree: KeptLayer | None
    ) -> LocalSandbox:
        starting = asyncio.ensure_future(self._start(shared, interpreter, ground, tree))
        try:
            sandbox = await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(SlipstreamError):
                await (await starting).aclose()
            raise
        async with _closed_on_error(sandbox):
            await sandbox._greet(self._start_timeout_s)
        return sandbox

    async def _start(
        self, shared: SharedLayers, interpreter: bwrap.Interpreter, ground: LowerFolders, tree: KeptLayer | None
    ) -> LocalSandbox:
        """Have bwrap running; nothing has answered yet."""
        keeper, spec = shared.keeper, ground.spec
        # The Python of another base may be of another version.
        is_known = spec.base == "host" or interpreter.home is not None
        program = bwrap.supervisor_for(interpreter) if is_known else (bwrap.SUPERVISOR, bwrap.supervisor_source())
        wanted = bwrap.view_of(spec, home=visible_home(interpreter), supervisor=program)
        async with contextlib.AsyncExitStack() as undo:
            view = await shared.hold_view(wanted)
            undo.push_async_callback(shared.release, view)
            below = _layers_of(ground, tree)
            for layer_below in below:
                keeper.hold(layer_below)
                undo.push_async_callback(shared.release, layer_below)
            if self._meters is None:
                self._meters = Meters(self._lease)
            meter = self._meters.open(spec.limits, num_own=2)
            undo.push_async_callback(meter.aclose)
            launching = StartRequest(ground=ground, interpreter=interpreter, program=program, view=view)
            launched, layer, channel = await launch(keeper, launching, meter, self._lease)
            undo.pop_all()
        host = LocalHost(launched, shared, layer, meter, below=(view, *below), tree=tree, spec=spec, probe=self._probe)
        sandbox = LocalSandbox(self, ground, host, channel)
        self._open_ones.add(sandbox)
        return sandbox

    def _forget(self, sandbox: LocalSandbox) -> None:
        self._open_ones.discard(sandbox)

    # ---------------------------------------------------------------- what lies below

    async def _snapshot(self, ground: LowerFolders, host: LocalHost) -> LocalSnapshot:
        """Copy what was written into a layer of its own, which then never changes."""
        names = [area.name for area in ground.areas]
        layer = await host.keeper.make(ground.spec.limits.disk_mb * bwrap.MB, dict.fromkeys(names, 0o755))
        try:
            await host.keeper.copy(host.layer, layer, names)
        except BaseException:
            await host.keeper.drop(layer)
            raise
        return LocalSnapshot(self, host.shared, ground.on_top_of(layer), host.tree)


def _ground_of(spec: SandboxSpec, tree: str | None = None) -> LowerFolders:
    """`tree` is where bwrap finds it."""
    return LowerFolders(spec=spec, areas=bwrap.areas_of(spec, tree))


def _layers_of(ground: LowerFolders, tree: KeptLayer | None) -> list[KeptLayer]:
    """What has to be there for as long as something stands on this ground."""
    return [*ground.snapshots, *([] if tree is None else [tree])]


def _provider_with(program: bwrap.Program, interpreter: bwrap.Interpreter) -> LocalProvider:
    return LocalProvider(program=program, interpreter=interpreter)


@contextlib.asynccontextmanager
async def _closed_on_error(sandbox: LocalSandbox) -> AsyncIterator[None]:
    try:
        yield
    except SlipstreamError as error:
        said = sandbox.stderr()
        await sandbox.aclose()
        raise type(error)(f"{error}\n{said}" if said else str(error)) from error
    except BaseException:
        await sandbox.aclose()
        raise


def starts_at_once(cores: float, sharers: int) -> int:
    """How many sandboxes one of so many processes may be starting."""
    return max(STARTS_PER_CORE, int(STARTS_PER_CORE * cores / sharers))
