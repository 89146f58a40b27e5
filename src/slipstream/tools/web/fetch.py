"""Fetches a page, within limits and away from private networks.

Input: a URL. Output: its bytes and what they are. Invariants: everything that is wrong with a page is a PageError,
which the agent reads; the address that is checked is the one that is connected to, after redirects too, so that a name
that changes its address gains nothing; no cookie and no key is ever sent.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit, urlunsplit

from slipstream.errors import ToolError
from slipstream.tools.web.addresses import blocked_by, is_public
from slipstream.tools.web.settings import PageSettings

if TYPE_CHECKING:
    import aiohttp

HEADERS = {"User-Agent": "slipstream/0.1", "Accept": "text/html, text/*;q=0.9, */*;q=0.5"}
CONNECTIONS, CONNECTIONS_PER_HOST = 128, 32
REDIRECTS = frozenset({301, 302, 303, 307, 308})
_READABLE = re.compile(r"text/.*|application/(xhtml\+xml|xml|json|[\w.+-]+\+(xml|json))|")
_META_CHARSET = re.compile(rb"<meta[^>]+charset\s*=\s*[\"']?\s*([\w-]+)", re.IGNORECASE)


class PageError(ToolError):
    """A page cannot be shown. The message is for the agent."""


class _PrivateAddress(OSError):
    """A connection to an address of a private network was about to be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPage:
    url: str
    """After redirects."""
    data: bytes
    is_html: bool
    charset: str
    is_cut: bool
    """The page is longer than what was read."""


class Fetcher:
    """The HTTP side of `open_page`. Its session belongs to one event loop."""

    def __init__(self, *, private_hosts: Sequence[str] = (), resolver: Any = None) -> None:
        """`resolver` is aiohttp's interface, if not its own. (Any: it is imported when a page is fetched.)"""
        self._private = frozenset(host.lower() for host in private_hosts)
        self._resolver = resolver
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self.num_requests = 0

    async def fetch(
        self, url: str, settings: PageSettings, *, max_bytes: int, on_bytes: Callable[[int], None] = lambda num: None
    ) -> FetchedPage:
        """The page at `url`. `on_bytes` is told of what arrives, as it does."""
        import aiohttp

        try:
            async with asyncio.timeout(settings.page_timeout_s) as scope:
                return await self._follow(url, settings, max_bytes, on_bytes)
        except TimeoutError:
            if not scope.expired():
                raise PageError(f"{url} did not answer") from None
            raise PageError(f"{url} took longer than {settings.page_timeout_s:g} s") from None
        except aiohttp.ClientConnectorError as raised:
            if isinstance(raised.os_error, _PrivateAddress):
                raise PageError(f"{url}: {raised.os_error}") from None
            raise PageError(f"{url} cannot be reached: {raised.os_error}") from None
        except _PrivateAddress as raised:
            raise PageError(f"{url}: {raised}") from None
        except (aiohttp.ClientError, OSError, ValueError) as raised:
            raise PageError(f"{url} cannot be read: {type(raised).__name__}: {str(raised)[:200]}") from None

    async def aclose(self) -> None:
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await session.close()

    async def _follow(
        self, url: str, settings: PageSettings, max_bytes: int, on_bytes: Callable[[int], None]
    ) -> FetchedPage:
        seen: set[str] = set()
        while True:
            url = checked_url(url, settings)
            if url in seen:
                raise PageError(f"{url} redirects to itself: open another page")
            if len(seen) > settings.max_redirects:
                raise PageError(f"{url}: more than {settings.max_redirects} redirects: open another page")
            seen.add(url)
            self.num_requests += 1
            async with self._session(url).get(url, allow_redirects=False) as response:
                if response.status in REDIRECTS and "Location" in response.headers:
                    url = urljoin(url, response.headers["Location"])
                    continue
                return await _read(url, response, max_bytes, on_bytes)

    def _session(self, url: str) -> aiohttp.ClientSession:
        import aiohttp

        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        is_trusted = bool(self._private & {host, f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"})
        if is_trusted not in self._sessions:
            self._sessions[is_trusted] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=CONNECTIONS,
                    limit_per_host=CONNECTIONS_PER_HOST,
                    resolver=self._resolver,
                    socket_factory=_any_socket if is_trusted else _public_socket,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=HEADERS,
                timeout=aiohttp.ClientTimeout(total=None),
                trust_env=False,
            )
        return self._sessions[is_trusted]


def _public_socket(address: Any) -> socket.socket:
    """A socket for an address that is about to be connected to. (Any: the tuple of getaddrinfo.)"""
    where = address[4][0]
    if not is_public(where):
        raise _PrivateAddress(f"its address {where} is of a private network, which may not be read")
    return _any_socket(address)


def _any_socket(address: Any) -> socket.socket:
    family, kind, protocol, *_ = address
    return socket.socket(family=family, type=kind, proto=protocol)


def checked_url(url: str, settings: PageSettings) -> str:
    """The address to fetch. Raises PageError for one that may not be."""
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as raised:
        raise PageError(f"{url[:200]} is not an address of a page ({raised})") from None
    if parts.scheme not in ("http", "https") or not host:
        raise PageError(f"{url[:200]} is not an address of a page: write https://host/path")
    if parts.username or parts.password:
        raise PageError(f"{host}: an address with a user name may not be opened: leave the name out")
    if blocked_by(url, settings.blocked):
        raise PageError(f"{host} may not be opened in this task: find the answer elsewhere")
    return urlunsplit((parts.scheme, parts.netloc, parts.path or "/", parts.query, ""))


async def _read(
    url: str, response: aiohttp.ClientResponse, max_bytes: int, on_bytes: Callable[[int], None]
) -> FetchedPage:
    if response.status != 200:
        raise PageError(f"{url} answered {response.status} {response.reason or ''}".rstrip())
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if not _READABLE.fullmatch(kind):
        raise PageError(f"{url} is of type {kind[:80]}, and only text can be read: open another page")
    data, is_cut = bytearray(), False
    async for chunk in response.content.iter_chunked(1 << 16):
        on_bytes(len(chunk))
        data += chunk
        if len(data) > max_bytes:
            is_cut = True
            break
    del data[max_bytes:]
    if b"\0" in data[:2_048] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise PageError(f"{url} is a binary file, and only text can be read: open another page")
    charset = response.charset or ""
    if not charset and (found := _META_CHARSET.search(data[:4_096])):
        charset = found[1].decode("ascii", "replace")
    is_html = "html" in kind or (not kind and data.lstrip()[:1] == b"<")
    return FetchedPage(url=url, data=bytes(data), is_html=is_html, charset=charset, is_cut=is_cut)
