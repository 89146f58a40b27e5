"""Tables on a terminal, a row a line elsewhere, so that other programs can read them."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slipstream.printable import one_line


def print_rows(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    """Names and values."""
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


def print_table(console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under heads; empty heads are left out."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    if not console.is_terminal:
        lines = [heads, *rows] if any(heads) else rows
        widths = [max(len(row[place]) for row in lines) for place in range(len(heads))]
        for row in lines:
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    table = Table(box=box.ROUNDED, show_header=any(heads))
    for head in heads:
        table.add_column(head)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
