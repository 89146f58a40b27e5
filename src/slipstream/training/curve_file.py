"""The learning curve of a run as a file, redrawn after every step and every evaluation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from slipstream.training.curve import Curve, draw_curves
from slipstream.training.loop import TrainProgress

log = logging.getLogger(__name__)

SUCCESS, REWARD = "held-out success, 95 % interval", "mean reward of each step"


class CurveFile:
    """`curve.svg` of a run. If it cannot be written, the log says so and the run continues."""

    def __init__(self, path: Path, name: str) -> None:
        """`name`: of the run, for the title."""
        self.path = path
        self._name = name

    def watching(self, on_progress: Callable[[TrainProgress], None]) -> Callable[[TrainProgress], None]:
        """`on_progress`, plus a redraw whenever there is a new step or a new evaluation on the held-out tasks."""
        drawn = (0, 0)

        def watched(progress: TrainProgress) -> None:
            nonlocal drawn
            if (there := (len(progress.held_out), len(progress.rewards))) != drawn:
                drawn = there
                self.draw(run_curves(progress.held_out, progress.intervals, progress.rewards, progress.held_out_sets))
            on_progress(progress)

        return watched

    def draw(self, curves: Mapping[str, Curve]) -> None:
        """Draw all curves that have a point."""
        with_points = {label: curve for label, curve in curves.items() if curve.points}
        try:
            self.path.write_text(draw_curves(self._name, with_points, x_label="step"))
        except OSError as raised:
            log.warning("the curve cannot be written to %s: %s", self.path, raised)


def run_curves(
    success: Mapping[int, float],
    intervals: Mapping[int, tuple[float, float]],
    rewards: Mapping[int, float],
    sets: Mapping[str, Mapping[int, float]],
) -> dict[str, Curve]:
    """Success and its intervals by version, that of each set of a mixture too; rewards by step, which is the version
    that earned them."""
    return {
        SUCCESS: success_curve(success, intervals),
        REWARD: Curve(points=sorted(rewards.items()), is_faint=True),
        **{name: success_curve(by_version, {}) for name, by_version in sets.items()},
    }


def success_curve(success: Mapping[int, float], intervals: Mapping[int, tuple[float, float]]) -> Curve:
    return Curve(points=sorted(success.items()), intervals={float(at): each for at, each in intervals.items()})
