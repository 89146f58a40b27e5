"""Pages over a real HTTP server: what is fetched, what is refused, what is shared and kept."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from slipstream.tools.web.addresses import blocked_by, is_public
from slipstream.tools.web.fetch import Fetcher, PageError
from slipstream.tools.web.pages import Page, Pages
from slipstream.tools.web.readable import readable
from slipstream.tools.web.settings import PageSettings

ARTICLE = """<html><head><title> A  page </title><script>evil()</script></head><body>
<nav><a href="/menu">Menu entry</a></nav>
<article><h1>Heading</h1><p>The bridge was built in 1931 by an engineer of the town, and it still stands.</p>
<p>See <a href="/more?x=1">the other page</a> for its history, which is long and has many turns.</p></article>
<footer>Imprint</footer></body></html>"""


class Site:
    """Pages of every kind, and how often each was asked for."""

    def __init__(self) -> None:
        self.num = Counter[str]()
        self.url = ""
        self.num_sent = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.num[request.path] += 1
        match request.path:
            case "/loop":
                raise web.HTTPFound("/loop2")
            case "/loop2":
                raise web.HTTPFound("/loop")
            case "/far":
                raise web.HTTPFound(f"/far?{int(request.query_string or 0) + 1}")
            case "/to":
                raise web.HTTPFound(request.query["url"])
            case "/huge":
                return await self._endless(request)
            case "/binary":
                return web.Response(body=b"PK\x03\x04\0\0" + bytes(50), content_type="text/plain")
            case "/pdf":
                return web.Response(body=b"%PDF-1.7", content_type="application/pdf")
            case "/never":
                await asyncio.Event().wait()
            case "/latin":
                return web.Response(
                    body="<p>caf\xe9</p>".encode("latin-1"), headers={"Content-Type": "text/html; charset=latin-1"}
                )
            case "/meta":
                body = '<meta charset="windows-1252"><p>\x93quoted\x94</p>'.encode("latin-1")
                return web.Response(body=body, content_type="text/html", charset=None)
            case "/text":
                return web.Response(text="plain words")
            case "/empty":
                return web.Response(text="<html><body></body></html>", content_type="text/html")
            case "/gone":
                return web.Response(status=410)
        return web.Response(text=ARTICLE, content_type="text/html")

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/html"})
        await response.prepare(request)
        for _ in range(800):  # 50 MB
            await response.write(b"<p>word</p>" * 5_958)
            self.num_sent += 1
        return response


@asynccontextmanager
async def serving() -> AsyncIterator[Site]:
    site, app = Site(), web.Application()
    app.router.add_get("/{path:.*}", site.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    site.url = "http://{}:{}".format(*runner.addresses[0][:2])
    try:
        yield site
    finally:
        await runner.cleanup()


@asynccontextmanager
async def opening(site: Site, **more: Any) -> AsyncIterator[Any]:
    """A function from a path or an address and settings to a page, which is allowed to read the site."""
    hosts = (site.url.removeprefix("http://"),)
    pages = Pages(Fetcher(private_hosts=hosts, **more))

    async def opened(path: str, **settings: Any) -> Page:
        url = site.url + path if path.startswith("/") else path
        return await pages.open(url, PageSettings(private_hosts=hosts, **settings), on_bytes=lambda num: None)

    try:
        yield opened
    finally:
        await pages.aclose()


def test_a_page_is_its_title_and_main_text_with_whole_links() -> None:
    page = readable(ARTICLE.encode(), url="https://town.org/bridge")
    assert page.title == "A page"
    assert "The bridge was built in 1931" in page.text
    assert "[the other page](https://town.org/more?x=1)" in page.text
    assert not any(word in page.text for word in ("Menu", "evil", "Imprint"))
    assert readable(b"").text == "" and readable(b"\xff\xfe\0").title == ""


def test_what_can_be_read_is_read_in_its_character_set() -> None:
    async def main() -> None:
        async with serving() as site, opening(site) as opened:
            assert "built in 1931" in (await opened("/article")).text
            assert (await opened("/latin")).text == "caf\xe9"
            assert (await opened("/meta")).text == "\u201cquoted\u201d"
            assert (await opened("/text")).text == "plain words"
            moved = await opened(f"/to?url={site.url}/text")
            assert (moved.url, moved.text) == (f"{site.url}/text", "plain words")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/loop", "redirects to itself"),
        ("/far", "more than 3 redirects"),
        ("/binary", "is a binary file"),
        ("/pdf", "is of type application/pdf, and only text can be read"),
        ("/empty", "has no text that can be read"),
        ("/gone", "answered 410"),
        ("ftp://example.org/x", "is not an address of a page"),
        ("http://[::1", "is not an address of a page"),
        ("http://user:secret@example.org/", "an address with a user name may not be opened"),
    ],
)
def test_a_page_that_cannot_be_shown_says_why(path: str, said: str) -> None:
    async def main() -> None:
        async with serving() as site, opening(site) as opened:
            with pytest.raises(PageError) as raised:
                await opened(path, max_redirects=3)
            assert said in str(raised.value)
            assert "secret" not in str(raised.value)

    asyncio.run(main())


def test_a_page_that_never_answers_has_a_deadline() -> None:
    async def main() -> None:
        async with serving() as site, opening(site) as opened:
            with pytest.raises(PageError, match=r"/never took longer than 0.05 s"):
                await opened("/never", page_timeout_s=0.05)

    asyncio.run(main())


def test_of_a_page_of_50_mb_only_the_beginning_is_read() -> None:
    async def main() -> None:
        async with serving() as site, opening(site) as opened:
            page = await opened("/huge", max_page_bytes=100_000)
            assert page.is_cut and page.num_bytes == 100_000
            assert page.text.startswith("word")
            assert site.num_sent < 400, "the rest is not even sent"

    asyncio.run(main())


class Names(AbstractResolver):
    """Every name is an address of this machine, as an attacker's name server may say."""

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_INET) -> list[ResolveResult]:
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        return None


def test_private_addresses_are_refused_however_they_are_written() -> None:
    async def main() -> None:
        async with serving() as site, serving() as other, opening(site, resolver=Names()) as opened:
            port = other.url.rpartition(":")[2]
            for url in (
                f"{other.url}/x",
                f"http://localhost:{port}/x",
                f"http://harmless.example:{port}/x",
                f"http://[::ffff:127.0.0.1]:{port}/x",
                f"http://2130706433:{port}/x",
                f"/to?url={other.url}/x",
                f"/to?url=http://harmless.example:{port}/x",
                "http://169.254.169.254/latest/meta-data",
            ):
                with pytest.raises(PageError, match=r"of a private network|cannot be read"):
                    await opened(url)
            assert not other.num, "not one request was made"
            assert site.num == {"/to": 2}

    asyncio.run(main())


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "::1", "fe80::1%eth0",
     "fd00::1", "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1", "224.0.0.1", "no address"],
)  # fmt: skip
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_public_addresses_are() -> None:
    assert is_public("93.184.216.34") and is_public("2606:2800:220:1:248:1893:25c8:1946")


def test_blocked_sites_are_not_opened_by_any_way() -> None:
    blocked = ("example.com", "data.org/answers", "https://one.net/")
    assert blocked_by("https://sub.example.com/x", blocked) == "example.com"
    assert blocked_by("http://EXAMPLE.com.:8080/", blocked) == "example.com"
    assert blocked_by("https://data.org/%61nswers/7", blocked) == "data.org/answers"
    assert blocked_by("https://one.net/any", blocked) == "https://one.net/"
    for url in ("https://notexample.com/", "https://data.org/answersheet", "https://data.org/", "https://example.org/"):
        assert blocked_by(url, blocked) is None

    async def main() -> None:
        async with serving() as site, opening(site) as opened:
            for path in ("https://huggingface.co/x", "/to?url=https://datasets.huggingface.co/x"):
                with pytest.raises(PageError, match="may not be opened in this task"):
                    await opened(path, blocked=("huggingface.co",))
            with pytest.raises(PageError, match="may not be opened in this task"):
                await opened("/article", blocked_phrases=("was  BUILT in 1931",))

    asyncio.run(main())


def test_agents_that_want_the_same_page_share_one_request() -> None:
    async def main() -> None:
        async with serving() as site, opening(site) as opened:
            pages = await asyncio.gather(*(opened("/text") for _ in range(16)))
            assert {page.text for page in pages} == {"plain words"}
            assert site.num == {"/text": 1}
            await opened("/text")
            assert site.num == {"/text": 2}, "without a file nothing is kept"

    asyncio.run(main())


def test_pages_are_kept_between_runs_for_some_days(tmp_path: Path) -> None:
    now = [1_000.0]

    async def main() -> None:
        async with serving() as site:
            hosts = (site.url.removeprefix("http://"),)
            settings = PageSettings(private_hosts=hosts, cache=str(tmp_path / "pages.sqlite"), cache_days=2)
            for later_s, num_requests in ((0, 1), (86_400, 1), (86_400 * 2, 2)):
                now[0] = 1_000.0 + later_s
                pages = Pages(Fetcher(private_hosts=hosts), now_s=lambda: now[0])
                page = await pages.open(f"{site.url}/text", settings, on_bytes=lambda num: None)
                assert page.text == "plain words"
                assert site.num["/text"] == num_requests
                await pages.aclose()

    asyncio.run(main())
