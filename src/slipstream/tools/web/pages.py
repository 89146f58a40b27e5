"""Pages as text, fetched once for all agents of a process, and kept in a file between runs.

Input: a URL. Output: its readable text. Invariants: agents that want the same page at the same time share one request;
what is kept has a size limit and an age limit; a page is parsed away from the event loop, and a large one in a process
that can be killed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from slipstream.disk_cache import DiskCache, key_of
from slipstream.errors import InfrastructureError
from slipstream.offload import OffloadLimits, WorkTooLarge, apart
from slipstream.tools.web.fetch import FetchedPage, Fetcher, PageError, checked_url
from slipstream.tools.web.readable import ReadablePage, decoded, readable
from slipstream.tools.web.settings import PageSettings

IN_THREAD_BYTES = 1 << 20
"""A larger page is parsed in a process of its own, which takes a second to start."""
PARSE_LIMITS = OffloadLimits(cpu_s=20, timeout_s=60.0)
CACHE_FORM = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    url: str
    title: str
    text: str
    num_bytes: int
    is_cut: bool


class Pages:
    """The pages of one event loop."""

    def __init__(self, fetcher: Fetcher, *, now_s: Callable[[], float] = time.time) -> None:
        self.fetcher = fetcher
        self._now_s = now_s
        self._fetching: dict[str, asyncio.Task[Page]] = {}

    async def open(self, url: str, settings: PageSettings, *, on_bytes: Callable[[int], None]) -> Page:
        """The page at `url`. Raises PageError if it cannot be shown."""
        url = checked_url(url, settings)
        key = key_of(CACHE_FORM, url, settings.max_page_bytes, settings.private_hosts, settings.blocked)
        cache = _cache_of(settings)
        page = await self._kept(cache, key, settings)
        if page is None:
            page = await self._shared(key, url, settings, on_bytes)
            if cache is not None:
                await cache.put(key, json.dumps([self._now_s(), asdict(page)]).encode())
        lowered = " ".join(page.text.split()).casefold()
        for phrase in settings.blocked_phrases:
            if " ".join(phrase.split()).casefold() in lowered:
                raise PageError(f"{url} may not be opened in this task: find the answer elsewhere")
        return page

    async def aclose(self) -> None:
        for task in self._fetching.values():
            task.cancel()
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)
        await self.fetcher.aclose()

    async def _kept(self, cache: DiskCache | None, key: str, settings: PageSettings) -> Page | None:
        found = None if cache is None else await cache.get(key)
        if found is None:
            return None
        kept_s, page = json.loads(found)
        return Page(**page) if self._now_s() - kept_s < settings.cache_days * 86_400 else None

    async def _shared(self, key: str, url: str, settings: PageSettings, on_bytes: Callable[[int], None]) -> Page:
        task = self._fetching.get(key)
        if task is None:
            task = self._fetching[key] = asyncio.create_task(self._fetched(url, settings, on_bytes))
            task.add_done_callback(lambda done: self._is_done(key, done))
        # Shielded: the call that began it may be cancelled while others wait for the page. It ends by its own deadline.
        return await asyncio.shield(task)

    def _is_done(self, key: str, task: asyncio.Task[Page]) -> None:
        self._fetching.pop(key, None)
        if not task.cancelled():
            task.exception()  # read, in case nobody waits for it any more

    async def _fetched(self, url: str, settings: PageSettings, on_bytes: Callable[[int], None]) -> Page:
        fetched = await self.fetcher.fetch(url, settings, max_bytes=settings.max_page_bytes, on_bytes=on_bytes)
        found = await _as_text(fetched)
        if not found.text.strip():
            raise PageError(f"{url} has no text that can be read: open another page")
        return Page(
            url=fetched.url,
            title=found.title[:300],
            text=found.text,
            num_bytes=len(fetched.data),
            is_cut=fetched.is_cut,
        )


def _cache_of(settings: PageSettings) -> DiskCache | None:
    path = settings.cache
    return DiskCache(Path(path).expanduser(), max_bytes=settings.cache_mb << 20) if path else None


async def _as_text(page: FetchedPage) -> ReadablePage:
    if not page.is_html:
        return ReadablePage(title="", text=await asyncio.to_thread(decoded, page.data, page.charset))
    if len(page.data) <= IN_THREAD_BYTES:
        return await asyncio.to_thread(readable, page.data, charset=page.charset, url=page.url)
    try:
        return await apart(_readable_apart, page.data, page.charset, page.url, limits=PARSE_LIMITS)
    except (WorkTooLarge, InfrastructureError) as raised:
        raise PageError(f"{page.url} is too large to read: {raised}") from None


def _readable_apart(data: bytes, charset: str, url: str) -> ReadablePage:
    return readable(data, charset=charset, url=url)
