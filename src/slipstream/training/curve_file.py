"""The learning curve of a run as a file, redrawn after every evaluation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from slipstream.training.curve import draw_curves
from slipstream.training.loop import TrainProgress

log = logging.getLogger(__name__)


class CurveFile:
    """`curve.svg` of a run. If it cannot be written, the log says so and the run continues."""

    def __init__(self, path: Path, name: str) -> None:
        """`name`: of the run, for the title."""
        self.path = path
        self._name = name

    def watching(self, on_progress: Callable[[TrainProgress], None]) -> Callable[[TrainProgress], None]:
        """`on_progress`, plus a redraw whenever there is a new evaluation on the held-out tasks."""
        num_drawn = 0

        def watched(progress: TrainProgress) -> None:
            nonlocal num_drawn
            if len(progress.held_out) > num_drawn:
                num_drawn = len(progress.held_out)
                self.draw({"held-out success": progress.held_out, **progress.held_out_sets})
            on_progress(progress)

        return watched

    def draw(self, curves: Mapping[str, Mapping[int, float]]) -> None:
        """Draw the success by version of each of `curves`; those without a point are left out."""
        points = {label: sorted(success.items()) for label, success in curves.items() if success}
        try:
            self.path.write_text(draw_curves(f"{self._name}: success on held-out tasks", points, x_label="step"))
        except OSError as raised:
            log.warning("the curve cannot be written to %s: %s", self.path, raised)
