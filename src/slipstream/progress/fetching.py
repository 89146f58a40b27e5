"""The progress of a model's download."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from slipstream.hub import FetchProgress
from slipstream.printable import printable
from slipstream.progress.display import LINE_EVERY_S


class FetchDisplay:
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self.num_shown = 0
        self._console = console
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
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

    def say(self, line: str) -> None:
        try:
            self._console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
        except OSError:  # a log on a full disk
            self._console.quiet = True

    def show(self, progress: FetchProgress) -> None:
        self.num_shown += 1
        new, self._doing = progress.doing != self._doing, progress.doing
        if not self._console.is_terminal:
            self._show_line(progress, new)
            return
        if new and self._bar is not None:
            self._bars.remove_task(self._bar)
        if new or self._bar is None:
            self._bar = self._bars.add_task(progress.doing, total=progress.num_total)
        self._bars.update(self._bar, completed=progress.num_done)

    def _show_line(self, progress: FetchProgress, new: bool) -> None:
        now_s = time.monotonic()
        if new or now_s >= self._next_line_s:
            self._next_line_s = now_s + LINE_EVERY_S
            num_done_mb, num_total_mb = progress.num_done // 1_000_000, progress.num_total // 1_000_000
            self.say(f"{progress.doing}: {num_done_mb} of {num_total_mb} MB")
