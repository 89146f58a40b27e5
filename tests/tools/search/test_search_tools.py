"""search and get_document over a local index, an HTTP retriever and a web API."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import slipstream as ss
from slipstream.errors import ConfigError, ToolFailure
from slipstream.tools import CallResult, Toolset
from slipstream.tools.search.base import Hit
from slipstream.tools.search.local import IndexRetriever
from slipstream.tools.search.remote import HttpRetriever, JsonClient, WebSearch
from slipstream.types import ToolCall

from .index_stage import DOCUMENTS, made_index

SEARCH, READ = ss.search_documents, ss.get_document


def called(resources: Mapping[str, ss.Json], *calls: tuple[str, dict[str, Any]]) -> list[CallResult]:
    """The results of calls, one turn each, with the tools closed at the end."""

    async def main() -> list[CallResult]:
        toolset = Toolset([SEARCH, READ])
        try:
            async with toolset.open(resources=resources) as tools:
                return [
                    (await tools.run([ToolCall(id="1", name=name, arguments=arguments)], ()))[0]
                    for name, arguments in calls
                ]
        finally:
            await toolset.aclose()

    return asyncio.run(main())


def test_an_agent_searches_and_reads(tmp_path: Path) -> None:
    resources: dict[str, ss.Json] = {"search": {"index": str(made_index(tmp_path)), "limit": 2}}
    hits, document, unknown, empty, far = called(
        resources,
        ("search", {"query": "capital of France"}),
        ("get_document", {"docid": "d-paris"}),
        ("get_document", {"docid": "d-none"}),
        ("search", {"query": " "}),
        ("get_document", {"docid": "d-paris", "start": 1_000}),
    )
    rows = json.loads(hits.text)
    assert [set(row) for row in rows] == [{"docid", "score", "snippet"}] * 2
    assert rows[0]["docid"] == "d-paris"
    assert document.text == DOCUMENTS["d-paris"]
    assert unknown.is_error and 'there is no document "d-none": use a docid that a search has shown' in unknown.text
    assert empty.is_error and "the query is empty" in empty.text
    assert far.is_error and "start=1000 is not in the document, which has 31 characters" in far.text


def test_results_may_be_plain_lines_without_snippets(tmp_path: Path) -> None:
    source: ss.Json = {"index": str(made_index(tmp_path)), "limit": 1, "snippet_chars": 0, "form": "plain"}
    (found,) = called({"search": source}, ("search", {"query": "sun"}))
    assert found.text == "d-sun"


def test_a_long_document_is_read_in_parts(tmp_path: Path) -> None:
    text = "word " * 4_000
    index = made_index(tmp_path, {"d-long": text, **DOCUMENTS})
    resources: dict[str, ss.Json] = {"search": {"index": str(index)}}
    first, rest = called(
        resources, ("get_document", {"docid": "d-long"}), ("get_document", {"docid": "d-long", "start": 15_000})
    )
    assert first.text == text[:15_000] + "\n\n[5000 more characters: start=15000 shows them]"
    assert rest.text == text[15_000:]


class HeldIndex:
    """An index whose answers wait until they are let go."""

    def __init__(self) -> None:
        self.started, self.released = threading.Event(), threading.Event()
        self.batches: list[list[str]] = []

    def search(self, queries: Sequence[str], *, limit: int, snippet_chars: int) -> list[list[Hit]]:
        self.batches.append(list(queries))
        self.started.set()
        assert self.released.wait(30)
        if "bad" in queries:
            raise OSError("the disk is gone")
        return [[Hit(docid=query, score=1.0, snippet="")] * 3 for query in queries]

    def text(self, docid: str) -> str | None:
        return docid


def test_queries_that_arrive_meanwhile_are_answered_together() -> None:
    async def main() -> None:
        index = HeldIndex()
        retriever = IndexRetriever(index, snippet_chars=10)
        first = asyncio.create_task(retriever.search("q0", limit=1))
        await asyncio.to_thread(index.started.wait)
        others = [asyncio.create_task(retriever.search(f"q{number}", limit=2)) for number in range(1, 20)]
        await asyncio.sleep(0)
        others[4].cancel()
        await asyncio.sleep(0)
        index.released.set()
        assert [hit.docid for hit in await first] == ["q0"]
        done = await asyncio.gather(*others, return_exceptions=True)
        assert [len(each) for each in done if isinstance(each, list)] == [2] * 18
        assert index.batches == [["q0"], [f"q{number}" for number in range(1, 20) if number != 5]]
        with pytest.raises(OSError, match="the disk is gone"):
            await retriever.search("bad", limit=1)
        assert (await retriever.search("q20", limit=1))[0].docid == "q20"
        await retriever.aclose()

    asyncio.run(main())


Handler = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def serving(handler: Handler) -> Any:
    app = web.Application()
    app.router.add_post("/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def no_pause(seconds: float) -> None:
    return None


def test_a_retriever_behind_http() -> None:
    seen: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        body = await request.json()
        seen.append((request.path, body))
        if len(seen) == 1:
            return web.Response(status=503)
        if request.path == "/search":
            return web.json_response([{"docid": 7, "score": 0.5, "text": "a  long\ntext"}])
        return web.json_response({"text": "whole"}) if body["docid"] == "7" else web.json_response(None, status=404)

    async def main() -> None:
        async with serving(handler) as url:
            retriever = HttpRetriever(f"{url}/", snippet_chars=6, sleep=no_pause)
            assert await retriever.search("q", limit=3) == [Hit(docid="7", score=0.5, snippet="a long")]
            assert await retriever.document("7") == "whole"
            assert await retriever.document("8") is None
            await retriever.aclose()
        assert seen[:2] == [("/search", {"query": "q", "k": 3})] * 2, "a 503 is tried again"
        dead = HttpRetriever(url, snippet_chars=6, sleep=no_pause)
        with pytest.raises(ToolFailure, match=r"the retriever http://127.*/search failed 4 times: Client"):
            await dead.search("q", limit=3)
        await dead.aclose()

    asyncio.run(main())


def test_a_retriever_that_answers_nonsense_is_a_failure_and_no_answer() -> None:
    answers = iter([web.Response(text="<html>"), web.json_response({"hits": ["x"]}), web.json_response({"x": 1})])

    async def handler(request: web.Request) -> web.Response:
        return next(answers)

    async def main() -> None:
        async with serving(handler) as url:
            retriever = HttpRetriever(url, snippet_chars=6)
            for _ in range(2):
                with pytest.raises(ToolFailure):
                    await retriever.search("q", limit=3)
            with pytest.raises(ToolFailure, match="answered 200 without a text"):
                await retriever.document("7")
            await retriever.aclose()

    asyncio.run(main())


def test_a_web_search_sends_its_key_and_a_dead_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handler(request: web.Request) -> web.Response:
        if request.headers.get("X-API-KEY") != "good":
            return web.json_response({"message": "Unauthorized."}, status=403)
        body = await request.json()
        rows = [{"title": "T", "link": f"https://x.org/{n}", "snippet": "s"} for n in range(body["num"] + 2)]
        return web.json_response({"organic": rows})

    async def main() -> None:
        async with serving(handler) as url:
            monkeypatch.setenv("TEST_KEY", "good")
            found = WebSearch(url=url, key_env="TEST_KEY", snippet_chars=9)
            hits = await found.search("q", limit=2)
            assert [(hit.docid, hit.score) for hit in hits] == [("https://x.org/0", 1.0), ("https://x.org/1", 0.5)]
            await found.aclose()
            monkeypatch.setenv("TEST_KEY", "dead-key-value")
            dead = WebSearch(url=url, key_env="TEST_KEY", snippet_chars=9)
            with pytest.raises(ConfigError, match=r"refused the key in TEST_KEY \(403\): set it to one") as raised:
                await dead.search("q", limit=2)
            assert "dead-key-value" not in str(raised.value)
            await dead.aclose()
            monkeypatch.delenv("TEST_KEY")
            with pytest.raises(ConfigError, match="needs a key, and TEST_KEY holds none"):
                await JsonClient(url, key_env="TEST_KEY", key_header="X-API-KEY").post("/search", {})

    asyncio.run(main())


@pytest.mark.parametrize(
    ("resources", "problem"),
    [
        ({}, "the task names nothing to search: give it resources="),
        ({"search": {}}, 'give one of "index", "url" and "web"'),
        ({"search": {"index": "a", "url": "b"}}, 'give one of "index", "url" and "web"'),
        ({"search": {"indx": "a"}}, 'key "indx": Extra inputs'),
        ({"search": {"index": "nowhere"}}, "nowhere is no index: make one with slipstream index make"),
    ],
)
def test_a_task_that_names_no_source_is_refused(resources: dict[str, ss.Json], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        called(resources, ("search", {"query": "x"}))
