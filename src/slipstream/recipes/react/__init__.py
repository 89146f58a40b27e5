"""Your own tasks, with any model behind an OpenAI-compatible server: the plain tool loop."""

from __future__ import annotations

import slipstream as ss


def recipe() -> ss.EvalConfig:
    return ss.EvalConfig(name="react", tasks=ss.TasksConfig(), model=ss.ModelConfig(kind="chat"))
