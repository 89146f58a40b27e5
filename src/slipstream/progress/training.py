"""The progress of a training run: a table of its last steps on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rich import box
from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table

from slipstream.dispatch.base import DispatchView
from slipstream.progress.display import LINE_EVERY_S, Display, clock
from slipstream.training.loop import TrainProgress
from slipstream.training.policy import WarmProgress

SHOWN: Mapping[str, str] = {
    "reward/mean": "reward",
    "turns/mean": "turns",
    "learn/entropy": "entropy",
    "learn/ratio_max": "ratio max",
    "learn/engine_diff_mean": "engine diff",
    "learn/policy_drift_mean": "drift",
    "learn/grad_norm": "grad norm",
    "versions/lag_mean": "lag",
}
"""The metrics of a step that are shown, and their labels."""
NUM_STEPS_SHOWN = 12
SILENT_S = 10.0
"""Without a terminal: a step that takes longer says what it is doing, this often."""


class TrainDisplay(Display):
    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console)
        self._now = now
        self._start_s = now()
        self._rows: dict[int, list[str]] = {}
        self._told: tuple[int, int] = (-1, -1)
        self._last_line_s = self._start_s
        self._warm_line_s = -LINE_EVERY_S

    def show(self, progress: TrainProgress) -> None:
        if progress.metrics:
            self._rows[progress.version] = [figure(progress.metrics.get(name)) for name in SHOWN]
        if self._live is not None:
            self._live.update(self._picture(progress))
            return
        now_s = self._now()
        at = (progress.version, len(progress.held_out))
        if at == self._told:
            if now_s - self._last_line_s >= SILENT_S:
                self._last_line_s = now_s
                self.say(f"step {progress.version}/{progress.steps}: {progress.doing}; {_counts(progress.view)}")
            return
        self._told, self._last_line_s = at, now_s
        figures = ", ".join(
            f"{label} {figure(progress.metrics[name])}" for name, label in SHOWN.items() if name in progress.metrics
        )
        held_out = progress.held_out.get(progress.version)
        solved = "" if held_out is None else f"; held-out success {held_out:.3f}{_between(progress)}"
        self.say(f"step {progress.version}/{progress.steps}{': ' if figures else ''}{figures}{solved}")

    def show_warm(self, progress: WarmProgress) -> None:
        """The progress of the warm start: a picture on a terminal, elsewhere a line every few seconds."""
        left = "?" if progress.seconds_left is None else clock(progress.seconds_left)
        loss_and_time = f"loss {progress.loss:.3f}, {left} left"
        if self._live is not None:
            top = Table.grid(padding=(0, 2))
            bar = ProgressBar(total=progress.steps, completed=progress.step, width=40)
            top.add_row(bar, f"warm start {progress.step}/{progress.steps}", f"[dim]{loss_and_time}[/]")
            self._live.update(top)
            return
        now_s = self._now()
        if progress.step == progress.steps or now_s - self._warm_line_s >= LINE_EVERY_S:
            self._warm_line_s = now_s
            self.say(f"warm start {progress.step}/{progress.steps}: {loss_and_time}")

    def _picture(self, progress: TrainProgress) -> Group:
        top = Table.grid(padding=(0, 2))
        top.add_row(
            ProgressBar(total=max(1, progress.steps), completed=progress.version, width=40),
            f"step {progress.version}/{progress.steps}",
            f"[bold]{progress.doing}[/]",
            f"[dim]{_counts(progress.view)}[/]",
            f"[dim]{clock(self._now() - self._start_s)}[/]",
        )
        table = Table(box=box.SIMPLE, pad_edge=False)
        for name in ("step", *SHOWN.values(), "held-out"):
            table.add_column(name, justify="right")
        for version, figures in list(self._rows.items())[-NUM_STEPS_SHOWN:]:
            held_out = progress.held_out.get(version)
            table.add_row(str(version), *figures, "" if held_out is None else f"[green]{held_out:.3f}[/]")
        return Group(top, table)


def figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _between(progress: TrainProgress) -> str:
    interval = progress.intervals.get(progress.version)
    return "" if interval is None else f" ({interval[0]:.3f} to {interval[1]:.3f})"


def _counts(view: DispatchView) -> str:
    return f"init {view.initialising}, run {view.running}, grade {view.grading}"
