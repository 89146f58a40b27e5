"""Which addresses an agent may reach.

Input: an address or a URL. Output: whether it is public, or blocked. Invariant: an address inside another one (IPv4 in
IPv6, 6to4, Teredo, NAT64) counts as the inner one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_public(text: str) -> bool:
    """Whether an IP address is one of the open internet."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return all(each.is_global and not each.is_multicast for each in (address, *_inside(address)))


def _inside(address: Address) -> Iterable[Address]:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
        if address.sixtofour is not None:
            yield address.sixtofour
        if address.teredo is not None:
            yield from address.teredo
        if address in _NAT64:
            yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)


def blocked_by(url: str, blocked: Iterable[str]) -> str | None:
    """The entry of a block list that a URL falls under."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".").lower()
    path = unquote(parts.path).lower() or "/"
    for entry in blocked:
        own = urlsplit(entry if "//" in entry else f"//{entry}")
        domain, folder = (own.hostname or "").rstrip(".").lower(), own.path.rstrip("/").lower()
        if not domain or not (host == domain or host.endswith(f".{domain}")):
            continue
        if path == folder or path.startswith(f"{folder}/"):
            return entry
    return None
