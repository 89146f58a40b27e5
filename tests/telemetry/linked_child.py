"""A process of a run that works, and has children work: it reports its own time."""

from __future__ import annotations

import asyncio
import sys
import time

from slipstream.link import Link, own_end

BURN = "import time\nwhile time.process_time() < {seconds}: pass"


async def work(own_s: float, child_s: float) -> float:
    """Seconds that this process had when it had worked so long, and a child that it waited for."""
    child = await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", BURN.format(seconds=child_s))
    await child.wait()
    until_s = time.process_time() + own_s
    while time.process_time() < until_s:
        pass
    return time.process_time()


async def had_s() -> float:
    return time.process_time()


async def serve() -> None:
    link = Link(calls={"work": work, "had_s": had_s}, tells={})
    await link.connect(own_end(sys.argv))
    await link.over(grace_s=1.0)


if __name__ == "__main__":
    asyncio.run(serve())
