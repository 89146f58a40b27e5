"""Makes text safe for a terminal. Standard library only.

Text that this program did not write itself (task ids, settings, replies of a model or a server, errors of user code)
goes through `printable` or `one_line` before it is printed, and log lines through `PrintableFormatter`.
"""

from __future__ import annotations

import logging
import re

_OBEYED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff"  # control characters and lone surrogates
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # changes of text direction
    r"\u2028\u2029\ufff9-\ufffb\U000e0000-\U000e007f]"  # Unicode line ends, annotations, invisible tags
)


def printable(text: str) -> str:
    """Escape control characters and changes of direction, except tabs and line ends: `\\x1b`."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def one_line(text: str) -> str:
    """As `printable`, with tabs and line ends escaped too: for a cell of a table, a name, a sentence."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


class PrintableFormatter(logging.Formatter):
    """Makes log lines safe, which contain task ids and text from servers and tools."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_printable() -> None:
    """Send warnings of a process without a log handler to standard error, made safe."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
