"""The progress of making an index."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from slipstream.printable import printable
from slipstream.progress.display import LINE_EVERY_S
from slipstream.tools.search.build import BuildProgress


class IndexDisplay:
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = Bars(*columns, console=console, transient=True)
        self._bar: TaskID | None = None
        self._doing = ""
        self._next_line_s = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def show(self, progress: BuildProgress) -> None:
        new, self._doing = progress.doing != self._doing, progress.doing
        if self._console.is_terminal:
            if new and self._bar is not None:
                self._bars.remove_task(self._bar)
            if new or self._bar is None:
                self._bar = self._bars.add_task(progress.doing, total=progress.num_total)
            self._bars.update(self._bar, completed=progress.num_done)
            return
        now_s = time.monotonic()
        if new or now_s >= self._next_line_s:
            self._next_line_s = now_s + LINE_EVERY_S
            of = "" if progress.num_total is None else f" of {progress.num_total}"
            line = f"{progress.doing}: {progress.num_done}{of}"
            self._console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
