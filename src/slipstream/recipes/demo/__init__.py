"""The demo: 64 small file-system tasks, solved by a scripted agent in real sandboxes."""

from __future__ import annotations

from slipstream.settings import EvalConfig, ModelConfig, TasksConfig


def recipe() -> EvalConfig:
    return EvalConfig(
        name="demo",
        tasks=TasksConfig(source=f"{__name__}.tasks:demo_tasks", num=64),
        model=ModelConfig(kind="scripted", script=f"{__name__}.solver:solver", max_tokens=256),
    )
