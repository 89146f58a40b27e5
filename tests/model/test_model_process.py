"""A model in a process of its own: what comes back from there, and what is left when one of the two processes ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import ConfigError, LearnerError, ModelError
from slipstream.link import linked_pids
from slipstream.model.direct import DirectClient
from slipstream.model.process import Hosted, Tell, open_model_process
from slipstream.types import EngineLoad, EngineWork, Sampled, SampleParams, StopReason

HERE = str(Path(__file__).resolve())
OPENER = f"{HERE}:host"
LIMIT_S = 120.0


class Counting:
    """A Completer that says in which process it is, and what it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.cancelled = 0
        self._work = [EngineWork(num_steps=1, num_rows=2, num_held=3, num_prompt=4, seconds=0.5, cpu_s=0.25)]

    async def complete(self, prompt_ids: Any, params: SampleParams, **named: Any) -> Sampled:
        self.asked += 1
        if named["session"] == "hangs":
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled += 1
        return Sampled.at_version([os.getpid()], [0.0], version=self.asked, stop=StopReason.STOP)

    def load(self) -> EngineLoad:
        return EngineLoad(running=self.asked, waiting=self.cancelled, kv_tokens=99)

    def take_work(self) -> tuple[EngineWork, ...]:
        taken, self._work = self._work, []
        return tuple(taken)

    async def aclose(self) -> None: ...


@asynccontextmanager
async def host(work: str, tell: Tell) -> AsyncIterator[Hosted]:
    if work == "refuse":
        raise ConfigError("there is no such model")

    async def fail(why: str) -> None:
        tell("noted", why)
        raise LearnerError(why)

    yield Hosted(completer=Counting(), calls={"fail": fail})


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.005)


def test_several_ask_one_process_and_the_run_hears_of_its_load() -> None:
    async def main() -> None:
        async with open_model_process(OPENER, "") as process:
            assert process.load() == EngineLoad(running=0, waiting=0, kv_tokens=99)
            assert linked_pids() == (process.pid,)
            other = DirectClient()
            await other.connect(process.connect_another())
            for client in (process, other):
                assert list((await client.complete([1], SampleParams())).ids) == [process.pid] != [os.getpid()]
            await until(lambda: process.load() == EngineLoad(running=2, waiting=0, kv_tokens=99))
            (work,) = process.take_work()
            assert work.num_held == 3 and process.take_work() == ()
            hanging = asyncio.create_task(other.complete([1], SampleParams(), session="hangs"))
            await until(lambda: process.load() == EngineLoad(running=3, waiting=0, kv_tokens=99))
            await other.aclose()
            await until(lambda: process.load() == EngineLoad(running=3, waiting=1, kv_tokens=99))
            hanging.cancel()
            await asyncio.wait([hanging])
        assert linked_pids() == ()

    asyncio.run(main())


def test_calls_keep_their_errors_and_what_it_tells_arrives() -> None:
    noted: list[str] = []

    async def main() -> None:
        async with open_model_process(OPENER, "", tells={"noted": noted.append}) as process:
            with pytest.raises(LearnerError, match="too steep"):
                await process.call("fail", "too steep")
        with pytest.raises(ConfigError, match="there is no such model"):
            async with open_model_process(OPENER, "refuse"):
                pass

    asyncio.run(main())
    assert noted == ["too steep"]
    assert linked_pids() == ()


def test_when_it_is_killed_the_watch_says_so_and_calls_fail() -> None:
    async def main() -> None:
        async with open_model_process(OPENER, "") as process:
            watching = asyncio.create_task(process.watch())
            await process.complete([1], SampleParams())
            os.kill(process.pid, signal.SIGKILL)
            with pytest.raises(ModelError, match=r"the engine's process ended \(killed by signal 9"):
                await watching
            with pytest.raises(ModelError, match="signal 9"):
                await process.call("fail", "")
            with pytest.raises(ModelError, match="takes no more connections"):
                process.connect_another()

    asyncio.run(main())


RUN = f"""
import asyncio, sys
from slipstream.model.process import open_model_process

async def main():
    async with open_model_process({OPENER!r}, "") as process:
        print(process.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_it_ends_when_the_run_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        run.kill()
    end_s = time.monotonic() + LIMIT_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end_s:
        time.sleep(0.005)
    assert not Path(f"/proc/{pid}").exists()
