"""Prints docs/api.md: the public names of Slipstream with their signatures and docstrings.

.venv/bin/python scripts/api_page.py > docs/api.md
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType

import slipstream
from slipstream.tools.base import Tool

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Tasks": ("Task", "AgentLimits", "SandboxSpec", "SandboxLimits", "File", "load_tasks", "read_rows", "Row"),
    "Tools": ("tool", "Effect", "ToolContext", "Observation", "ContextEdit", "Finish", "Outcome", "ToolError"),
    "Built-in tools": ("bash", "python", "edit", "search", "read_file", "write_file", "finish"),
    "Research": ("search_documents", "get_document", "open_page", "make_index", "default_home"),
    "Tools without a model": ("Workbench", "TaskTools"),
    "Graders": ("exact", "f1", "math", "prints", "returns", "passes", "judge", "command", "rubric", "Verdict", "Judge"),
    "Running": ("evaluate", "evaluate_async", "train", "train_async"),
    "Settings": (
        "EvalConfig",
        "TrainConfig",
        "TasksConfig",
        "TaskSetConfig",
        "ModelConfig",
        "EngineConfig",
        "AgentConfig",
        "HintRules",
        "StuckRules",
        "SandboxConfig",
        "DispatchConfig",
        "DispatchLimits",
        "Deadlines",
        "LearnerConfig",
        "LossConfig",
        "LoraConfig",
        "SolveRateFilter",
        "DemonstrationsConfig",
        "WarmStartConfig",
    ),
    "Results": ("EvalResult", "TrainResult", "Run", "open_run", "Rollout", "Turn", "pass_at_k"),
    "Learning by example": (
        "demonstrations",
        "Demonstration",
        "DemonstrationWriter",
        "DraftDemonstration",
        "tiny_model",
        "make_tiny_model",
        "TinyShape",
        "reply_text",
    ),
    "Made tasks": ("made_tasks",),
    "Models for tests": ("act", "replies", "ScriptedCall", "Script", "Line"),
    "Conversations": ("Message", "Role", "ToolCall", "Json"),
    "Errors": ("SlipstreamError", "ConfigError", "ModelError"),
}
ALIASES: Mapping[str, str] = {
    "Outcome": "What a tool may return: `Observation | ContextEdit | Finish`, or a string, taken as an Observation.",
    "Script": "A function from a ScriptedCall to a Line.",
    "Line": "A reply of a scripted model: a Message, or raw text as a model might sample it.",
    "Json": "Any value that JSON can hold.",
}
"""Names of types, which have no docstrings."""
SHOWN_FIELDS = 40
"""A class with more is listed in docs/settings.md."""


def main() -> None:
    sys.stdout.write("\n".join(page()) + "\n")


def page() -> Iterator[str]:
    yield "# The public API"
    yield ""
    yield "`import slipstream as ss` offers these names. `scripts/api_page.py` makes this page from their docstrings."
    for title, names in SECTIONS.items():
        yield ""
        yield f"## {title}"
        for name in names:
            yield ""
            yield from entry(name, getattr(slipstream, name))


def entry(name: str, thing: object) -> Iterator[str]:
    if isinstance(thing, Tool):
        arguments = ", ".join(str(argument) for argument in _properties(thing))
        yield f"### `{name}`"
        yield ""
        yield f"Tool `{thing.spec.name}({arguments})`: {thing.spec.description}"
        return
    if name in ALIASES:
        yield f"### `{name}`"
        yield ""
        yield ALIASES[name]
        return
    if isinstance(thing, ModuleType):
        yield f"### `{name}`"
        yield ""
        yield inspect.getdoc(thing) or ""
        yield ""
        yield from (f"- `{name}.{each}`" for each in thing.__all__)
        return
    yield f"### `{name}{signature(thing)}`"
    yield ""
    doc = inspect.getdoc(thing) or ""
    if not doc.startswith(f"{name}("):  # what `dataclass` writes where nobody did
        yield doc
    if isinstance(thing, type):
        yield from members(thing)


def _properties(tool: Tool) -> list[str]:
    found = tool.spec.parameters.get("properties")
    return list(found) if isinstance(found, dict) else []


def signature(thing: object) -> str:
    if isinstance(thing, type) and not _own_new(thing):
        return ""
    if not callable(thing):
        return ""
    parameters = inspect.signature(thing.__new__ if isinstance(thing, type) else thing).parameters
    listed = [name for name in parameters if name != "cls"]
    return f"({', '.join(listed)})"


def _own_new(thing: type) -> bool:
    return "__new__" in vars(thing)


def members(thing: type) -> Iterator[str]:
    """Fields with their defaults, then methods and properties with the first line of their docstrings."""
    rows: list[str] = []
    if dataclasses.is_dataclass(thing) and not _own_new(thing):
        fields = dataclasses.fields(thing)
        if len(fields) <= SHOWN_FIELDS:
            rows += [f"- `{field.name}: {field.type}`" for field in fields]
    for name, member in vars(thing).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property) or inspect.isfunction(member):
            first = (inspect.getdoc(member) or "").split("\n\n")[0].replace("\n", " ")
            call = "" if isinstance(member, property) else "()"
            rows.append(f"- `.{name}{call}`" + (f": {first}" if first else ""))
    if rows:
        yield ""
        yield from rows


if __name__ == "__main__":
    main()
