"""Graders that are plain functions, and rubrics made of several graders.

    def grade(answer: str, task: Task) -> float:
        return float(answer.strip() == task.extra["expected"])

    {"kind": "function", "function": "my_tasks:grade", "extra": {"expected": "3"}}
    {"kind": "rubric", "parts": [{"name": "right", "weight": 3, "grading": {"kind": "exact", "expected": "3"}}, ...]}

A function gets what it needs by parameter name (`OFFERED`), is plain or async, and returns a number, named numbers
or a Verdict. A plain function runs in a thread. A rubric's reward is the weighted mean of its parts' rewards.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field, JsonValue

from slipstream.errors import ConfigError
from slipstream.graders.base import GradeContext, Grader, TimedGrader, as_verdict, grade_work, needs_sandbox
from slipstream.graders.spec import GraderSpec, read_spec
from slipstream.names import did_you_mean, load_object
from slipstream.types import Artifact, Grading, Json, Message, Role, ToolCall, Verdict

OFFERED: Mapping[str, str] = {
    "answer": "the agent's final answer; empty if it gave none",
    "files": "the files that the task names as the work, by path, as bytes",
    "patch": "the changes to the folder that the task names as the work, as bytes",
    "messages": "the conversation",
    "turns": "every model call, with its tokens",
    "tool_calls": "the calls that the agent made, in order",
    "task": "the task, with its `extra`",
    "extra": "the task's `extra`, by itself",
    "model": "a model to judge with: `await model.ask(messages, max_tokens=...)`",
}
"""The parameters that a grading function may have."""


class FunctionSpec(GraderSpec):
    function: str
    """`package.module:function` or `file.py:function`."""
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    """What the function needs to know and the agent must not."""


class FunctionGrader:
    needs_sandbox = False

    def check(self, spec: Mapping[str, Json]) -> None:
        _load(read_spec("function", FunctionSpec, spec).function)

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        spec = read_spec("function", FunctionSpec, grading.spec)
        function, wanted = _load(spec.function)
        offers: Mapping[str, Callable[[], object]] = {
            "answer": lambda: artifact.answer or "",
            "files": lambda: artifact.files,
            "patch": lambda: artifact.patch,
            "messages": lambda: context.messages,
            "turns": lambda: context.turns,
            "tool_calls": lambda: _calls(context.messages),
            "task": lambda: context.task,
            "extra": lambda: spec.extra,
            "model": lambda: context.judge,
        }
        given = {name: offers[name]() for name in wanted}
        if inspect.iscoroutinefunction(function):
            returned = await function(**given)
        else:
            returned = await asyncio.to_thread(function, **given)
        return as_verdict(returned, f"grader {spec.function}")


def _load(name: str) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """The function, and the offered parameters that it takes."""
    function = load_object(name, "grader")
    if not callable(function):
        raise ConfigError(f'grader "{name}" is a {type(function).__name__}: name a function')
    parameters = inspect.signature(function).parameters.values()
    wanted = []
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in OFFERED and parameter.kind is not parameter.POSITIONAL_ONLY:
            wanted.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise ConfigError(
                f'grader "{name}" asks for "{parameter.name}"{did_you_mean(parameter.name, OFFERED)}: '
                f"a grader may ask for {', '.join(OFFERED)}"
            )
    return function, tuple(wanted)


def _calls(messages: tuple[Message, ...]) -> tuple[ToolCall, ...]:
    return tuple(call for message in messages if message.role is Role.ASSISTANT for call in message.calls)


class RubricPart(GraderSpec):
    name: str
    """The name of its reward component."""
    weight: float = Field(default=1.0, gt=0)
    grading: dict[str, JsonValue]
    """As in a task: the kind, and what that grader needs."""

    def as_grading(self, extra: Mapping[str, Json]) -> Grading:
        spec: dict[str, Json] = dict(self.grading)
        kind = str(spec.pop("kind", ""))
        if kind == "function" and "extra" not in spec:
            spec["extra"] = dict(extra)
        return Grading(kind=kind, spec=spec)


class RubricSpec(GraderSpec):
    parts: list[RubricPart] = Field(min_length=1)
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    """Passed to the parts that are functions."""


class Rubric:
    """Several graders, weighted."""

    def __init__(self, find: Callable[[str], Grader]) -> None:
        self._find = find
        self.needs_sandbox = True
        """At most: `needs_sandbox_for` decides for each grading."""

    def check(self, spec: Mapping[str, Json]) -> None:
        read = read_spec("rubric", RubricSpec, spec)
        names = [part.name for part in read.parts]
        if len(set(names)) != len(names):
            raise ConfigError(f"a rubric has two parts with the same name ({', '.join(names)}): rename one")
        for part in read.parts:
            grading = part.as_grading(read.extra)
            self._find(grading.kind).check(grading.spec)

    def needs_sandbox_for(self, spec: Mapping[str, Json]) -> bool:
        return any(needs_sandbox(grader, own) for grader, own in self._parts(spec))

    def limit_s(self, spec: Mapping[str, Json]) -> float:
        return sum(grader.limit_s(own) for grader, own in self._parts(spec) if isinstance(grader, TimedGrader))

    def _parts(self, spec: Mapping[str, Json]) -> list[tuple[Grader, Mapping[str, Json]]]:
        read = read_spec("rubric", RubricSpec, spec)
        gradings = [part.as_grading(read.extra) for part in read.parts]
        return [(self._find(grading.kind), grading.spec) for grading in gradings]

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        spec = read_spec("rubric", RubricSpec, grading.spec)
        components: dict[str, float] = {}
        details: list[str] = []
        total = 0.0
        for part in spec.parts:  # sequentially: a grading holds one sandbox at a time
            own = part.as_grading(spec.extra)
            verdict = await grade_work(self._find(own.kind), own, artifact, context)
            total += part.weight * verdict.reward
            components[part.name] = verdict.reward
            components.update({f"{part.name}/{name}": value for name, value in verdict.components.items()})
            if verdict.detail:
                details.append(f"{part.name}: {verdict.detail}")
        reward = total / sum(part.weight for part in spec.parts)
        return Verdict(reward=reward, components=components, detail="\n".join(details))
