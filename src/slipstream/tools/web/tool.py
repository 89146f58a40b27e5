"""open_page: read a web page for a goal.

Input: an address and a goal. Output: the page's text, or a model's report on it. How pages are opened is the task's
resource `pages` (`settings`). Invariants: a page that cannot be shown is an answer to the agent; what a page says is
shown as the answer of a tool and is nothing else.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urljoin
from weakref import WeakKeyDictionary

from slipstream.errors import ContextOverflow, ToolError, ToolFailure, boundary
from slipstream.tools.base import Effect, NestedModel, Observation, ToolContext
from slipstream.tools.define import shared_tool
from slipstream.tools.web.fetch import Fetcher
from slipstream.tools.web.pages import Page, Pages
from slipstream.tools.web.settings import PageSettings, read_settings
from slipstream.tools.web.summariser import Summariser
from slipstream.tools.web.summary import summarise

TIMEOUT_S = 300.0
NAME = "open_page"


@dataclass(slots=True)
class _Spent:
    """What a rollout has used of its budgets."""

    num_bytes: int = 0
    seconds: float = 0.0

    def add_bytes(self, num: int) -> None:
        self.num_bytes += num


class _Shared:
    """What the agents of one event loop share."""

    def __init__(self) -> None:
        self.pages: dict[tuple[str, ...], Pages] = {}
        self.summarisers: dict[tuple[str, str, str], Summariser] = {}

    def pages_for(self, settings: PageSettings) -> Pages:
        if settings.private_hosts not in self.pages:
            self.pages[settings.private_hosts] = Pages(Fetcher(private_hosts=settings.private_hosts))
        return self.pages[settings.private_hosts]

    def summariser_for(self, settings: PageSettings) -> Summariser:
        key = (settings.base_url, settings.model, settings.api_key_env)
        if key not in self.summarisers:
            self.summarisers[key] = Summariser(*key)
        return self.summarisers[key]

    async def aclose(self) -> None:
        async with AsyncExitStack() as stack:
            for pages in self.pages.values():
                stack.push_async_callback(pages.aclose)
            for summariser in self.summarisers.values():
                stack.push_async_callback(summariser.aclose)


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


class OpenPage:
    async def call(
        self,
        url: Annotated[str, "the address of the page"],
        goal: Annotated[str, "what you want to know from it"] = "",
        *,
        ctx: ToolContext,
    ) -> Observation:
        """Open a web page and read what it says about your goal."""
        settings = read_settings(ctx.resources)
        spent = _within_budget(ctx, settings)
        shared = _shared.setdefault(asyncio.get_running_loop(), _Shared())
        start_s = asyncio.get_running_loop().time()
        with boundary(ToolFailure, "open_page failed"):
            try:
                page = await shared.pages_for(settings).open(
                    urljoin(settings.base, url), settings, on_bytes=spent.add_bytes
                )
            finally:
                spent.seconds += asyncio.get_running_loop().time() - start_s
            if settings.summarise == "none":
                return Observation(text=_shown(page, _cut(page.text, settings.text_chars)))
            model: NestedModel | None = shared.summariser_for(settings) if settings.base_url else ctx.model
            if model is None:
                raise ToolFailure("there is no model to summarise pages with: set pages.base_url, or summarise to none")
            if not goal.strip():
                raise ToolError("open_page: the goal is empty: say what you want to know from the page")
            try:
                report = await summarise(page.text, goal, model, settings)
            except ContextOverflow as raised:
                raise ToolError(f"open_page: this page is too long for the summariser: {raised}") from raised
            return Observation(text=_shown(page, report))

    async def aclose(self) -> None:
        shared = _shared.pop(asyncio.get_running_loop(), None)
        if shared is not None:
            await shared.aclose()


open_page = shared_tool(OpenPage(), name=NAME, effect=Effect.PURE, timeout_s=TIMEOUT_S)


def _within_budget(ctx: ToolContext, settings: PageSettings) -> _Spent:
    """What was spent so far. Raises ToolError if that is all there was.

    The number of pages is read off the conversation. Bytes and seconds are counted from where a resumed rollout goes
    on, since the answers of its earlier calls are read back."""
    num_pages = sum(call.name == NAME for message in ctx.messages for call in message.calls)
    if settings.max_pages and num_pages > settings.max_pages:
        raise ToolError(
            f"open_page: the {settings.max_pages} pages of this task are used up: answer with what you know"
        )
    spent = ctx.state.setdefault("open_page", _Spent())
    assert isinstance(spent, _Spent)
    if settings.max_bytes and spent.num_bytes >= settings.max_bytes:
        raise ToolError("open_page: the bytes that this task may fetch are used up: answer with what you know")
    if settings.max_seconds and spent.seconds >= settings.max_seconds:
        raise ToolError("open_page: the time that this task may spend on pages is used up: answer with what you know")
    return spent


def _shown(page: Page, text: str) -> str:
    cut = "\n[only the beginning of the page was read]" if page.is_cut else ""
    return f"{page.title}\n{text}{cut}".strip()


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}\n[{len(text) - max_chars} more characters]"
