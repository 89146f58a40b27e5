"""The readable text of a page.

Input: the bytes of an HTML page. Output: its title and main text, without menus, scripts and advertisements. Invariant:
nothing on the page is fetched or run.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from slipstream.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadablePage:
    title: str
    text: str


def readable(data: bytes, *, charset: str = "", url: str = "") -> ReadablePage:
    """The main text of an HTML page; all its text if there is no main part. Links are written in full."""
    try:
        import trafilatura
        from lxml import etree, html
    except ImportError:
        raise ConfigError("reading HTML needs trafilatura: pip install 'slipstream[research]'") from None
    markup = decoded(data, charset).encode("utf-8", "replace")
    try:
        # From bytes: lxml refuses a str that declares an encoding.
        tree = html.fromstring(markup, base_url=url or None, parser=html.HTMLParser(encoding="utf-8"))
        if url:
            tree.make_links_absolute(url, handle_failures="ignore")
    except (etree.LxmlError, ValueError):
        return ReadablePage(title="", text="")
    title = " ".join((tree.findtext(".//title") or "").split())
    text = trafilatura.extract(tree, include_comments=False, include_links=True, with_metadata=False) or ""
    if not text:
        for element in list(tree.iter("script", "style", "noscript", "template")):
            element.drop_tree()
        text = re.sub(r"\s*\n\s*", "\n", tree.text_content()).strip()
    return ReadablePage(title=title, text=text)


def decoded(data: bytes, charset: str) -> str:
    """The text in some bytes; UTF-8 if the character set is unknown."""
    try:
        codecs.lookup(charset or "utf-8")
    except LookupError:
        charset = ""
    try:
        return data.decode(charset or "utf-8", "replace")
    except (ValueError, LookupError):  # a codec that is no character set, such as base64
        return data.decode("utf-8", "replace")
