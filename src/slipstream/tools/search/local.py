"""A local index behind the Retriever interface, shared by all agents of a process.

One thread searches. Queries that arrive while it works wait, and are then answered together, so that the encoder and
the vectors are read once for all of them. The event loop never waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from slipstream.tools.search.base import Hit
from slipstream.tools.search.threads import one_blas_thread

T = TypeVar("T")

MAX_BATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    query: str
    limit: int
    found: Future[list[Hit]] = field(default_factory=Future)


class Answering(Protocol):
    """What the thread asks: a LocalIndex."""

    def search(self, queries: Sequence[str], *, limit: int, snippet_chars: int) -> list[list[Hit]]: ...

    def text(self, docid: str) -> str | None: ...


class IndexRetriever:
    def __init__(self, index: Answering, *, snippet_chars: int) -> None:
        self._index = index
        self._snippet_chars = snippet_chars
        self._waiting: deque[_Waiting] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="slipstream-search")
        self._stack = ExitStack()
        self.num_batches = 0
        self.num_queries = 0

    async def search(self, query: str, *, limit: int) -> list[Hit]:
        waiting = _Waiting(query=query, limit=limit)
        self._waiting.append(waiting)
        self._thread.submit(self._answer_waiting)
        return await asyncio.wrap_future(waiting.found)

    async def document(self, docid: str) -> str | None:
        return await self._in_thread(lambda: self._index.text(docid))

    async def aclose(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)
        self._stack.close()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _answer_waiting(self) -> None:
        """Answer all that wait now; those behind them in the thread's queue then find nothing to do."""
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < MAX_BATCH:
            waiting = self._waiting.popleft()
            if waiting.found.set_running_or_notify_cancel():
                batch.append(waiting)
        if not batch:
            return
        self.num_batches += 1
        self.num_queries += len(batch)
        try:
            if self.num_batches == 1:
                self._stack.enter_context(one_blas_thread())
            limit = max(waiting.limit for waiting in batch)
            answers = self._index.search(
                [waiting.query for waiting in batch], limit=limit, snippet_chars=self._snippet_chars
            )
        except Exception as raised:  # passed to those who wait
            for waiting in batch:
                waiting.found.set_exception(raised)
            return
        for waiting, hits in zip(batch, answers, strict=True):
            waiting.found.set_result(hits[: waiting.limit])
