"""The Grader protocol, and the conversion of what a grader returns to a Verdict.

A grader sees the artifact that left the agent's sandbox, never the sandbox itself. It returns a Verdict, a number or a
dict of numbers. A number is the reward. A dict names the components of the reward; the reward is the component `reward`
if there is one, else the sum of all. Scalars of numpy and torch count as numbers. Anything else, including NaN and
infinity, is a GraderError of that rollout.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from slipstream.errors import AgentError, GraderError, Origin, boundary
from slipstream.sandbox.base import SandboxProvider
from slipstream.types import Artifact, ForkReason, Grading, Json, Message, SandboxSpec, Task, Turn, Verdict


class Judge(Protocol):
    """A model that a grader may ask. Its replies are not recorded with any rollout and never trained on."""

    async def ask(self, messages: Sequence[Message], *, max_tokens: int) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeContext:
    """What a grader may use."""

    provider: SandboxProvider
    sandbox: SandboxSpec
    """The task's sandbox, to be opened afresh; an empty one if the task has none."""
    start_timeout_s: float = 60.0
    task: Task | None = None
    """None if work is graded outside a run, as by `tasks check`; then there are no turns and no judge either."""
    turns: tuple[Turn, ...] = ()
    """The agent's model calls."""
    judge: Judge | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The agent's conversation, in order."""
        return tuple(message for turn in self.turns if turn.fork is not ForkReason.NESTED for message in turn.messages)


class Grader(Protocol):
    @property
    def needs_sandbox(self) -> bool: ...

    def check(self, spec: Mapping[str, Json]) -> None:
        """Raise ConfigError if this grader cannot read a task's grading."""
        ...

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        """Return the verdict. If there can be none, raise GraderError or a sandbox error instead of returning 0.

        `grade_work` also accepts plain numbers and dicts, and a `def` without `async`.
        """
        ...


@runtime_checkable
class TimedGrader(Protocol):
    """A grader for which work that takes too long is worth 0."""

    def limit_s(self, spec: Mapping[str, Json]) -> float:
        """How long it may take. The grading stage must allow that long, or there would be no verdict."""
        ...


@runtime_checkable
class CompositeGrader(Protocol):
    """A grader made of others, which decide whether it needs a sandbox."""

    def needs_sandbox_for(self, spec: Mapping[str, Json]) -> bool: ...


def needs_sandbox(grader: Grader, spec: Mapping[str, Json]) -> bool:
    """Whether this grading opens a sandbox."""
    if not hasattr(grader, "needs_sandbox_for"):  # most: isinstance with a Protocol takes ten times as long
        return grader.needs_sandbox
    return grader.needs_sandbox_for(spec) if isinstance(grader, CompositeGrader) else grader.needs_sandbox


async def grade_work(grader: Grader, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
    """Grade, and convert the result to a Verdict. Any failure is a GraderError or a sandbox error."""
    name = f"grader {grading.kind}"
    try:
        with boundary(GraderError, name):
            returned: object = grader.grade(grading, artifact, context)
            if inspect.isawaitable(returned):
                returned = await returned
    except AgentError as raised:  # no agent is at work here
        raise GraderError(f"{name}: {type(raised).__name__}: {raised}") from raised
    return as_verdict(returned, name)


def as_verdict(returned: object, name: str) -> Verdict:
    """Convert what the grader called `name` returned. Raises GraderError if that is not possible."""
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
        raise _wrong(f"{name} returned components of type {type(given).__name__}")
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
        raise _wrong(f"{returned} {str(value)[:80]}, which is not finite")
    shown = "None" if value is None else f"a {type(value).__name__} ({value!r:.80})"
    raise _wrong(f"{returned} {shown}")


def _plain(value: object) -> object:
    """The number in a numpy or torch scalar; anything else unchanged."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "shape", None) == () else value


def _wrong(problem: str) -> GraderError:
    raised = GraderError(f"{problem}: return a finite number, a dict of numbers, or a Verdict")
    raised.origin = Origin(kind="GraderError", place=problem.partition(" returned")[0])
    return raised
