"""The adaptive policy goes by what a server says of itself, asked again and again."""

import asyncio
from collections.abc import Callable

import pytest

from slipstream import wiring
from slipstream.model.openai import OpenAICompleter, OpenAIConfig
from slipstream.model.server import ModelServer
from slipstream.settings import DispatchConfig, ModelConfig
from slipstream.types import EngineLoad


class Loaded:
    """A completer that is asked for nothing but its load."""

    def __init__(self) -> None:
        self.now = EngineLoad(running=3, waiting=0, kv_used=0.25, kv_tokens=1_000)

    def load(self) -> EngineLoad:
        return self.now


@pytest.mark.parametrize("policy", ["adaptive", "pipeline"])
def test_a_servers_load_reaches_the_gate_and_follows_the_server(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        engine = Loaded()
        async with asyncio.timeout(300), ModelServer(completer=engine) as server:  # type: ignore[arg-type]  # see above

            async def completer(config: ModelConfig, renderer: object) -> OpenAICompleter:
                return OpenAICompleter(OpenAIConfig(base_url=server.base_url, model=server.model))

            monkeypatch.setattr(wiring, "REFRESH_S", 0.01)
            monkeypatch.setattr(wiring, "make_renderer", lambda config: None)
            monkeypatch.setattr(wiring, "_completer", completer)
            pacing = wiring.Pacing(DispatchConfig(policy=policy))  # type: ignore[arg-type]  # one of the names
            async with wiring._open_model(ModelConfig(kind="tokens"), pacing):
                if policy == "pipeline":
                    await asyncio.sleep(0.1)
                    assert pacing.load() is None  # nobody needs it, so nobody asks
                    return
                await _until(lambda: pacing.load() == engine.now)
                engine.now = EngineLoad(running=7, waiting=2, kv_used=0.75, kv_tokens=1_000)
                await _until(lambda: pacing.load() == engine.now)
                assert pacing.gate.room() is not None  # it knows of a cache
            assert not [task for task in asyncio.all_tasks() if "load" in task.get_name()]

    asyncio.run(main())


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  what is waited for knows nothing of us
        await asyncio.sleep(0.01)
