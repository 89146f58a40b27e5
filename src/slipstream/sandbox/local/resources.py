"""Host-side resources of one local sandbox: its process, its meter and its layers.

Invariants: `end` releases all of them, whatever raises; the host is at fault if the keeper is gone, or if someone
outside killed the sandbox's process 1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from slipstream.errors import SandboxError
from slipstream.sandbox.blame import Probe
from slipstream.sandbox.local.keeper_client import KeptLayer
from slipstream.sandbox.local.process import SandboxProcess
from slipstream.sandbox.local.shared_layers import SharedLayers
from slipstream.sandbox.metering.meter import Meter
from slipstream.types import SandboxSpec

END_GRACE_S = 2.0
"""How long process 1 may take to end after its socket has closed."""


class LocalHost:
    """The HostSide of a local sandbox."""

    def __init__(
        self,
        process: SandboxProcess,
        shared: SharedLayers,
        layer: KeptLayer,
        meter: Meter,
        below: Sequence[KeptLayer] = (),
        tree: KeptLayer | None = None,
        *,
        spec: SandboxSpec,
        probe: Probe,
    ) -> None:
        self.process = process
        self.shared = shared
        self.keeper = shared.keeper
        self.layer = layer
        self.meter = meter
        self.below = below
        self.tree = tree
        """The copy of the tree, which is one of `below`."""
        self._spec = spec
        self._probe = probe

    async def end(self) -> None:
        async with contextlib.AsyncExitStack() as then:  # everything is released, whatever raises
            for layer in self.below:
                then.push_async_callback(self.shared.release, layer)
            then.push_async_callback(self.keeper.drop, self.layer)
            then.push_async_callback(self.meter.aclose)
            await self.process.end()

    async def why_broken(self) -> str | None:
        try:
            ended_by = self.meter.ended_by()
        except OSError:
            return None  # a host that cannot even tell is itself in trouble
        return None if ended_by is None else f"it reached its {ended_by} limit"

    async def host_fault(self) -> str | None:
        if not await self.process.has_ended(END_GRACE_S):
            return None
        try:
            killed = await self.keeper.was_killed(self.process.pid)
        except SandboxError as raised:
            return str(raised)
        return "the sandbox was killed from outside" if killed else None

    async def probe(self) -> str | None:
        return await self._probe.fault(self._spec)
