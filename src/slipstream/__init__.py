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
    from slipstream.agent.config import AgentConfig, HintRules, StuckRules
    from slipstream.api import made_tasks
    from slipstream.api.demonstrations import Demonstration, DemonstrationWriter, DraftDemonstration
    from slipstream.api.imitation import demonstrations, tiny_model
    from slipstream.api.runs import EvalResult, Run, TrainResult, evaluate, evaluate_async, open_run, train, train_async
    from slipstream.api.tasks import Task, command, exact, f1, judge, load_tasks, math, passes, prints, returns, rubric
    from slipstream.api.workbench import TaskTools, Workbench
    from slipstream.dispatch.base import Deadlines, DispatchLimits
    from slipstream.engine.inference.config import EngineConfig
    from slipstream.engine.training.config import LearnerConfig, LoraConfig, LossConfig, WarmStartConfig
    from slipstream.errors import ConfigError, ModelError, SlipstreamError, ToolError
    from slipstream.evaluation import pass_at_k
    from slipstream.feed import SolveRateFilter
    from slipstream.graders.base import Judge
    from slipstream.hub.places import default_home
    from slipstream.hub.tiny import TinyShape, make_tiny_model
    from slipstream.model.scripted import Line, Script, ScriptedCall, act, replies
    from slipstream.render.formats.chatml import reply_text
    from slipstream.settings import (
        DemonstrationsConfig,
        DispatchConfig,
        EvalConfig,
        ModelConfig,
        SandboxConfig,
        TasksConfig,
        TaskSetConfig,
        TrainConfig,
    )
    from slipstream.tasks.swe.rows import Row, read_rows
    from slipstream.tools.base import ContextEdit, Effect, Finish, Observation, Outcome, ToolContext
    from slipstream.tools.bash import bash
    from slipstream.tools.codesearch.tool import search
    from slipstream.tools.define import tool
    from slipstream.tools.editor import edit
    from slipstream.tools.finish import finish
    from slipstream.tools.python.tool import python
    from slipstream.tools.read_file import read_file
    from slipstream.tools.search.build import make_index
    from slipstream.tools.search.tool import get_document, search_documents
    from slipstream.tools.web.tool import open_page
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
        ToolCall,
        Turn,
        Verdict,
    )

_HOME = {
    "slipstream.agent.config": ("AgentConfig", "HintRules", "StuckRules"),
    "slipstream.api": ("made_tasks",),
    "slipstream.api.demonstrations": ("Demonstration", "DemonstrationWriter", "DraftDemonstration"),
    "slipstream.api.imitation": ("demonstrations", "tiny_model"),
    "slipstream.api.runs": (
        *("EvalResult", "Run", "TrainResult", "evaluate", "evaluate_async", "open_run", "train", "train_async"),
    ),
    "slipstream.api.tasks": (
        *("Task", "command", "exact", "f1", "judge", "load_tasks", "math", "passes", "prints"),
        "returns",
        "rubric",
    ),
    "slipstream.api.workbench": ("TaskTools", "Workbench"),
    "slipstream.dispatch.base": ("Deadlines", "DispatchLimits"),
    "slipstream.engine.inference.config": ("EngineConfig",),
    "slipstream.engine.training.config": ("LearnerConfig", "LoraConfig", "LossConfig", "WarmStartConfig"),
    "slipstream.errors": ("ConfigError", "ModelError", "SlipstreamError", "ToolError"),
    "slipstream.evaluation": ("pass_at_k",),
    "slipstream.feed": ("SolveRateFilter",),
    "slipstream.graders.base": ("Judge",),
    "slipstream.hub.places": ("default_home",),
    "slipstream.hub.tiny": ("TinyShape", "make_tiny_model"),
    "slipstream.model.scripted": ("Line", "Script", "ScriptedCall", "act", "replies"),
    "slipstream.render.formats.chatml": ("reply_text",),
    "slipstream.settings": (
        *("DemonstrationsConfig", "DispatchConfig", "EvalConfig"),
        *("ModelConfig", "SandboxConfig", "TaskSetConfig", "TasksConfig", "TrainConfig"),
    ),
    "slipstream.tasks.swe.rows": ("Row", "read_rows"),
    "slipstream.tools.base": ("ContextEdit", "Effect", "Finish", "Observation", "Outcome", "ToolContext"),
    "slipstream.tools.bash": ("bash",),
    "slipstream.tools.codesearch.tool": ("search",),
    "slipstream.tools.define": ("tool",),
    "slipstream.tools.editor": ("edit",),
    "slipstream.tools.finish": ("finish",),
    "slipstream.tools.python.tool": ("python",),
    "slipstream.tools.read_file": ("read_file",),
    "slipstream.tools.search.build": ("make_index",),
    "slipstream.tools.search.tool": ("get_document", "search_documents"),
    "slipstream.tools.web.tool": ("open_page",),
    "slipstream.tools.write_file": ("write_file",),
    "slipstream.types": (
        *("AgentLimits", "File", "Json", "Message", "Role"),
        *("Rollout", "SandboxLimits", "SandboxSpec", "ToolCall", "Turn", "Verdict"),
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AgentConfig",
    "AgentLimits",
    "ConfigError",
    "ContextEdit",
    "Deadlines",
    "Demonstration",
    "DemonstrationWriter",
    "DemonstrationsConfig",
    "DispatchConfig",
    "DispatchLimits",
    "DraftDemonstration",
    "Effect",
    "EngineConfig",
    "EvalConfig",
    "EvalResult",
    "File",
    "Finish",
    "HintRules",
    "Json",
    "Judge",
    "LearnerConfig",
    "Line",
    "LoraConfig",
    "LossConfig",
    "Message",
    "ModelConfig",
    "ModelError",
    "Observation",
    "Outcome",
    "Role",
    "Rollout",
    "Row",
    "Run",
    "SandboxConfig",
    "SandboxLimits",
    "SandboxSpec",
    "Script",
    "ScriptedCall",
    "SlipstreamError",
    "SolveRateFilter",
    "StuckRules",
    "Task",
    "TaskSetConfig",
    "TaskTools",
    "TasksConfig",
    "TinyShape",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "TrainConfig",
    "TrainResult",
    "Turn",
    "Verdict",
    "WarmStartConfig",
    "Workbench",
    "__version__",
    "act",
    "bash",
    "command",
    "default_home",
    "demonstrations",
    "edit",
    "evaluate",
    "evaluate_async",
    "exact",
    "f1",
    "finish",
    "get_document",
    "judge",
    "load_tasks",
    "made_tasks",
    "make_index",
    "make_tiny_model",
    "math",
    "open_page",
    "open_run",
    "pass_at_k",
    "passes",
    "prints",
    "python",
    "read_file",
    "read_rows",
    "replies",
    "reply_text",
    "returns",
    "rubric",
    "search",
    "search_documents",
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
    home = import_module(_MODULE_OF[name])
    found = getattr(home, name) if hasattr(home, name) else import_module(f"{home.__name__}.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
