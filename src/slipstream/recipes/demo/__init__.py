"""The demo: 64 small file-system tasks, solved by a scripted agent in real sandboxes."""

from __future__ import annotations

import slipstream as ss


def recipe() -> ss.EvalConfig:
    return ss.EvalConfig(
        name="demo",
        tasks=ss.TasksConfig(source=f"{__name__}.tasks:demo_tasks", num=64),
        model=ss.ModelConfig(kind="scripted", script=f"{__name__}.solver:solver", max_tokens=256),
    )
