"""The adaptive policy uses the load that a server reports, which is requested regularly."""

import asyncio
from collections.abc import Callable

import pytest

from slipstream.model.openai import OpenAICompleter, OpenAIConfig
from slipstream.model.server import ModelServer
from slipstream.settings import DispatchConfig
from slipstream.types import EngineLoad
from slipstream.wiring.models import refreshing
from slipstream.wiring.pacing import Pacing


class Loaded:
    """A completer that is only asked for its load."""

    def __init__(self) -> None:
        self.now = EngineLoad(running=3, waiting=0, kv_used=0.25, kv_tokens=1_000)

    def load(self) -> EngineLoad:
        return self.now


def test_a_servers_load_reaches_the_gate_and_follows_the_server() -> None:
    async def main() -> None:
        engine = Loaded()
        async with asyncio.timeout(300), ModelServer(completer=engine) as server:  # type: ignore[arg-type]  # see above
            client = OpenAICompleter(OpenAIConfig(base_url=server.base_url, model=server.model))
            pacing = Pacing(DispatchConfig(policy="adaptive"))
            pacing.set_engine(client)
            assert pacing.load() is None
            async with refreshing(client.refresh_load, every_s=0.01):
                await _until(lambda: pacing.load() == engine.now)
                engine.now = EngineLoad(running=7, waiting=2, kv_used=0.75, kv_tokens=1_000)
                await _until(lambda: pacing.load() == engine.now)
                assert pacing.gate.room() is not None  # it knows of a cache
            assert not load_requests()
            await client.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(("policy", "needs_load"), [("adaptive", True), ("pipeline", False), ("bounded", False)])
def test_a_servers_load_is_only_asked_for_where_the_policy_needs_it(policy: str, needs_load: bool) -> None:
    assert Pacing(DispatchConfig(policy=policy)).needs_load == needs_load  # type: ignore[arg-type]  # one of the names


def load_requests() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if "load" in task.get_name()]


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  what is waited for knows nothing of us
        await asyncio.sleep(0.01)
