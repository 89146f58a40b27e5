"""Which retriever a task searches: the key `search` of its resources.

resources={"search": {"index": "wiki-index"}}
resources={"search": {"url": "http://localhost:8100", "limit": 10}}
resources={"search": {"web": "serper"}}
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slipstream.errors import ConfigError
from slipstream.tools.search.base import Retriever
from slipstream.tools.search.index import SNIPPET_CHARS, LocalIndex
from slipstream.tools.search.local import IndexRetriever
from slipstream.tools.search.remote import SERPER_KEY, SERPER_URL, HttpRetriever, WebSearch
from slipstream.types import Json


class SearchSource(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    index: str = ""
    """The folder of a local index (`slipstream index make`)."""
    url: str = ""
    """A retriever behind HTTP, which answers POST /search and POST /get_document."""
    web: Literal["", "serper"] = ""
    """A web search API."""
    api_key_env: str = SERPER_KEY
    """The variable that holds the key of the web search."""
    api_url: str = SERPER_URL
    """The address of the web search, if it is another one of the same kind."""
    limit: int = Field(default=5, ge=1, le=100)
    """Results of a search."""
    snippet_chars: int = Field(default=SNIPPET_CHARS, ge=0)
    form: Literal["json", "plain"] = "json"
    """How results are written: as a JSON list, or a line each: the docid, then the snippet."""


def read_source(resources: Mapping[str, Json]) -> SearchSource:
    found = resources.get("search")
    if found is None:
        raise ConfigError('the task names nothing to search: give it resources={"search": {"index": FOLDER}}')
    try:
        source = SearchSource.model_validate(found)
    except ValidationError as raised:
        first = raised.errors()[0]
        raise ConfigError(f'resources "search", key "{".".join(map(str, first["loc"]))}": {first["msg"]}') from None
    if sum(map(bool, (source.index, source.url, source.web))) != 1:
        raise ConfigError('resources "search": give one of "index", "url" and "web"')
    return source


def make_retriever(source: SearchSource) -> Retriever:
    if source.index:
        return IndexRetriever(LocalIndex(Path(source.index).expanduser()), snippet_chars=source.snippet_chars)
    if source.url:
        return HttpRetriever(source.url, snippet_chars=source.snippet_chars)
    return WebSearch(url=source.api_url, key_env=source.api_key_env, snippet_chars=source.snippet_chars)


_retrievers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[SearchSource, Retriever]] = WeakKeyDictionary()


def shared_retriever(source: SearchSource) -> Retriever:
    """The one of this event loop for that source: agents share the index, its thread and the connections."""
    known = _retrievers.setdefault(asyncio.get_running_loop(), {})
    key = source.model_copy(update={"limit": 5, "form": "json"})
    if key not in known:
        known[key] = make_retriever(key)
    return known[key]


async def close_retrievers() -> None:
    """Close those of this event loop."""
    for retriever in _retrievers.pop(asyncio.get_running_loop(), {}).values():
        await retriever.aclose()
