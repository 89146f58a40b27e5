"""Calls of a model in another process: what arrives, what is cancelled, and what is left when an end goes away."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable

import pytest
from model_stage import PROMPT, Recorded, connected

from slipstream.errors import ModelError
from slipstream.model.direct import DirectClient
from slipstream.simulate.clock import run_virtual
from slipstream.types import Sampled, SampleParams, StopReason

PARAMS = SampleParams(max_tokens=7, temperature=0.3, top_p=0.9, seed=2**62 + 1, stop_ids=(5, 6))
SAMPLED = Sampled(
    ids=array("i", [3, 70_000]),
    logprobs=array("f", [-0.1, float("-inf")]),
    versions=array("i", [4, 5]),
    stop=StopReason.STOP,
    num_cached=2,
)


class Sessions(Recorded):
    """Remembers which sessions ended, too."""

    def __init__(self, act: Callable[[], Awaitable[Sampled]]) -> None:
        super().__init__(act)
        self.ended: list[str] = []

    def end_session(self, session: str) -> None:
        self.ended.append(session)


async def answer() -> Sampled:
    return SAMPLED


async def never() -> Sampled:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


async def until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110 - at the other end of the socket
        await asyncio.sleep(0)


async def turns_of_the_loop(num: int = 20) -> None:
    for _ in range(num):
        await asyncio.sleep(0)


def test_all_of_a_request_and_of_its_answer_arrives() -> None:
    async def main() -> None:
        model = Recorded(answer)
        async with connected(model, DirectClient()) as client:
            got = await client.complete(PROMPT, PARAMS, session="s\udc80", priority=3, cache_salt="salt", timeout_s=9.0)
        assert got == SAMPLED and got.num_cached == 2
        assert model.calls == [
            {"prompt_ids": PROMPT, "params": PARAMS, "session": "s\udc80", "priority": 3, "cache_salt": "salt"}
        ]

    asyncio.run(main())


def test_requests_of_one_tick_are_answered_each_by_itself() -> None:
    async def main() -> None:
        waiting: list[asyncio.Future[Sampled]] = []

        async def later() -> Sampled:
            waiting.append(asyncio.get_running_loop().create_future())
            return await waiting[-1]

        async with connected(Recorded(later), DirectClient()) as client:
            calls = [asyncio.create_task(client.complete(PROMPT, PARAMS)) for _ in range(3)]
            await until(lambda: len(waiting) == 3)
            for version, future in reversed(list(enumerate(waiting))):
                future.set_result(Sampled.at_version([1], [0.0], version=version, stop=StopReason.STOP))
            assert [list((await call).versions) for call in calls] == [[0], [1], [2]]

    asyncio.run(main())


def test_cancelling_a_call_cancels_its_request_and_no_other() -> None:
    async def main() -> None:
        model = Recorded(never)
        async with connected(model, DirectClient()) as client:
            first, second = (asyncio.create_task(client.complete(PROMPT, PARAMS)) for _ in range(2))
            await until(lambda: len(model.calls) == 2)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            await until(lambda: model.num_cancelled)
            await turns_of_the_loop()
            assert model.num_cancelled == 1 and not second.done()
            second.cancel()
            await asyncio.wait([second])

    asyncio.run(main())


def test_a_caller_that_is_gone_has_its_requests_cancelled_and_its_sessions_ended() -> None:
    async def main() -> None:
        model = Sessions(answer)
        async with connected(model, DirectClient()) as client:
            for session in ("over", "kept"):
                await client.complete(PROMPT, PARAMS, session=session)
            client.end_session("over")
            model.act = never
            hanging = asyncio.create_task(client.complete(PROMPT, PARAMS, session="kept"))
            await until(lambda: len(model.calls) == 3)
        assert model.ended == ["over", "kept"]
        await turns_of_the_loop()
        assert model.num_cancelled == 1
        hanging.cancel()
        await asyncio.wait([hanging])

    asyncio.run(main())


def test_if_the_model_is_gone_its_calls_fail_after_whoever_watches_it_could_end_the_run() -> None:
    """On virtual time, so that the wait shows."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        client = DirectClient(grace_s=5.0)
        client._parcels.connection_lost(None)  # as asyncio says it
        start_s = loop.time()
        with pytest.raises(ModelError, match="the engine's process is gone"):
            await client.complete(PROMPT, PARAMS)
        assert loop.time() - start_s == 5.0

    run_virtual(main())
