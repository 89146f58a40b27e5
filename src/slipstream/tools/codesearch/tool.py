"""search: look up code in the repository of the sandbox.

Input: terms, a path and a mode. Output: an answer sized for a model, and the next step as a hint. Invariants: the
answer is up to date with the files; nothing in the sandbox is changed.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from slipstream.errors import InfrastructureError, SandboxFileError, ToolError, ToolFailure, boundary
from slipstream.sandbox.base import Rooted, Sandbox
from slipstream.tools.base import Effect, Hint, Observation, ToolContext
from slipstream.tools.codesearch.answers.answer import SearchAnswer
from slipstream.tools.codesearch.answers.query import Mode
from slipstream.tools.codesearch.files import FolderFiles
from slipstream.tools.codesearch.remote import FetchedFiles
from slipstream.tools.codesearch.session import CodeSearch
from slipstream.tools.codesearch.store import Store
from slipstream.tools.define import DEFAULT_MAX_OUTPUT_CHARS, TypedTool, class_tool

T = TypeVar("T")

NUM_THREADS = 4
TIMEOUT_S = 120.0
PWD_TIMEOUT_S = 20.0


class Service:
    """What the searches of all rollouts share: the store, and threads for blocking work."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = Store() if store is None else store
        self.threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="slipstream-search")


@cache
def shared_service() -> Service:
    """The one of this process, started when first needed."""
    return Service()


class Search:
    def __init__(self, root: str = ".", service: Callable[[], Service] = shared_service) -> None:
        self._root = root
        self._service = service
        self._search: CodeSearch | None = None
        self._remote: FetchedFiles | None = None
        self._turn = asyncio.Lock()

    async def call(
        self,
        terms: Annotated[
            list[str],
            "what to look for: a name (QuerySet, QuerySet.filter, pkg.module.function), a file (query.py, db/*.py), "
            "lines (query.py:120-160), a definition in a file (query.py:QuerySet.filter), or any text: a message, a "
            "question, a whole bug report",
            Field(max_length=8),
        ],
        path: Annotated[str, "look only in this file or folder, or in files that match this glob"] = "",
        mode: Annotated[
            Literal["auto", "callers", "callees", "references", "text", "regex"],
            "callers, callees and references of a name; text or regex to search the lines of all files",
        ] = "auto",
        *,
        ctx: ToolContext,
    ) -> Observation:
        """Look up definitions, callers, files, lines or text in the code. Ask here first: it shows where a name is
        defined and what it does without reading whole files."""
        sandbox = ctx.need_sandbox()
        service = self._service()
        # Calls of one turn run concurrently, and only one at a time updates a tree.
        async with self._turn, _lost_sandboxes_say_so(sandbox):
            search = await self._opened(sandbox, service)
            if self._remote is not None:
                await self._remote.fetch(search.tree, max(1.0, ctx.remaining_s() / 2))
                # Take in everything that was fetched at once, text files too, whatever the query.
                await _in_thread(service, search.tree.refresh)
            ask = partial(search.ask, terms, path=path, mode=Mode(mode))
            found = await _in_thread(service, ask)
        return observed(found)

    async def _opened(self, sandbox: Sandbox, service: Service) -> CodeSearch:
        if self._search is None:
            if isinstance(sandbox, Rooted):
                folder = posixpath.join(await _workdir(sandbox), self._root)
                files = FolderFiles(sandbox.root, folder, rights=sandbox.rights)
                self._search = CodeSearch(files, service.store)
            else:
                self._remote = FetchedFiles(sandbox, service.store, self._root)
                self._search = CodeSearch(self._remote, service.store)
        return self._search


@asynccontextmanager
async def _lost_sandboxes_say_so(sandbox: Sandbox) -> AsyncIterator[None]:
    """A lost sandbox cannot be read either; then its own error is the one to raise."""
    try:
        yield
    except (InfrastructureError, SandboxFileError):
        await sandbox.exec(["true"], timeout_s=PWD_TIMEOUT_S)
        raise


async def _in_thread(service: Service, work: Callable[[], T]) -> T:
    with boundary(ToolFailure, "code search failed"):
        return await asyncio.get_running_loop().run_in_executor(service.threads, work)


async def _workdir(sandbox: Sandbox) -> str:
    result = await sandbox.exec(["pwd"], timeout_s=PWD_TIMEOUT_S)
    folder = result.stdout.text().strip()
    if result.exit_code != 0 or not folder.startswith("/"):
        raise ToolError(f"search: `pwd` in the sandbox ended with {result.exit_code} and printed {folder[:100]!r}")
    return folder


def observed(found: SearchAnswer) -> Observation:
    """What a model sees of an answer."""
    hints = (Hint(name=f"search_{found.kind}", text=f"Next: {found.next_step}."),) if found.next_step else ()
    return Observation(text=found.text, is_error=found.is_empty, hints=hints)


def make_search(
    *,
    root: str = ".",
    timeout_s: float = TIMEOUT_S,
    max_output_chars: int = DEFAULT_MAX_OUTPUT_CHARS,
    service: Callable[[], Service] = shared_service,
) -> TypedTool:
    """The tool, for the repository in `root` below the working directory."""
    return class_tool(
        partial(Search, root, service),
        name="search",
        effect=Effect.PURE,
        timeout_s=timeout_s,
        max_output_chars=max_output_chars,
    )


search = make_search()
