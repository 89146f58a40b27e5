"""Tools: what an agent can do. `Toolset.named(("bash", "finish"))`; `open` it for a rollout and `run` its calls."""

from slipstream.tools.base import (
    ContextEdit,
    Effect,
    Finish,
    Hint,
    NestedModel,
    Observation,
    Outcome,
    Tool,
    ToolContext,
)
from slipstream.tools.cut import cut_middle
from slipstream.tools.define import TypedTool, class_tool, tool
from slipstream.tools.registry import TOOLS, resolve
from slipstream.tools.toolset import CallResult, OpenToolset, Toolset

__all__ = [
    "TOOLS",
    "CallResult",
    "ContextEdit",
    "Effect",
    "Finish",
    "Hint",
    "NestedModel",
    "Observation",
    "OpenToolset",
    "Outcome",
    "Tool",
    "ToolContext",
    "Toolset",
    "TypedTool",
    "class_tool",
    "cut_middle",
    "resolve",
    "tool",
]
