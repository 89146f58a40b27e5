"""What displays share: a live picture on a terminal, lines that stay, and rows of names and values."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from slipstream.printable import one_line, printable


class Display:
    """A live picture where there is a terminal; elsewhere lines alone."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(Text("starting", style="dim"), console=self._console, transient=True)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, raised, trace)

    def say(self, line: str) -> None:
        """A line that stays."""
        try:
            self._console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
        except OSError:  # a log on a full disk
            self._console.quiet = True


def print_rows(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    """A table on a terminal, a row a line elsewhere."""
    rows = [(name, one_line(value)) for name, value in rows]
    if not console.is_terminal:
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            console.print(f"{name:<{width}}  {value}", highlight=False, markup=False, soft_wrap=True)
        return
    table = Table(show_header=False, box=box.ROUNDED)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in rows:
        table.add_row(name, Text(value))
    console.print(table)
