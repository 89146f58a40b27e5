"""The `local` provider: sandboxes on this machine, made with bubblewrap.

Enters: a SandboxSpec. Leaves: a Sandbox whose process 1 is our supervisor (`inside.py`).
Always holds: nothing of a sandbox lies on the host's disk; when `aclose` returns, or `open` raises or is cancelled,
none of its processes is left; a sandbox that was lost says so at once, in every call.

What a sandbox writes goes to a layer that the keeper holds (`keeper.py`); the view of this machine, the base, a tree
and snapshots lie below it and are shared. A snapshot is one more layer, made of what was written until then; forks lie
on top of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from slipstream.errors import ConfigError, SandboxError, SandboxFileError, SlipstreamError, boundary
from slipstream.sandbox import bwrap, seccomp, walk, watchdog
from slipstream.sandbox.base import Capability, Changed, OnConnect, Tree
from slipstream.sandbox.beneath import FOLDER as BENEATH_FOLDER
from slipstream.sandbox.beneath import acting_as, open_inside
from slipstream.sandbox.bwrap import can_be_reached
from slipstream.sandbox.channel import Channel, memory_file
from slipstream.sandbox.differences import differences, take
from slipstream.sandbox.keeping import OWN_LAYER, Keeper, Layer, Room
from slipstream.sandbox.launch import NOBODY, Launched, Passed, visible_home
from slipstream.sandbox.layer import Layer as Marked
from slipstream.sandbox.limits import check_limits
from slipstream.sandbox.meter import UNLEASED, Limit, Meter, Meters
from slipstream.sandbox.programs import Programs
from slipstream.sandbox.served import Served
from slipstream.sandbox.shared import Shared
from slipstream.sandbox.supervised import SupervisedSandbox
from slipstream.types import SandboxSpec

MB = 1 << 20
STARTS_PER_CORE = 2
"""How many may be starting at once: a start is work for a core, and more of them get in each other's way."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a sandbox stands on: its spec, and where it can be written to."""

    spec: SandboxSpec
    areas: tuple[bwrap.Area, ...]
    """The first lower of one that has any is the base or the tree; snapshots lie above it."""
    snapshots: tuple[Layer, ...] = ()
    """The lowest first. Each has a folder for every area."""

    def area_of(self, path: str) -> tuple[bwrap.Area, str]:
        """The area that a folder lies in, and its path from there."""
        place = PurePosixPath(bwrap.workdir_of(self.spec), path)
        for area in reversed(self.areas):
            if place.is_relative_to(area.place):
                return area, str(place.relative_to(area.place))
        raise SandboxFileError(f"{place}: nothing can be written there, so there are no changes to tell")

    def on_top_of(self, snapshot: Layer) -> Ground:
        """That of a fork."""
        return replace(
            self,
            areas=tuple(
                replace(
                    area,
                    lowers=(*area.lowers, f"{snapshot.path}/{area.name}"),
                    starts_empty=area.starts_empty or not area.lowers,
                )
                for area in self.areas
            ),
            snapshots=(*self.snapshots, snapshot),
        )


class LocalHost:
    """What holds up one sandbox, outside."""

    def __init__(
        self, launched: Launched, shared: Shared, layer: Layer, meter: Meter, below: Sequence[Layer] = ()
    ) -> None:
        self.launched = launched
        self.shared = shared
        self.keeper = shared.keeper
        self.layer = layer
        self.meter = meter
        self.below = below

    async def end(self) -> None:
        await self.launched.end()
        await self.meter.aclose()
        await self.keeper.drop(self.layer)
        for layer in self.below:
            await self.keeper.release(layer)

    async def why_broken(self) -> str | None:
        exceeded = self.meter.exceeded()
        if exceeded is Limit.PROCESSES and self.meter.kind != watchdog.KIND:
            return None  # the kernel refuses a fork, and nobody dies of it
        return None if exceeded is None else f"it ran into its limit on {exceeded}"


class LocalSandbox(SupervisedSandbox):
    """One sandbox on this machine. Made by `LocalProvider.open`."""

    def __init__(self, provider: LocalProvider, ground: Ground, host: LocalHost, channel: Channel) -> None:
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
        self._marked: dict[str, Marked] = {}
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
            yield fd
        finally:
            os.close(fd)

    def rights(self) -> contextlib.AbstractContextManager[None]:
        return acting_as(NOBODY, NOBODY)

    async def read_tree(self, path: str, *, max_bytes: int = 64 << 20, max_files: int = 10_000) -> Tree:
        place = str(PurePosixPath(bwrap.workdir_of(self._ground.spec), path))

        def read() -> Tree:
            with self.root() as root, self.rights():
                return walk.read_tree(root, place, max_bytes, max_files)

        async with self.attributed():
            await self._channel.ask({"op": "hello"})
            return await asyncio.to_thread(read)

    # ---------------------------------------------------------------- changes

    async def mark(self) -> None:
        def look() -> dict[str, Marked]:
            marked = {}
            for area in self._ground.areas:
                with self._upper(area) as upper:
                    marked[area.name] = take(upper)
            return marked

        async with self.attributed():
            self._marked = await asyncio.to_thread(look)

    async def changes(self, path: str | None = None, *, max_bytes: int = 16 << 20) -> Changed:
        area, below = self._ground.area_of(path or ".")
        async with self.attributed():
            await self._channel.ask({"op": "hello"})
            return await asyncio.to_thread(self._differences, area, below, max_bytes)

    def _differences(self, area: bwrap.Area, path: str, max_bytes: int) -> Changed:
        with self.root() as root, self.rights(), walk.told(path):
            os.close(open_inside(root, os.fsencode(str(PurePosixPath(area.place, path))), BENEATH_FOLDER))
        with contextlib.ExitStack() as stack:
            upper = stack.enter_context(self._upper(area))
            base = None
            if area.lowers and not area.starts_empty:
                base = stack.enter_context(self._outside.shared.folder(area.lowers[0]))
            snapshots = []
            for snapshot in self._ground.snapshots:
                snapshots.append(os.open(area.name, FOLDER, dir_fd=snapshot.fd))
                stack.callback(os.close, snapshots[-1])
            then = self._marked.get(area.name, Marked())
            return differences(then, take(upper), base_fd=base, snapshot_fds=snapshots, path=path, max_bytes=max_bytes)

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
        await self._served.aclose()
        await super()._close()


class LocalSnapshot:
    """The files of a local sandbox, as a layer."""

    def __init__(self, provider: LocalProvider, keeper: Keeper, ground: Ground) -> None:
        self._provider = provider
        self._keeper = keeper
        self._ground = ground
        self._closed = False

    @property
    def id(self) -> str:
        return f"local-{os.getpid()}-layer-{self._ground.snapshots[-1].name}"

    async def open(self) -> LocalSandbox:
        if self._closed:
            raise SandboxError("the snapshot was closed")
        return await self._provider._open(self._ground)

    async def aclose(self) -> None:
        """Its layer goes with the last sandbox on top of it."""
        if not self._closed:
            self._closed = True
            for layer in self._ground.snapshots:
                await self._keeper.release(layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launching:
    """What bwrap is to be started with."""

    ground: Ground
    interpreter: bwrap.Interpreter
    program: tuple[str, bytes]
    """The supervisor: its path inside, and its bytes."""
    view: Layer


@functools.cache
def tools(use_base_python: bool) -> tuple[bwrap.Program, bwrap.Interpreter]:
    """What this machine runs sandboxes with, tried out once. Raises ConfigError, each time, if it cannot."""
    program = bwrap.find_bwrap()
    interpreters = [bwrap.own_interpreter()]
    if use_base_python:
        interpreters.insert(0, bwrap.base_interpreter())
    complaints = []
    for interpreter in interpreters:
        complaint = try_out(program, interpreter)
        if not complaint:
            return program, interpreter
        complaints.append(complaint)
    raise ConfigError(bwrap.explain_refusal("\n".join(complaints)))


def try_out(program: bwrap.Program, interpreter: bwrap.Interpreter) -> str:
    """Open and close a sandbox. Empty if that works, else what was complained about."""
    said = [""]

    async def try_it() -> None:
        provider = LocalProvider(program=program, interpreter=interpreter)
        try:
            await provider.open(SandboxSpec())
        except SlipstreamError as error:
            said[0] = str(error)
        finally:
            await provider.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(try_it()))  # there may be an event loop in this one
    thread.start()
    thread.join()
    return said[0]


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
    ) -> None:
        self._starting = asyncio.Semaphore(max(STARTS_PER_CORE, STARTS_PER_CORE * _num_cores() // sharers))
        self._lease = lease or f"{UNLEASED}{os.getpid()}-{next(_numbers)}"
        self._start_timeout_s = start_timeout_s
        self._use_base_python = use_base_python
        self._given = None if program is None or interpreter is None else (program, interpreter)
        self._meters = meters
        self._open_ones: set[LocalSandbox] = set()
        self._shared: Shared | None = None
        self._lost: list[Shared] = []
        self._works: dict[str, bwrap.Interpreter] = {}

    def _tools(self) -> tuple[bwrap.Program, bwrap.Interpreter]:
        return self._given or tools(self._use_base_python)

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
            tree = await self._shared_now().tree(spec.tree) if spec.tree else None
            sandbox = await self._open(Ground(spec=spec, areas=bwrap.areas_of(spec, tree)))
        if spec.files or spec.base != "host":
            async with _closed_on_error(sandbox):
                await sandbox.write(spec.files)
                await sandbox.mark()
        return sandbox

    async def aclose(self) -> None:
        for sandbox in list(self._open_ones):
            await sandbox.aclose()
        if self._shared is not None:
            self._lost.append(self._shared)
        for shared in self._lost:
            await shared.aclose()
        self._shared, self._lost = None, []
        if self._meters is not None:
            await self._meters.aclose()
            self._meters = None

    # ---------------------------------------------------------------- starting one

    def _shared_now(self) -> Shared:
        if self._shared is None or self._shared.keeper.is_lost:
            program, interpreter = self._tools()
            if self._shared is not None:
                self._lost.append(self._shared)
            self._shared = Shared(Keeper(program, interpreter, self._lease))
        return self._shared

    async def _open(self, ground: Ground) -> LocalSandbox:
        """Start a sandbox. If that is cancelled, what was begun is brought to an end first."""
        async with self._starting:
            shared = self._shared_now()
            candidates = self._interpreters(ground.spec.base)
            for interpreter in candidates[:-1]:
                try:
                    return await self._open_with(shared, interpreter, ground)
                except SandboxError:
                    continue
            sandbox = await self._open_with(shared, candidates[-1], ground)
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

    async def _open_with(self, shared: Shared, interpreter: bwrap.Interpreter, ground: Ground) -> LocalSandbox:
        starting = asyncio.ensure_future(self._start(shared, interpreter, ground))
        try:
            sandbox = await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(SlipstreamError):
                await (await starting).aclose()
            raise
        async with _closed_on_error(sandbox):
            await sandbox._greet(self._start_timeout_s)
        return sandbox

    async def _start(self, shared: Shared, interpreter: bwrap.Interpreter, ground: Ground) -> LocalSandbox:
        """Have bwrap running; nothing has answered yet."""
        keeper, spec = shared.keeper, ground.spec
        # The Python of another base may be of another version.
        is_known = spec.base == "host" or interpreter.home is not None
        program = bwrap.supervisor_for(interpreter) if is_known else (bwrap.SUPERVISOR, bwrap.supervisor_source())
        wanted = bwrap.view_of(spec, home=visible_home(interpreter), supervisor=program)
        async with contextlib.AsyncExitStack() as undo:
            view = await shared.hold_view(wanted)
            undo.push_async_callback(keeper.release, view)
            for snapshot in ground.snapshots:
                keeper.hold(snapshot)
                undo.push_async_callback(keeper.release, snapshot)
            if self._meters is None:
                self._meters = Meters(self._lease)
            meter = self._meters.open(spec.limits, num_own=2)
            undo.push_async_callback(meter.aclose)
            launching = Launching(ground=ground, interpreter=interpreter, program=program, view=view)
            launched, layer, channel = await self._launch(keeper, launching, meter)
            undo.pop_all()
        host = LocalHost(launched, shared, layer, meter, below=(view, *ground.snapshots))
        sandbox = LocalSandbox(self, ground, host, channel)
        self._open_ones.add(sandbox)
        return sandbox

    async def _launch(self, keeper: Keeper, what: Launching, meter: Meter) -> tuple[Launched, Layer, Channel]:
        spec, interpreter, program = what.ground.spec, what.interpreter, what.program
        passed = Passed(renumbered=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as lent:
            undo.callback(ours.close)
            lent.callback(theirs.close)
            stderr = memory_file()
            undo.callback(os.close, stderr)
            info, info_write = os.pipe2(os.O_CLOEXEC)
            undo.callback(os.close, info)
            lent.callback(os.close, info_write)

            def lend(fd: int) -> int:
                lent.callback(os.close, fd)
                return passed.add(fd)

            data = {path: lend(memory_file(content)) for path, content in bwrap.files_in_base(spec, program).items()}
            args = ["--info-fd", str(passed.add(info_write))]
            passed.add(info)  # so that it can write even if we are dead by then
            args += bwrap.arguments(
                spec,
                home=visible_home(interpreter),
                data=data,
                view=what.view.path,
                layer=OWN_LAYER,
                areas=what.ground.areas,
                seccomp_fd=None if (rules := seccomp.program()) is None else lend(memory_file(rules)),
            )
            args += ["--", interpreter.path, "-I", "-S", "-B", program[0], str(passed.add(theirs.fileno()))]
            args += [bwrap.workdir_of(spec), f"slipstream-lease={self._lease}"]
            limits = bwrap.rlimits(spec, memory_is_metered=meter.kind != watchdog.KIND)
            args += [f"{name}={value}" for name, value in limits.items()]
            doors = meter.open_doors()
            for door in doors:
                lent.callback(os.close, door)
            room = Room(
                num_bytes=spec.limits.disk_mb * MB,
                folders=bwrap.folders_of(what.ground.areas, bwrap.workdir_of(spec)),
                terminals="pts",
            )
            spawned = await keeper.spawn(args, passed, stderr=stderr, doors=doors, room=room)
            undo.pop_all()
        channel = Channel(ours)
        launched = Launched(
            pid=spawned.pid,
            pidfd=spawned.pidfd,
            info_fd=info,
            stderr_fd=stderr,
            on_end=lambda: channel.lose("the sandbox is gone: bwrap has ended"),
        )
        return launched, spawned.layer, channel

    def _forget(self, sandbox: LocalSandbox) -> None:
        self._open_ones.discard(sandbox)

    # ---------------------------------------------------------------- what lies below

    async def _snapshot(self, ground: Ground, host: LocalHost) -> LocalSnapshot:
        """Copy what was written into a layer of its own, which then never changes."""
        names = [area.name for area in ground.areas]
        layer = await host.keeper.make(ground.spec.limits.disk_mb * MB, dict.fromkeys(names, 0o755))
        try:
            await host.keeper.copy(host.layer, layer, names)
        except BaseException:
            await host.keeper.drop(layer)
            raise
        forked = ground.on_top_of(layer)
        for below in forked.snapshots:
            host.keeper.hold(below)
        return LocalSnapshot(self, host.keeper, forked)


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


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_folder(what: str, folder: str) -> None:
    """Raise ConfigError if a base or a tree is none that a sandbox could stand on."""
    path = Path(folder)
    if not path.is_absolute() or not path.is_dir():
        raise ConfigError(
            f"the {what} {folder!r} of a local sandbox is no folder: use 'host', the absolute path of one, or "
            "sandbox.provider=oci if it is an image"
            if what == "base"
            else f"the {what} {folder!r} of a local sandbox is no folder: give the absolute path of one"
        )
    if what == "base" and not (path / "usr/bin").is_dir() and not (path / "bin").is_dir():
        raise ConfigError(f"the base {folder!r} has no programs: it must be the root of a system, with usr/bin in it")
    if what == "base" and os.geteuid() == 0 and not can_be_reached(path):
        raise ConfigError(f"the base {folder!r} cannot be read by others: `chmod a+rx` it and the folders above it")
