"""How a running evaluation looks: a live display on a terminal, plain lines elsewhere. Always on standard error."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from slipstream.evaluate import Progress

LINE_EVERY_S = 5.0


class ProgressDisplay:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._start_s = time.monotonic()
        self._last_line_s = -LINE_EVERY_S

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, raised, trace)

    def show(self, progress: Progress) -> None:
        now_s = time.monotonic()
        if self._live is not None:
            self._live.update(self._table(progress, now_s))
        elif now_s - self._last_line_s >= LINE_EVERY_S or _finished(progress):
            self._last_line_s = now_s
            self._console.print(self._line(progress, now_s), highlight=False, soft_wrap=True)

    def _table(self, progress: Progress, now_s: float) -> Table:
        view = progress.view
        table = Table(box=None, pad_edge=False)
        for name in ("waiting", "init", "ready", "run", "ended", "grade", "done", "solved", "untrusted", "left"):
            table.add_column(name, justify="right", min_width=6)
        table.add_row(
            str(view.waiting),
            str(view.initialising),
            str(view.ready),
            str(view.running),
            str(view.ended),
            str(view.grading),
            f"{progress.before + view.done}/{progress.total}",
            str(progress.num_solved),
            str(progress.num_untrusted),
            self._time_left(progress, now_s),
        )
        return table

    def _line(self, progress: Progress, now_s: float) -> str:
        view = progress.view
        return (
            f"{progress.before + view.done}/{progress.total} done, {progress.num_solved} solved, "
            f"{progress.num_untrusted} untrusted; {view.waiting} waiting, {view.initialising} in init, "
            f"{view.ready} ready, {view.running} in run, {view.ended} ended, {view.grading} in grade; "
            f"{self._time_left(progress, now_s)} left"
        )

    def _time_left(self, progress: Progress, now_s: float) -> str:
        done = progress.view.done
        if not done:
            return "?"
        seconds = (now_s - self._start_s) / done * (progress.total - progress.before - done)
        minutes, seconds = divmod(round(seconds), 60)
        return f"{minutes}:{seconds:02d}"


def _finished(progress: Progress) -> bool:
    return progress.before + progress.view.done == progress.total
