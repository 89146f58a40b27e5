"""Grader: what the agent's work is worth. It never sees the agent's sandbox, only the artifact that left it.

A grader returns a Verdict, a number, or a dict of numbers. A number is the reward. A dict names the components of the
reward: the one called `reward` is the reward if there is one, else their sum is. Scalars of numpy and torch count as
numbers. Anything else, NaN and infinity included, is a GraderError of that rollout.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from slipstream.errors import GraderError, Origin, boundary
from slipstream.sandbox.base import SandboxProvider
from slipstream.types import Artifact, ForkReason, Grading, Json, Message, SandboxSpec, Task, Turn, Verdict


class Judge(Protocol):
    """A model that a grader may ask. What it says is recorded with no rollout and never trained on."""

    async def ask(self, messages: Sequence[Message], *, max_tokens: int) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeContext:
    """What a grader may use."""

    provider: SandboxProvider
    sandbox: SandboxSpec
    """The task's own, to be opened afresh; an empty one if the task has none."""
    start_timeout_s: float = 60.0
    task: Task | None = None
    """None where work is graded outside of a run, as `tasks check` does; the next two are empty there."""
    turns: tuple[Turn, ...] = ()
    """The agent's model calls."""
    judge: Judge | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The agent's conversation, in the order in which it was had."""
        return tuple(message for turn in self.turns if turn.fork is not ForkReason.NESTED for message in turn.messages)


class Grader(Protocol):
    @property
    def needs_sandbox(self) -> bool: ...

    def check(self, spec: Mapping[str, Json]) -> None:
        """Raise ConfigError if a task's grading is not one this grader understands."""
        ...

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        """The verdict. Raises GraderError, or an error of the sandbox, if there can be none: never a reward of 0.
        `grade_work` also takes the plain numbers and dicts that a user's grader returns, and a `def` without `async`.
        """
        ...


@runtime_checkable
class TimedGrader(Protocol):
    """A grader for which work that takes too long is worth 0."""

    def limit_s(self, spec: Mapping[str, Json]) -> float:
        """How long it may take. The stage of grading must leave it that long, or there would be no verdict."""
        ...


async def grade_work(grader: Grader, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
    """What `grader` says, as a Verdict. Whatever goes wrong in it is a GraderError, or an error of the sandbox."""
    name = f"grader {grading.kind}"
    with boundary(GraderError, name):
        returned: object = grader.grade(grading, artifact, context)
        if inspect.isawaitable(returned):
            returned = await returned
    return as_verdict(returned, name)


def as_verdict(returned: object, name: str) -> Verdict:
    """What a grader returned as a Verdict; GraderError if it can be none. `name` says which grader it was."""
    if isinstance(returned, Verdict):
        return Verdict(
            reward=_number(returned.reward, f"{name} returned a Verdict whose reward is"),
            components=_numbers(returned.components, name),
            detail=str(returned.detail),
        )
    if isinstance(returned, Mapping):
        components = _numbers(returned, name)
        if not components:
            raise _wrong(f"{name} returned an empty dict")
        return Verdict(reward=components.get("reward", math.fsum(components.values())), components=components)
    return Verdict(reward=_number(returned, f"{name} returned"))


def _numbers(given: object, name: str) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise _wrong(f"{name} returned components that are a {type(given).__name__}")
    return {str(key): _number(value, f"{name} returned, for {str(key)[:80]!r},") for key, value in given.items()}


def _number(value: object, returned: str) -> float:
    plain = _plain(value)
    if isinstance(plain, numbers.Real):
        try:
            number = float(plain)
        except (OverflowError, ValueError):
            number = math.nan
        if math.isfinite(number):
            return number
        raise _wrong(f"{returned} {str(value)[:80]}, which is no finite number")
    told = "None" if value is None else f"a {type(value).__name__} ({value!r:.80})"
    raise _wrong(f"{returned} {told}")


def _plain(value: object) -> object:
    """A scalar of numpy or torch as the number in it; anything else as it is."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "shape", None) == () else value


def _wrong(told: str) -> GraderError:
    raised = GraderError(f"{told}: return a finite number, a dict of numbers, or a Verdict")
    raised.origin = Origin(kind="GraderError", place=told.partition(" returned")[0])
    return raised
