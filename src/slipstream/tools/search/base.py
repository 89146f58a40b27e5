"""What every retriever offers: hits for a query, and a whole document by its id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """`Hit(docid="d7", score=0.031, snippet="The bridge was opened in ...")`."""

    docid: str
    """What `get_document` takes; of a web search, the page's address."""
    score: float
    """Comparable within one answer only."""
    snippet: str
    title: str = ""


class Retriever(Protocol):
    async def search(self, query: str, *, limit: int) -> list[Hit]:
        """At most `limit` documents, the best first. Raises ToolError for a query that cannot be answered, and
        ToolFailure if the retriever itself failed."""
        ...

    async def document(self, docid: str) -> str | None:
        """The text of a document; None if there is none with that id."""
        ...

    async def aclose(self) -> None: ...
