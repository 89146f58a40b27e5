"""What every display shares: a live picture on a terminal, lines elsewhere, silence once nobody can read it."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from slipstream.printable import printable

LINE_EVERY_S = 5.0


class QuietConsole(Console):
    """Falls silent once standard error is closed: a run does not end because its display did."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def progress_console(*, quiet: bool = False) -> QuietConsole:
    """Standard error, where progress goes: standard output is for results."""
    return QuietConsole(stderr=True, quiet=quiet)


class Display:
    """A live picture where there is a terminal; elsewhere, as in a notebook or a log, lines alone."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.quiet:
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


def clock(seconds: float) -> str:
    """`0:05`, `12:40`, `3:00:00`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
