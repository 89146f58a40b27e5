"""Slipstream trains and evaluates multi-turn, long-horizon LLM agents with reinforcement learning.

    import slipstream as ss

    @ss.tool
    def count(letter: str, word: str) -> str: ...

    tasks = [ss.Task(id="1", instruction="...", tools=[count, ss.finish], grader=ss.exact("3"))]
    ss.evaluate(tasks, model="http://localhost:8000/v1", samples=8)
    ss.train(tasks, model="Qwen/Qwen3-0.6B", steps=50)

Every name below is loaded when it is first used, so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from slipstream.agent.config import AgentConfig, StuckRules
    from slipstream.api.imitation import demonstrations, tiny_model
    from slipstream.api.runs import (
        EvalResult,
        Run,
        TrainResult,
        evaluate,
        evaluate_async,
        open_run,
        train,
        train_async,
    )
    from slipstream.api.tasks import GraderLike, Task, command, exact, f1, judge, rubric
    from slipstream.engine.inference.config import EngineConfig
    from slipstream.engine.training.config import LearnerConfig, LossConfig, WarmStartConfig
    from slipstream.errors import ConfigError, SlipstreamError, ToolError
    from slipstream.graders.base import Judge
    from slipstream.model.scripted import ScriptedCall, act, replies
    from slipstream.settings import DemonstrationsConfig, EvalConfig, ModelConfig, TasksConfig, TrainConfig
    from slipstream.tools.base import ContextEdit, Effect, Finish, Observation, ToolContext
    from slipstream.tools.bash import bash
    from slipstream.tools.codesearch.tool import search
    from slipstream.tools.define import tool
    from slipstream.tools.editor import edit
    from slipstream.tools.finish import finish
    from slipstream.tools.read_file import read_file
    from slipstream.tools.write_file import write_file
    from slipstream.types import (
        AgentLimits,
        File,
        Json,
        Message,
        Role,
        Rollout,
        SandboxLimits,
        SandboxSpec,
        Turn,
        Verdict,
    )

_HOME = {
    "slipstream.agent.config": ("AgentConfig", "StuckRules"),
    "slipstream.api.imitation": ("demonstrations", "tiny_model"),
    "slipstream.api.runs": (
        *("EvalResult", "Run", "TrainResult", "evaluate", "evaluate_async", "open_run", "train", "train_async"),
    ),
    "slipstream.api.tasks": ("GraderLike", "Task", "command", "exact", "f1", "judge", "rubric"),
    "slipstream.engine.inference.config": ("EngineConfig",),
    "slipstream.engine.training.config": ("LearnerConfig", "LossConfig", "WarmStartConfig"),
    "slipstream.errors": ("ConfigError", "SlipstreamError", "ToolError"),
    "slipstream.graders.base": ("Judge",),
    "slipstream.model.scripted": ("ScriptedCall", "act", "replies"),
    "slipstream.settings": ("DemonstrationsConfig", "EvalConfig", "ModelConfig", "TasksConfig", "TrainConfig"),
    "slipstream.tools.base": ("ContextEdit", "Effect", "Finish", "Observation", "ToolContext"),
    "slipstream.tools.bash": ("bash",),
    "slipstream.tools.codesearch.tool": ("search",),
    "slipstream.tools.define": ("tool",),
    "slipstream.tools.editor": ("edit",),
    "slipstream.tools.finish": ("finish",),
    "slipstream.tools.read_file": ("read_file",),
    "slipstream.tools.write_file": ("write_file",),
    "slipstream.types": (
        *("AgentLimits", "File", "Json", "Message", "Role", "Rollout", "SandboxLimits", "SandboxSpec", "Turn"),
        "Verdict",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AgentConfig",
    "AgentLimits",
    "ConfigError",
    "ContextEdit",
    "DemonstrationsConfig",
    "Effect",
    "EngineConfig",
    "EvalConfig",
    "EvalResult",
    "File",
    "Finish",
    "GraderLike",
    "Json",
    "Judge",
    "LearnerConfig",
    "LossConfig",
    "Message",
    "ModelConfig",
    "Observation",
    "Role",
    "Rollout",
    "Run",
    "SandboxLimits",
    "SandboxSpec",
    "ScriptedCall",
    "SlipstreamError",
    "StuckRules",
    "Task",
    "TasksConfig",
    "ToolContext",
    "ToolError",
    "TrainConfig",
    "TrainResult",
    "Turn",
    "Verdict",
    "WarmStartConfig",
    "__version__",
    "act",
    "bash",
    "command",
    "demonstrations",
    "edit",
    "evaluate",
    "evaluate_async",
    "exact",
    "f1",
    "finish",
    "judge",
    "open_run",
    "read_file",
    "replies",
    "rubric",
    "search",
    "tiny_model",
    "tool",
    "train",
    "train_async",
    "write_file",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
