"""search and get_document: find documents, and read one.

Input: a query, or the id of a document. Output: hits as text, or the document. What is searched is the task's resource
`search` (`source`).
"""

from __future__ import annotations

import json
from typing import Annotated

from slipstream.errors import ToolError, ToolFailure, boundary
from slipstream.tools.base import Effect, Observation, ToolContext
from slipstream.tools.define import shared_tool
from slipstream.tools.search.base import Hit
from slipstream.tools.search.source import SearchSource, close_retrievers, read_source, shared_retriever

MAX_QUERY_CHARS = 2_000
DOCUMENT_CHARS = 15_000


class Search:
    async def call(
        self, query: Annotated[str, "what to look for: names, or a question"], *, ctx: ToolContext
    ) -> Observation:
        """Search the documents. Shows the id and the beginning of each that matches, the best first."""
        if not query.strip():
            raise ToolError("search: the query is empty: say what to look for")
        source = read_source(ctx.resources)
        with boundary(ToolFailure, "search failed"):
            hits = await shared_retriever(source).search(query[:MAX_QUERY_CHARS], limit=source.limit)
        return Observation(text=_shown(hits, source), is_error=not hits)

    async def aclose(self) -> None:
        await close_retrievers()


class GetDocument:
    async def call(
        self,
        docid: Annotated[str, "the id of a document, from a search"],
        start: Annotated[int, "the character to start at, for documents that are shown in parts"] = 0,
        *,
        ctx: ToolContext,
    ) -> Observation:
        """Read a document."""
        source = read_source(ctx.resources)
        with boundary(ToolFailure, "get_document failed"):
            text = await shared_retriever(source).document(docid)
        if text is None:
            raise ToolError(f'get_document: there is no document "{docid[:200]}": use a docid that a search has shown')
        if not 0 <= start <= len(text):
            raise ToolError(f"get_document: start={start} is not in the document, which has {len(text)} characters")
        stop = start + DOCUMENT_CHARS
        if stop >= len(text):
            return Observation(text=text[start:])
        return Observation(text=f"{text[start:stop]}\n\n[{len(text) - stop} more characters: start={stop} shows them]")

    async def aclose(self) -> None:
        await close_retrievers()


search_documents = shared_tool(Search(), name="search", effect=Effect.PURE, timeout_s=120.0)
get_document = shared_tool(GetDocument(), name="get_document", effect=Effect.PURE, timeout_s=60.0)


def _shown(hits: list[Hit], source: SearchSource) -> str:
    if not hits:
        return "No document matches. Try other words."
    if source.form == "plain":
        return "\n".join(f"{hit.docid} {hit.snippet}".rstrip() for hit in hits)
    rows = [
        {"docid": hit.docid, "score": hit.score, **({"title": hit.title} if hit.title else {}), "snippet": hit.snippet}
        for hit in hits
    ]
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"
