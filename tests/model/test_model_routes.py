"""Several servers of the same model: where sessions go, and what happens when a server is gone."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_stage import AT_ONCE, PROMPT, Recorded, completing, config, saying, scripted

from slipstream.errors import ConfigError, ModelError
from slipstream.model.base import SessionKeeper
from slipstream.model.http import NoServer, Retries
from slipstream.model.openai import LogprobsKind, OpenAIChat, OpenAICompleter, OpenAIConfig
from slipstream.model.routes import AVOIDED_S, MAX_SESSIONS, Routes
from slipstream.model.scripted import replies
from slipstream.model.server import Drop, ModelServer
from slipstream.types import EngineLoad, SampleParams

ONE, TWO, THREE = URLS = ("http://one/v1", "http://two/v1", "http://three/v1")


# ---------------------------------------------------------------- routes


@given(st.lists(st.sampled_from("abcdefghij"), max_size=60))
def test_a_session_stays_and_sessions_are_spread_evenly(asked: list[str]) -> None:
    routes = Routes(URLS)
    homes: dict[str, set[str]] = {}
    for now_s, session in enumerate(asked):
        homes.setdefault(session, set()).add(routes.home(session, now_s))
    assert all(len(found) == 1 for found in homes.values())
    counts = Counter(home for found in homes.values() for home in found)
    assert max(counts.values(), default=0) - min((counts[url] for url in URLS), default=0) <= 1


def test_a_session_moves_once_when_its_server_gave_no_answer() -> None:
    routes = Routes(URLS)
    assert [routes.home(name, 0.0) for name in "abc"] == [ONE, TWO, THREE]
    routes.avoid(ONE, 1.0)
    assert routes.home("a", 1.0) == TWO
    assert routes.home("d", 1.0) == THREE, "nothing begins at the one that gave no answer"
    assert routes.home("a", 1.0 + AVOIDED_S) == TWO, "its cache is there now"
    assert routes.home("e", 1.0 + AVOIDED_S) == ONE


def test_without_a_server_that_answers_a_session_stays_where_it_is() -> None:
    routes = Routes(URLS[:2])
    assert [routes.home(name, 0.0) for name in "ab"] == [ONE, TWO]
    for url in URLS[:2]:
        routes.avoid(url, 0.0)
    assert [routes.home(name, 1.0) for name in "ab"] == [ONE, TWO]


def test_a_session_that_is_over_makes_room() -> None:
    routes = Routes(URLS[:2])
    assert [routes.home(name, 0.0) for name in "abcd"] == [ONE, TWO, ONE, TWO]
    routes.forget("a")
    routes.forget("c")
    routes.forget("never seen")
    assert [routes.home(name, 0.0) for name in "ef"] == [ONE, ONE]


def test_requests_without_a_session_go_round_and_forgotten_sessions_are_bounded() -> None:
    routes = Routes(URLS[:2])
    assert Counter(routes.home("", 0.0) for _ in range(10)) == {ONE: 5, TWO: 5}
    for number in range(MAX_SESSIONS + 10):
        routes.home(str(number), 0.0)
    assert len(routes._homes) == sum(routes._num_at.values()) == MAX_SESSIONS


# ---------------------------------------------------------------- clients of several servers


class Two:
    """Two servers, and a client of both."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> tuple[OpenAICompleter, ModelServer, ModelServer]:
        servers = [
            await self._stack.enter_async_context(ModelServer(completer=scripted(replies(*"abcdefghij"))))
            for _ in range(2)
        ]
        settings = {"logprobs": LogprobsKind.NONE, "retries": AT_ONCE, "api_key_env": "", **self._options}
        urls = ", ".join(server.base_url for server in servers)
        client = OpenAICompleter(OpenAIConfig(base_url=urls, model="", **settings))
        self._stack.push_async_callback(client.aclose)
        await client.probe()
        return client, servers[0], servers[1]

    async def __aexit__(self, *raised: object) -> None:
        await self._stack.aclose()


def sessions_at(server: ModelServer) -> list[str]:
    return [request.session for request in server.log if request.path.endswith("/completions")]


def test_the_requests_of_a_session_go_to_one_of_two_servers() -> None:
    async def main() -> None:
        async with Two() as (client, one, two):
            keeper: SessionKeeper = client
            for session in ("a", "b", "c", "a", "b", "c", "a"):
                await client.complete(PROMPT, SampleParams(), session=session)
            assert sessions_at(one) == ["a", "c", "a", "c", "a"]
            assert sessions_at(two) == ["b", "b"]
            keeper.end_session("a")
            keeper.end_session("c")
            for session in ("d", "e", "f"):
                await client.complete(PROMPT, SampleParams(), session=session)
            assert sessions_at(one)[5:] == ["d", "e"] and sessions_at(two)[2:] == ["f"]

    asyncio.run(main())


def test_the_sessions_of_a_server_that_dies_go_on_at_the_other() -> None:
    async def main() -> None:
        async with Two() as (client, one, two):
            for session in ("a", "b"):
                await client.complete(PROMPT, SampleParams(), session=session)
            await one.aclose()
            for session in ("a", "b", "a"):
                await client.complete(PROMPT, SampleParams(), session=session)
            assert sessions_at(two) == ["b", "a", "b", "a"]

    asyncio.run(main())


def test_the_load_of_several_servers_is_their_sum_as_far_as_they_answer() -> None:
    async def main() -> None:
        one, two = (ModelServer(completer=Recorded(lambda: None)) for _ in range(2))
        async with one, two:
            client = OpenAICompleter(OpenAIConfig(base_url=f"{one.base_url},{two.base_url}", model="slipstream"))
            assert await client.refresh_load() == EngineLoad(running=6, waiting=8, kv_used=0.25, kv_tokens=2000)
            await two.aclose()
            alone = EngineLoad(running=3, waiting=4, kv_used=0.25, kv_tokens=1000)
            assert await client.refresh_load() == alone
            await one.aclose()
            assert await client.refresh_load() == alone, "a cache does not grow boundless because its server is away"
            await client.aclose()

    asyncio.run(main())


def test_a_probe_looks_at_every_server_and_takes_the_smallest_window() -> None:
    async def main() -> None:
        one, two = (ModelServer(completer=scripted(replies("a")), context_tokens=num) for num in (4096, 2048))
        async with one, two:
            client = OpenAICompleter(OpenAIConfig(base_url=f"{one.base_url},{two.base_url}", model=""))
            await client.probe()
            assert client.context_tokens == 2048
            await two.aclose()
            with pytest.raises(ConfigError, match=f"{two.base_url}/models.*start the server"):
                await client.probe()
            await client.aclose()

    asyncio.run(main())


def test_a_server_that_is_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="names a server twice"):
        OpenAIConfig(base_url="http://x/v1, http://x/v1/", model="m")
    with pytest.raises(ConfigError, match="'' is not a URL"):
        OpenAIConfig(base_url="http://x/v1,", model="m")


# ---------------------------------------------------------------- salts


def test_each_version_of_the_policy_has_a_salt_of_its_own() -> None:
    async def main() -> None:
        async with completing(scripted(replies("a", "b", "c"))) as (client, server):
            for client.version in (0, 7):
                await client.complete(PROMPT, SampleParams())
            await client.complete(PROMPT, SampleParams(), cache_salt="mine")
            salts = [request.body["cache_salt"] for request in server.log if isinstance(request.body, dict)]
            assert salts == ["policy-0", "policy-7", "mine"]

    asyncio.run(main())


# ---------------------------------------------------------------- nobody there


@pytest.mark.parametrize("kind", [OpenAICompleter, OpenAIChat])
def test_whoever_watches_is_told_that_the_server_is_gone_and_the_request_does_not_come_back(
    kind: type[OpenAICompleter] | type[OpenAIChat],
) -> None:
    async def main() -> None:
        async with ModelServer() as server:
            pass
        client = kind(config(server, retries=Retries(max_retries=2, backoff_s=0.0)))
        watching = asyncio.create_task(client.watch())
        asking = [asyncio.create_task(asked(client)) for _ in range(3)]
        with pytest.raises(ModelError, match=r"server is gone \(.*gave up after 3 tries\): restart it, then resume"):
            await watching
        done, pending = await asyncio.wait(asking, timeout=0.05)
        assert not done
        for task in pending:
            task.cancel()
        await asyncio.wait(pending)
        await client.aclose()

    asyncio.run(main())


async def asked(client: OpenAICompleter | OpenAIChat) -> None:
    if isinstance(client, OpenAIChat):
        await client.chat([], [], SampleParams())
    else:
        await client.complete(PROMPT, SampleParams())


def test_without_a_watcher_a_request_that_found_no_server_fails() -> None:
    async def main() -> None:
        async with ModelServer() as server:
            pass
        client = OpenAICompleter(config(server))
        with pytest.raises(NoServer, match="gave up after 6 tries"):
            await asked(client)
        await client.aclose()

    asyncio.run(main())


def test_a_server_that_drops_requests_but_answers_is_not_gone() -> None:
    async def main() -> None:
        drops = lambda number: Drop() if number < 6 else None  # noqa: E731
        async with asyncio.timeout(300), completing(scripted(replies("a")), faults=drops) as (client, _):
            watching = asyncio.create_task(client.watch())
            await asyncio.sleep(0)
            with pytest.raises(NoServer):
                await asked(client)
            assert not watching.done()
            watching.cancel()

    asyncio.run(main())


# ---------------------------------------------------------------- what training needs


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (
            {"error": {"message": "Requested sample logprobs of 1, max allowed: 0"}},
            400,
            "allowed: 0; have the server give .*none",
        ),
        (
            {"choices": [{"finish_reason": "length", "token_ids": [1]}]},
            200,
            "lacks logprobs.*serve them, or set logprobs",
        ),
        ({"choices": [{"finish_reason": "length"}]}, 200, "does not return token ids.*vLLM 0.11"),
        ({"error": {"message": "no such token"}}, 400, "answered 400: no such token$"),
    ],
)
def test_a_server_that_does_not_give_what_training_needs_is_refused(answer: Any, status: int, said: str) -> None:
    async def main() -> None:
        async with completing(scripted(replies("a")), faults=saying(answer, status)) as (client, _):
            with pytest.raises(ConfigError, match=said):
                await client.check_sampling()

    asyncio.run(main())


def test_each_of_several_servers_has_to_give_it() -> None:
    async def main() -> None:
        async with Two() as (client, one, two):
            await client.check_sampling()
            assert len(sessions_at(one)) == len(sessions_at(two)) == 1

    asyncio.run(main())
