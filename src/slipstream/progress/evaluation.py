"""The progress of an evaluation."""

from __future__ import annotations

import time
from collections import deque

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table

from slipstream.evaluation import EvalProgress
from slipstream.progress.display import LINE_EVERY_S, Display, clock

RATE_OVER_S = 60.0
"""The time left is estimated from what finished in the last minute."""


class EvalDisplay(Display):
    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._start_s = time.monotonic()
        self._last_line_s = -LINE_EVERY_S
        self._pace = Pace()

    def show(self, progress: EvalProgress) -> None:
        now_s = time.monotonic()
        self._pace.note(now_s, progress.view.done)
        left = self._pace.left(_num_left(progress))
        if self._live is not None:
            self._live.update(_picture(progress, clock(now_s - self._start_s), left))
        elif now_s - self._last_line_s >= LINE_EVERY_S or not _num_left(progress):
            self._last_line_s = now_s
            self.say(_line(progress, left))


class Pace:
    """How fast jobs finish, counted from the first that did: the time before it is start-up."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now_s: float, num_done: int) -> None:
        if not num_done:
            return
        self._seen.append((now_s, num_done))
        while now_s - self._seen[0][0] > RATE_OVER_S and len(self._seen) > 2:
            self._seen.popleft()

    def left(self, num_left: int) -> str:
        """`1:40`, or `?` while it is not known."""
        if not num_left:
            return "0:00"
        if len(self._seen) < 2:
            return "?"
        (start_s, num_before), (now_s, num_now) = self._seen[0], self._seen[-1]
        if num_now == num_before:
            return "?"
        return clock((now_s - start_s) / (num_now - num_before) * num_left)


def _stages(progress: EvalProgress) -> dict[str, int]:
    view = progress.view
    return {
        "waiting": view.waiting,
        "init": view.initialising,
        "ready": view.ready,
        "run": view.running,
        "ended": view.ended,
        "grade": view.grading,
    }


def _num_left(progress: EvalProgress) -> int:
    return progress.total - progress.before - progress.view.done


def _picture(progress: EvalProgress, elapsed: str, left: str) -> Group:
    done = progress.before + progress.view.done
    top = Table.grid(padding=(0, 2))
    top.add_row(
        ProgressBar(total=progress.total, completed=done, width=40),
        f"{done}/{progress.total} done",
        f"[green]{progress.num_solved} solved[/]",
        f"[red]{progress.num_untrusted} untrusted[/]" if progress.num_untrusted else "",
        f"[dim]{elapsed} gone, {left} left[/]",
    )
    counts = _stages(progress)
    stages = Table.grid(padding=(0, 2))
    for _ in counts:
        stages.add_column(justify="right", min_width=7)
    stages.add_row(*(f"[dim]{name}[/]" for name in counts))
    stages.add_row(*(str(number) for number in counts.values()))
    return Group(top, stages)


def _line(progress: EvalProgress, left: str) -> str:
    done = progress.before + progress.view.done
    start = f"{done}/{progress.total} done, {progress.num_solved} solved, {progress.num_untrusted} untrusted"
    if not _num_left(progress):
        return start
    stages = ", ".join(f"{name} {number}" for name, number in _stages(progress).items())
    return f"{start}; {stages}; {left} left"
