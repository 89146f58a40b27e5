"""The readable text of a page.

Input: the bytes of an HTML page. Output: its title and main text, without menus, scripts and advertisements. Invariant:
nothing on the page is fetched or run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slipstream.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadablePage:
    title: str
    text: str


def readable(data: bytes, *, charset: str = "") -> ReadablePage:
    """The main text of an HTML page; all its text if there is no main part."""
    try:
        import trafilatura
        from lxml import etree, html
    except ImportError:
        raise ConfigError("reading HTML needs trafilatura: pip install 'slipstream[research]'") from None
    markup = data.decode(charset or "utf-8", "replace")
    try:
        # From bytes: lxml refuses a str that declares an encoding.
        tree = html.fromstring(markup.encode("utf-8", "replace"), parser=html.HTMLParser(encoding="utf-8"))
    except (etree.LxmlError, ValueError):
        return ReadablePage(title="", text="")
    title = " ".join((tree.findtext(".//title") or "").split())
    text = trafilatura.extract(tree, include_comments=False, include_links=True, with_metadata=False) or ""
    if not text:
        for element in list(tree.iter("script", "style", "noscript", "template")):
            element.drop_tree()
        text = re.sub(r"[ \t]*\n\s*", "\n", tree.text_content()).strip()
    return ReadablePage(title=title, text=text)
