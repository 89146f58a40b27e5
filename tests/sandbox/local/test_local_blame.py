"""A local sandbox that is lost: by what ran inside, or by the host."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any, cast

import pytest
from local_stage import provided

from slipstream.errors import SandboxBroken, SandboxError
from slipstream.sandbox.local.resources import LocalHost
from slipstream.sandbox.metering.meter import Limit
from slipstream.sandbox.metering.watchdog import KIND as WATCHDOG
from slipstream.types import SandboxLimits, SandboxSpec

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


class Told:
    """A meter that says by what its sandbox ended, or cannot say it."""

    def __init__(self, ended_by: Limit | OSError | None) -> None:
        self._ended_by = ended_by

    def ended_by(self) -> Limit | None:
        if isinstance(self._ended_by, OSError):
            raise self._ended_by
        return self._ended_by


@pytest.mark.parametrize(
    ("ended_by", "why"),
    [(Limit.CPU, "it reached its cpu limit"), (None, None), (OSError(24, "Too many open files"), None)],
)
def test_what_ran_inside_is_blamed_only_for_the_limit_that_ended_it(
    ended_by: Limit | OSError | None, why: str | None
) -> None:
    shared = cast("Any", type("NoKeeper", (), {"keeper": None}))
    host = LocalHost(
        cast("Any", None),
        shared,
        cast("Any", None),
        cast("Any", Told(ended_by)),
        spec=SandboxSpec(),
        probe=cast("Any", None),
    )
    assert asyncio.run(host.why_broken()) == why


def test_a_program_killed_for_memory_long_ago_is_not_why_a_sandbox_is_lost() -> None:
    async def main() -> None:
        async with provided() as provider:
            sandbox = await provider.open(SandboxSpec(limits=SandboxLimits(memory_mb=64)))
            hog = await sandbox.exec(["python3", "-c", "held = bytearray(b'x') * (150 << 20)"], timeout_s=30)
            assert hog.exit_code != 0
            assert provider._meters is not None
            for _ in range(2):
                provider._meters._backend.look()
            os.kill(sandbox.host_pid, signal.SIGKILL)
            with pytest.raises(SandboxError):
                while True:
                    await sandbox.exec(["true"], timeout_s=5)

    asyncio.run(main())


def test_a_sandbox_whose_memory_is_full_of_files_is_lost_by_what_ran_inside() -> None:
    async def main() -> None:
        async with provided() as provider:
            sandbox = await provider.open(SandboxSpec(limits=SandboxLimits(memory_mb=64, disk_mb=512)))
            assert provider._meters is not None
            if provider._meters.kind == WATCHDOG:
                pytest.skip("no groups here")
            with pytest.raises(SandboxBroken, match="memory"):
                while True:
                    await sandbox.exec(["sh", "-c", "cat /dev/zero > /tmp/full"], timeout_s=30)

    asyncio.run(main())
