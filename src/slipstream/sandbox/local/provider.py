"""The `local` provider: sandboxes on this machine, made with bubblewrap.

Input: a SandboxSpec. Output: a Sandbox whose process 1 is our supervisor (`sandbox/supervisor/program.py`).
Invariants: nothing of a sandbox is on the host's disk; when `aclose` returns, or `open` raises or is cancelled, none of
its processes is left.

What a sandbox writes goes to a layer that the keeper holds (`keeper.py`); the host view, the base, a tree and snapshots
are shared layers below it. A snapshot is one more layer, with what was written until then; forks use it as a lower
layer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator

from slipstream.errors import SandboxError, SlipstreamError, boundary
from slipstream.sandbox.base import Capability
from slipstream.sandbox.blame import Probe
from slipstream.sandbox.limits import check_limits
from slipstream.sandbox.local import bwrap
from slipstream.sandbox.local.bwrap_probe import find_tools
from slipstream.sandbox.local.keeper_client import ANSWER_TIMEOUT_S, KeeperClient, KeptLayer
from slipstream.sandbox.local.lower_folders import LowerFolders, check_folder
from slipstream.sandbox.local.resources import LocalHost
from slipstream.sandbox.local.sandbox import LocalSandbox, layers_below
from slipstream.sandbox.local.shared_layers import SharedLayers, place_of
from slipstream.sandbox.local.start_request import launch
from slipstream.sandbox.metering.cores import num_cores
from slipstream.sandbox.metering.meter import UNLEASED, Meters
from slipstream.types import SandboxSpec

STARTS_PER_CORE = 2
"""The limit of concurrent starts: a start keeps a core busy, so more of them only slow each other down."""

_numbers = itertools.count(1)


class LocalProvider:
    """Sandboxes with bubblewrap on this machine.

    With `use_system_python` the keeper runs on the system's Python if possible, otherwise on the current one. `program`
    and `interpreter` are found if not given. `lease` marks every process. `sharers` is how many processes of
    a run start sandboxes on this machine.
    """

    capabilities = frozenset(Capability)

    def __init__(
        self,
        *,
        lease: str = "",
        start_timeout_s: float = 30.0,
        use_system_python: bool = True,
        program: bwrap.Program | None = None,
        interpreter: bwrap.Interpreter | None = None,
        meters: Meters | None = None,
        sharers: int = 1,
        open_files: int | None = None,
    ) -> None:
        """`open_files`: the soft limit of programs inside; None for that of this process."""
        self._starting = asyncio.Semaphore(max_concurrent_starts(num_cores(), sharers))
        self._lease = lease or f"{UNLEASED}{os.getpid()}-{next(_numbers)}"
        self._start_timeout_s = start_timeout_s
        self._open_files = open_files
        self._use_system_python = use_system_python
        self._given = None if program is None or interpreter is None else (program, interpreter)
        self._meters = meters
        self._open_ones: set[LocalSandbox] = set()
        self._shared: SharedLayers | None = None
        self._lost: list[SharedLayers] = []
        self._probe = Probe(lambda spec: self.open(spec))

    def _tools(self) -> tuple[bwrap.Program, bwrap.Interpreter]:
        return self._given or find_tools(_provider_with, self._use_system_python)

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
            sandbox = await (self._open_on_tree(spec) if spec.tree else self.open_on(_lower_folders_of(spec)))
        if spec.files or spec.base != "host" or spec.activation.script:
            async with _closed_on_error(sandbox):
                await sandbox.write(spec.files)
                await sandbox.mark()
        return sandbox

    async def aclose(self) -> None:
        """Closes everything, even if one part fails; raises that error afterwards."""
        shared = [*self._lost, *filter(None, [self._shared])]
        async with contextlib.AsyncExitStack() as closing:  # last in, first closed
            if self._meters is not None:
                closing.push_async_callback(self._meters.aclose)
            for made in shared:
                closing.push_async_callback(made.aclose)
            for sandbox in self._open_ones:
                closing.push_async_callback(sandbox.aclose)
            closing.push_async_callback(self._probe.aclose)
            self._shared, self._lost, self._meters = None, [], None

    # ---------------------------------------------------------------- starting one

    def _shared_layers(self, needed: KeeperClient | None = None) -> SharedLayers:
        """The current shared layers; starts a keeper if there is none. Raises SandboxError if `needed`, the keeper that
        holds the layers to start from, is lost."""
        if needed is not None and (self._shared is None or self._shared.keeper is not needed or needed.is_lost):
            raise SandboxError("the sandbox keeper has ended, and with it the layers to start from")
        if self._shared is None or self._shared.keeper.is_lost:
            program, interpreter = self._tools()
            if self._shared is not None:
                self._lost.append(self._shared)
            timeout_s = max(ANSWER_TIMEOUT_S, self._start_timeout_s)
            keeper = KeeperClient(program, interpreter, self._lease, timeout_s=timeout_s)
            self._shared = SharedLayers(keeper)
        return self._shared

    async def _open_on_tree(self, spec: SandboxSpec) -> LocalSandbox:
        shared = self._shared_layers()
        tree = await shared.hold_tree(spec.tree)
        if tree is None:
            return await self.open_on(_lower_folders_of(spec, spec.tree))
        try:
            return await self.open_on(_lower_folders_of(spec, place_of(tree)), tree, shared.keeper)
        finally:
            await shared.release(tree)

    async def open_on(
        self, lower: LowerFolders, tree: KeptLayer | None = None, keeper: KeeperClient | None = None
    ) -> LocalSandbox:
        """Start a sandbox, if necessary on the layers of this keeper. A cancelled start is completed and closed
        first."""
        async with self._starting:
            starting = asyncio.ensure_future(self._start(self._shared_layers(keeper), lower, tree))
            try:
                sandbox = await asyncio.shield(starting)
            except asyncio.CancelledError:
                with contextlib.suppress(SlipstreamError):
                    await (await starting).aclose()
                raise
            async with _closed_on_error(sandbox):
                await sandbox.wait_until_ready(self._start_timeout_s)
                await sandbox.enter(lower.spec, timeout_s=self._start_timeout_s)
            return sandbox

    async def _start(self, shared: SharedLayers, lower: LowerFolders, tree: KeptLayer | None) -> LocalSandbox:
        """Start a sandbox; its supervisor has not replied yet."""
        keeper, spec = shared.keeper, lower.spec
        async with contextlib.AsyncExitStack() as undo:
            view = await shared.hold_view(bwrap.view_of(spec))
            undo.push_async_callback(shared.release, view)
            below = layers_below(lower, tree)
            for layer_below in below:
                keeper.hold(layer_below)
                undo.push_async_callback(shared.release, layer_below)
            if self._meters is None:
                self._meters = Meters(self._lease)
            meter = self._meters.open(spec.limits)
            undo.push_async_callback(meter.aclose)
            process, layer, channel = await launch(keeper, lower, view, meter, open_files=self._open_files)
            undo.pop_all()
        host = LocalHost(process, shared, layer, meter, below=(view, *below), tree=tree, spec=spec, probe=self._probe)
        sandbox = LocalSandbox(self, lower, host, channel)
        self._open_ones.add(sandbox)
        return sandbox

    def forget(self, sandbox: LocalSandbox) -> None:
        self._open_ones.discard(sandbox)


def _lower_folders_of(spec: SandboxSpec, tree: str | None = None) -> LowerFolders:
    """`tree` is the path where bwrap finds the tree."""
    return LowerFolders(spec=spec, areas=bwrap.areas_of(spec, tree))


def _provider_with(program: bwrap.Program, interpreter: bwrap.Interpreter) -> LocalProvider:
    return LocalProvider(program=program, interpreter=interpreter)


@contextlib.asynccontextmanager
async def _closed_on_error(sandbox: LocalSandbox) -> AsyncIterator[None]:
    try:
        yield
    except SlipstreamError as error:
        stderr = sandbox.stderr()
        await sandbox.aclose()
        raise type(error)(f"{error}\n{stderr}" if stderr else str(error)) from error
    except BaseException:
        await sandbox.aclose()
        raise


def max_concurrent_starts(cores: float, sharers: int) -> int:
    """How many sandboxes each of the sharing processes may start at once."""
    return max(STARTS_PER_CORE, int(STARTS_PER_CORE * cores / sharers))
