"""What holds up one local sandbox, outside of it: its process, its meter, and the layers that it stands on.

Invariants: `end` lets go of all of it, whatever raises; the host is at fault where the keeper is gone, or where
somebody outside killed bwrap or the first process of the sandbox.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from slipstream.errors import SandboxError
from slipstream.sandbox.blame import Probe
from slipstream.sandbox.local.keeper_client import KeptLayer
from slipstream.sandbox.local.process import BwrapProcess
from slipstream.sandbox.local.shared_layers import SharedLayers
from slipstream.sandbox.metering.meter import Meter
from slipstream.types import SandboxSpec

END_GRACE_S = 2.0
"""How long bwrap may take to end after the supervisor has."""


class LocalHost:
    """What holds up one sandbox, outside."""

    def __init__(
        self,
        launched: BwrapProcess,
        shared: SharedLayers,
        layer: KeptLayer,
        meter: Meter,
        below: Sequence[KeptLayer] = (),
        tree: KeptLayer | None = None,
        *,
        spec: SandboxSpec,
        probe: Probe,
    ) -> None:
        self.launched = launched
        self.shared = shared
        self.keeper = shared.keeper
        self.layer = layer
        self.meter = meter
        self.below = below
        self.tree = tree
        """The copy of it, which is among those below."""
        self._spec = spec
        self._probe = probe

    async def end(self) -> None:
        async with contextlib.AsyncExitStack() as then:  # whatever raises, all of it is let go
            for layer in self.below:
                then.push_async_callback(self.shared.release, layer)
            then.push_async_callback(self.keeper.drop, self.layer)
            then.push_async_callback(self.meter.aclose)
            await self.launched.end()

    async def why_broken(self) -> str | None:
        try:
            ended_by = self.meter.ended_by()
        except OSError:
            return None  # a host that cannot say it has faults enough
        return None if ended_by is None else f"it ran into its limit on {ended_by}"

    async def host_fault(self) -> str | None:
        if not await self.launched.has_ended(END_GRACE_S):
            return None
        try:
            killed = await self.keeper.was_killed(self.launched.pid)
        except SandboxError as raised:
            return str(raised)
        return "the sandbox was killed from outside" if killed else None

    async def probe(self) -> str | None:
        return await self._probe.fault(self._spec)
