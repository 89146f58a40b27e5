"""Your own tasks, with any model behind an OpenAI-compatible server: the plain tool loop."""

from __future__ import annotations

from slipstream.settings import EvalConfig, ModelConfig, TasksConfig


def recipe() -> EvalConfig:
    return EvalConfig(name="react", tasks=TasksConfig(), model=ModelConfig(kind="chat"))
