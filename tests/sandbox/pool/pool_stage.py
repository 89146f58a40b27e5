"""A provider whose every start can be told how to go, and that knows how many there were at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from slipstream.errors import SandboxError
from slipstream.sandbox.base import Capability, Sandbox
from slipstream.sandbox.fake import FakeSandbox, few_programs
from slipstream.types import SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How one start goes."""

    seconds: float = 1.0
    fails: Exception | None = None
    stubborn_s: float = 0.0
    """How long it goes on after it was cancelled; then its sandbox comes all the same."""
    close_s: float = 0.0
    dies: bool = False
    """It comes up, and is dead."""
    health_s: float = 0.0
    """What looking after its health takes."""


class Rigged(FakeSandbox):
    """Counts who holds it, and takes its time to close."""

    def __init__(self, spec: SandboxSpec, name: str, start: Start, on_closed: Callable[[], None]) -> None:
        super().__init__(spec, few_programs, name)
        self._close_s = start.close_s
        self._health_s = start.health_s
        self._on_closed = on_closed
        if start.dies:
            self.die()

    async def healthy(self) -> bool:
        await asyncio.sleep(self._health_s)
        return await super().healthy()

    async def aclose(self) -> None:
        if not self.closed:
            await asyncio.sleep(self._close_s)
            if not self.closed:
                self._on_closed()
        await super().aclose()


class RiggedProvider:
    """Sandboxes in memory. `plan` says how the start with a number goes, from 0 on."""

    def __init__(self, plan: Callable[[int], Start] = lambda _: Start()) -> None:
        self.sandboxes: list[Rigged] = []
        self.specs: list[SandboxSpec] = []
        self.num_now = 0
        """Starting, open and closing."""
        self.num_most = 0
        self.closed = False
        self._plan = plan

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset()

    def check(self) -> None:
        """Works everywhere."""

    def check_spec(self, spec: SandboxSpec) -> None:
        """Takes any."""

    async def open(self, spec: SandboxSpec) -> Sandbox:
        number = len(self.specs)
        start = self._plan(number)
        self.specs.append(spec)
        self.num_now += 1
        self.num_most = max(self.num_most, self.num_now)
        try:
            await self._take_time(start)
            if start.fails is not None:
                raise start.fails
        except BaseException:
            self.num_now -= 1
            raise
        sandbox = Rigged(spec, f"rigged-{number}", start, self._one_less)
        self.sandboxes.append(sandbox)
        return sandbox

    async def _take_time(self, start: Start) -> None:
        try:
            await asyncio.sleep(start.seconds)
        except asyncio.CancelledError:
            if not start.stubborn_s:
                raise
            end_s = asyncio.get_running_loop().time() + start.stubborn_s
            while (left_s := end_s - asyncio.get_running_loop().time()) > 0:
                try:
                    await asyncio.sleep(left_s)
                except asyncio.CancelledError:
                    continue

    def _one_less(self) -> None:
        self.num_now -= 1

    @property
    def num_open(self) -> int:
        return sum(not sandbox.closed for sandbox in self.sandboxes)

    async def aclose(self) -> None:
        self.closed = True


FAILS = Start(fails=SandboxError("it was told to fail"))
WEDGED = Start(seconds=1e6)
