"""The processes of a run, as they are: those that it started over a link, and not what those started."""

from __future__ import annotations

import asyncio
import sys

import pytest

from slipstream.link import Link, linked_pids, start_linked, wait_or_kill
from slipstream.telemetry.cpus import CpuTimes


@pytest.mark.skipif(sys.platform != "linux", reason="a process has a clock that others can read on Linux alone")
def test_the_time_of_a_linked_process_is_its_own_without_the_children_it_waited_for() -> None:
    async def check() -> None:
        times = CpuTimes(linked_pids)
        assert (linked_pids(), times()) == ((), 0.0)
        link = Link(calls={}, tells={})
        process = await start_linked("linked_child", link)
        try:
            assert linked_pids() == (process.pid,)
            least_s: float = await link.call("work", 0.1, 0.3)
            counted_s = times()
            most_s: float = await link.call("had_s")
            assert least_s <= counted_s <= most_s
        finally:
            link.close()
            await wait_or_kill(process, 20)
        assert linked_pids() == ()
        assert times() >= counted_s

    asyncio.run(check())
