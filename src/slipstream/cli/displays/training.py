"""How a training run looks: a live display on a terminal, a line a step elsewhere; then a table, or JSON."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich import box
from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table

from slipstream.agent.config import HintRules
from slipstream.cli.displays.display import Display, print_rows
from slipstream.cli.displays.evaluation import LINE_EVERY_S, clock
from slipstream.config import overrides_between
from slipstream.recipes import find_recipe
from slipstream.settings import EvalConfig, TrainConfig
from slipstream.training.loop import TrainProgress
from slipstream.training.policy import WarmProgress
from slipstream.training.run import TrainReport

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
"""What of a step's metrics is shown, and under which name."""
NUM_STEPS_SHOWN = 12
_RECIPE = "react"
"""What a trained model is evaluated with: tasks and a model, and nothing set but that."""


class TrainDisplay(Display):
    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._start_s = time.monotonic()
        self._rows: dict[int, list[str]] = {}
        self._told: tuple[int, int] = (-1, -1)
        self._warm_line_s = -LINE_EVERY_S

    def show(self, progress: TrainProgress) -> None:
        if progress.metrics:
            self._rows[progress.version] = [_figure(progress.metrics.get(name)) for name in SHOWN]
        if self._live is not None:
            self._live.update(self._picture(progress))
            return
        at = (progress.version, len(progress.held_out))
        if at == self._told:
            return
        self._told = at
        figures = ", ".join(
            f"{label} {_figure(progress.metrics[name])}" for name, label in SHOWN.items() if name in progress.metrics
        )
        held_out = progress.held_out.get(progress.version)
        solved = "" if held_out is None else f"; held-out success {held_out:.3f}"
        self.say(f"step {progress.version}/{progress.steps}{': ' if figures else ''}{figures}{solved}")

    def show_warm(self, progress: WarmProgress) -> None:
        """Where the warm start stands: a picture on a terminal, elsewhere a line every few seconds."""
        left = "?" if progress.seconds_left is None else clock(progress.seconds_left)
        told = f"loss {progress.loss:.3f}, {left} left"
        if self._live is not None:
            top = Table.grid(padding=(0, 2))
            bar = ProgressBar(total=progress.steps, completed=progress.step, width=40)
            top.add_row(bar, f"warm start {progress.step}/{progress.steps}", f"[dim]{told}[/]")
            self._live.update(top)
            return
        now_s = time.monotonic()
        if progress.step == progress.steps or now_s - self._warm_line_s >= LINE_EVERY_S:
            self._warm_line_s = now_s
            self.say(f"warm start {progress.step}/{progress.steps}: {told}")

    def _picture(self, progress: TrainProgress) -> Group:
        top = Table.grid(padding=(0, 2))
        view = progress.view
        top.add_row(
            ProgressBar(total=max(1, progress.steps), completed=progress.version, width=40),
            f"step {progress.version}/{progress.steps}",
            f"[bold]{progress.doing}[/]",
            f"[dim]init {view.initialising}  run {view.running}  grade {view.grading}[/]",
            f"[dim]{clock(time.monotonic() - self._start_s)}[/]",
        )
        table = Table(box=box.SIMPLE, pad_edge=False)
        for name in ("step", *SHOWN.values(), "held-out"):
            table.add_column(name, justify="right")
        for version, figures in list(self._rows.items())[-NUM_STEPS_SHOWN:]:
            held_out = progress.held_out.get(version)
            table.add_row(str(version), *figures, "" if held_out is None else f"[green]{held_out:.3f}[/]")
        return Group(top, table)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def evaluation_of(config: TrainConfig, trained: Path) -> list[str] | None:
    """The arguments of `slipstream` that evaluate what a run trained as the run itself did; None if it is no folder
    that can be evaluated. The prompt settings are not among them: the folder carries those."""
    if config.bridge != "local":
        return None
    wanted = EvalConfig(
        name=_RECIPE,
        tasks=config.held_out if config.held_out.source else config.tasks,
        model=replace(config.model, make="", folder=str(trained), family="auto", family_args={}, thinking="auto"),
        agent=replace(config.agent, prompt="auto", hints=HintRules()),
        sandbox=config.sandbox,
        dispatch=config.dispatch,
        samples=config.eval_samples,
        seed=config.seed,
        solved_at=config.solved_at,
    )
    base = find_recipe(_RECIPE)
    assert isinstance(base, EvalConfig)
    return ["eval", _RECIPE, *overrides_between(base, wanted)]


def _spoken(arguments: Sequence[str] | None) -> str:
    return "" if arguments is None else shlex.join(["slipstream", *arguments])


def report_json(report: TrainReport, folder: Path, evaluation: Sequence[str] | None = None) -> str:
    return json.dumps(
        {
            "run": str(folder),
            "success_before": report.success_before,
            "success_after": report.success_after,
            "success_sft_only": report.success_sft_only,
            "success_shuffled_reward": report.success_shuffled_reward,
            "steps": report.steps,
            "steps_without_signal": report.num_flat,
            "seconds": round(report.seconds, 1),
            "success": {str(version): success for version, success in sorted(report.success.items())},
            "trained": str(report.trained),
            "curve": str(report.curve),
            "evaluate": _spoken(evaluation) or None,
        },
        indent=2,
    )


def print_training(
    console: Console, report: TrainReport, folder: Path, evaluation: Sequence[str] | None = None
) -> None:
    rows = [
        ("before", _success(report.success_before)),
        ("after", _success(report.success_after)),
        ("warm start continued", _success(report.success_sft_only)),
        ("shuffled rewards", _success(report.success_shuffled_reward)),
        ("steps", str(report.steps) + _without_signal(report)),
        ("time", clock(report.seconds)),
        ("trained model", str(report.trained)),
        ("curve", str(report.curve)),
        ("look at it", f"slipstream show {shlex.quote(str(folder))}"),
        ("evaluate it", _spoken(evaluation)),
    ]
    print_rows(console, [(name, value) for name, value in rows if value])


def _without_signal(report: TrainReport) -> str:
    return f", of which {report.num_flat} had nothing to learn from" if report.num_flat else ""


def _success(success: float | None) -> str:
    return "" if success is None else f"{success:.3f} of the held-out tasks solved"
