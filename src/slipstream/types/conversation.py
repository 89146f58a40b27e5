"""Messages, tool calls and the tools that a model is told of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from slipstream.types.ids import Json


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class CallProblem(StrEnum):
    """What is wrong with a malformed tool call."""

    BAD_JSON = "bad_json"
    UNCLOSED = "unclosed"
    NO_NAME = "no_name"
    BAD_SHAPE = "bad_shape"
    TOO_DEEP = "too_deep"
    SEVERAL = "several"
    """Several calls in one reply, in a chat format that has one."""


MAX_CALL_DEPTH = 64
"""How deep the arguments of a call may be nested: whatever copies, stores or sends them recurses, and a model may
write more levels than Python's stack has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call as the model wrote it. With a problem set, only `raw` is certain."""

    id: str
    name: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    problem: CallProblem | None = None
    raw: str = ""

    def __post_init__(self) -> None:
        """Every call a model writes becomes one of these, so arguments that something later would fail on are dropped
        here, and the call gets a problem."""
        problem = _problem_with(self.arguments)
        if problem is not None:
            object.__setattr__(self, "arguments", {})
            object.__setattr__(self, "problem", self.problem or problem)


def _problem_with(arguments: Mapping[str, Json]) -> CallProblem | None:
    level: list[Json] = list(arguments.values())
    for _ in range(MAX_CALL_DEPTH):
        if any(isinstance(value, float) and not math.isfinite(value) for value in level):
            return CallProblem.BAD_JSON  # NaN, Infinity and 1e999, which Python reads and JSON cannot say
        nested = [value for value in level if isinstance(value, dict | list)]
        if not nested:
            return None
        level = [inner for value in nested for inner in (value.values() if isinstance(value, dict) else value)]
    return CallProblem.TOO_DEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    data: bytes
    media_type: str = "image/png"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation. `calls` and `thinking` are an assistant's, `call_id` and `name` a tool's."""

    role: Role
    content: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""
    images: tuple[Image, ...] = ()
    hints: tuple[str, ...] = ()
    """The names of the hints that a tool's content ends with."""
    is_error: bool = False
    """A tool's: the call did not do what was asked. The model reads the content alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as described to a model."""

    name: str
    description: str
    parameters: Mapping[str, Json]
