"""Local sandboxes on a host that fails: all is let go, and nobody gets what is another's."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from local_stage import children, provided

from slipstream.errors import SandboxError
from slipstream.sandbox import LocalProvider
from slipstream.sandbox.metering.meter import Meter
from slipstream.types import File, SandboxSpec

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir() if path.exists()}


class Failing:
    """A meter that closes, and then complains."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    async def aclose(self) -> None:
        await self._meter.aclose()
        raise OSError("the meter failed")


def test_whatever_fails_while_it_is_closed_a_provider_lets_go_of_the_rest() -> None:
    async def opened() -> LocalProvider:
        provider = LocalProvider()
        for _ in range(2):
            sandbox = await provider.open(SandboxSpec())
            sandbox._local_host.meter = Failing(sandbox._local_host.meter)  # type: ignore[assignment]
        return provider

    async def main() -> None:
        before, processes = descriptors(), set(children(os.getpid()))
        provider = await opened()
        with pytest.raises(OSError, match="the meter failed"):
            await provider.aclose()
        assert descriptors() <= before
        assert set(children(os.getpid())) <= processes
        await provider.aclose()

    asyncio.run(main())


def test_a_snapshot_does_not_outlive_its_keeper_and_opens_nothing_of_the_next_one() -> None:
    async def main() -> None:
        async with provided() as provider:
            sandbox = await provider.open(SandboxSpec(files={"whose": File(data=b"one's")}))
            snapshot = await sandbox.snapshot()
            (keeper,) = children(sandbox._local_host.keeper.pid)
            os.kill(keeper, signal.SIGKILL)
            while not sandbox._local_host.keeper.is_lost:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.01)
            with pytest.raises(SandboxError, match="keeper"):
                await snapshot.open()
            other = await provider.open(SandboxSpec(files={"whose": File(data=b"another's")}))
            await other.snapshot()
            with pytest.raises(SandboxError, match="keeper"):
                await snapshot.open()
            await snapshot.aclose()

    asyncio.run(main())
