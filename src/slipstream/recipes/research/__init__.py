"""Deep research: search, read pages, answer. The sample is an invented encyclopedia, with a scripted agent."""

from __future__ import annotations

import slipstream as ss


def recipe() -> ss.EvalConfig:
    """Needs 90 MB for the encoder the first time."""
    return ss.EvalConfig(
        name="research",
        tasks=ss.TasksConfig(source=f"{__name__}.tasks:research_tasks", num=16),
        model=ss.ModelConfig(kind="scripted", script=f"{__name__}.solver:solver", max_tokens=1_024),
    )
