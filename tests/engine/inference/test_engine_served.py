"""The engine behind Slipstream's own server: HTTP replies equal the engine's."""

from __future__ import annotations

import asyncio

import pytest
from engine_stage import WINDOW, engine, prompt, same

from slipstream.errors import ContextOverflow
from slipstream.model.http import Retries
from slipstream.model.openai import LogprobsKind, OpenAICompleter, OpenAIConfig
from slipstream.model.server import ModelServer
from slipstream.types import SampleParams


def test_a_client_gets_the_tokens_the_logprobs_and_the_overflow_of_the_engine() -> None:
    async def main() -> None:
        async with engine() as served, ModelServer(completer=served) as server:
            config = OpenAIConfig(
                base_url=server.base_url,
                model=server.model,
                logprobs=LogprobsKind.PROCESSED,
                retries=Retries(backoff_s=0.0),
                api_key_env="",
            )
            client = OpenAICompleter(config)
            try:
                params = SampleParams(max_tokens=9, temperature=0.7, seed=3)
                direct = await served.complete(prompt(20), params, session="a")
                over_http = await client.complete(prompt(20), params, session="b")
                assert same(direct, over_http)
                with pytest.raises(ContextOverflow):
                    await client.complete(prompt(WINDOW), params)
            finally:
                await client.aclose()

    asyncio.run(main())
