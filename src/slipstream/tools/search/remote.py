"""Retrievers behind HTTP: a server of a document collection, and web search APIs.

Input: a query. Output: hits. Invariants: a failure of the server is a ToolFailure that names it, after a few tries; a
refused key says which variable holds it; the key is read when the first request is sent, and is in no message.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from slipstream.bounded import TooLarge, whole
from slipstream.errors import ConfigError, ToolFailure
from slipstream.tools.search.base import Hit
from slipstream.types import Json

if TYPE_CHECKING:
    import aiohttp

MAX_ANSWER_BYTES = 16 << 20
NUM_TRIES, FIRST_PAUSE_S = 4, 0.5
TIMEOUT_S = 30.0
CONNECTIONS = 64
Sleep = Callable[[float], Awaitable[None]]
_DOCID, _TEXT = ("docid", "id", "_id"), ("snippet", "text", "contents", "content")


class JsonClient:
    """POSTs JSON to one server. The HTTP session belongs to the event loop of the first request."""

    def __init__(self, url: str, *, key_env: str = "", key_header: str = "", sleep: Sleep = asyncio.sleep) -> None:
        self.url = url.rstrip("/")
        self._key_env, self._key_header = key_env, key_header
        self._sleep = sleep
        self._session: aiohttp.ClientSession | None = None

    async def post(self, path: str, body: Mapping[str, Json]) -> tuple[int, Any]:
        """The status and the JSON of the answer, which is None if it is none. (Any: read by the caller.)"""
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS),
                headers=self._key(),
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            )
        problem = ""
        for number in range(NUM_TRIES):
            if number:
                await self._sleep(FIRST_PAUSE_S * 2 ** (number - 1))
            try:
                async with self._session.post(self.url + path, json=dict(body), allow_redirects=False) as response:
                    raw = await whole(response.content.iter_any(), MAX_ANSWER_BYTES, "the answer")
                    status = response.status
            except (aiohttp.ClientError, OSError, TimeoutError) as raised:
                problem = f"{type(raised).__name__}: {raised}"
                continue
            except TooLarge as raised:
                raise ToolFailure(f"{self.url}{path}: {raised}") from None
            if status == 429 or status >= 500:
                problem = f"it answered {status}"
                continue
            return status, _parsed(raw)
        raise ToolFailure(f"the retriever {self.url}{path} failed {NUM_TRIES} times: {problem}")

    def _key(self) -> dict[str, str]:
        if not self._key_env:
            return {}
        key = os.environ.get(self._key_env, "").strip()
        if not key or not (key.isascii() and key.isprintable()):
            raise ConfigError(
                f"{self.url} needs a key, and {self._key_env} holds none: set it to the key of your account"
            )
        return {self._key_header: key}

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class HttpRetriever:
    """A server with `POST /search {"query", "k"}` and `POST /get_document {"docid"}`."""

    def __init__(self, url: str, *, snippet_chars: int, sleep: Sleep = asyncio.sleep) -> None:
        self._client = JsonClient(url, sleep=sleep)
        self._snippet_chars = snippet_chars

    async def search(self, query: str, *, limit: int) -> list[Hit]:
        status, found = await self._client.post("/search", {"query": query, "k": limit})
        rows = found.get("results", found.get("hits")) if isinstance(found, dict) else found
        if status != 200 or not isinstance(rows, list):
            raise ToolFailure(f"the retriever {self._client.url} answered {status} without a list of results")
        return [self._hit(row) for row in rows[:limit]]

    async def document(self, docid: str) -> str | None:
        status, found = await self._client.post("/get_document", {"docid": docid})
        if status == 404 or found is None:
            return None
        text = _first(found, _TEXT) if isinstance(found, dict) else None
        if status != 200 or text is None:
            raise ToolFailure(f"the retriever {self._client.url} answered {status} without a text")
        return str(text)

    async def aclose(self) -> None:
        await self._client.aclose()

    def _hit(self, row: Any) -> Hit:
        docid = _first(row, _DOCID) if isinstance(row, dict) else None
        score = row.get("score", 0.0) if isinstance(row, dict) else None
        if docid is None or not isinstance(score, int | float):
            raise ToolFailure(f"the retriever {self._client.url} gave a result without a docid: {row!r:.100}")
        snippet = " ".join(str(_first(row, _TEXT) or "").split())[: self._snippet_chars]
        return Hit(docid=str(docid), score=float(score), snippet=snippet, title=str(row.get("title") or ""))


SERPER_URL, SERPER_KEY = "https://google.serper.dev", "SERPER_API_KEY"


class WebSearch:
    """A Serper-style web search: `POST /search {"q", "num"}` with the key in `X-API-KEY`."""

    def __init__(self, *, url: str = SERPER_URL, key_env: str = SERPER_KEY, snippet_chars: int) -> None:
        self._client = JsonClient(url, key_env=key_env, key_header="X-API-KEY")
        self._key_env, self._snippet_chars = key_env, snippet_chars

    async def search(self, query: str, *, limit: int) -> list[Hit]:
        status, found = await self._client.post("/search", {"q": query, "num": limit})
        if status in (401, 402, 403):
            raise ConfigError(
                f"{self._client.url} refused the key in {self._key_env} ({status}): set it to one that is valid"
            )
        rows = found.get("organic") if isinstance(found, dict) else None
        if status != 200 or not isinstance(rows, list | None):
            raise ToolFailure(f"{self._client.url} answered {status} without results")
        hits = [row for row in rows or () if isinstance(row, dict) and row.get("link")]
        return [
            Hit(
                docid=str(row["link"]),
                score=1.0 / rank,
                snippet=" ".join(str(row.get("snippet") or "").split())[: self._snippet_chars],
                title=str(row.get("title") or ""),
            )
            for rank, row in enumerate(hits[:limit], 1)
        ]

    async def document(self, docid: str) -> str | None:
        """None: the web has no documents by id. Pages are read with `open_page`."""
        return None

    async def aclose(self) -> None:
        await self._client.aclose()


def _first(row: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((row[key] for key in keys if row.get(key) is not None), None)


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None
