"""Grader: what the agent's work is worth. It never sees the agent's sandbox, only the artifact that left it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from slipstream.sandbox.base import SandboxProvider
from slipstream.types import Artifact, Grading, Json, SandboxSpec, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeContext:
    """What a grader may use."""

    provider: SandboxProvider
    sandbox: SandboxSpec
    """The task's own, to be opened afresh; an empty one if the task has none."""
    start_timeout_s: float = 60.0


class Grader(Protocol):
    @property
    def needs_sandbox(self) -> bool: ...

    def check(self, spec: Mapping[str, Json]) -> None:
        """Raise ConfigError if a task's grading is not one this grader understands."""
        ...

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        """The verdict. Raises GraderError, or an error of the sandbox, if there can be none: never a reward of 0."""
        ...


@runtime_checkable
class TimedGrader(Protocol):
    """A grader for which work that takes too long is worth 0."""

    def limit_s(self, spec: Mapping[str, Json]) -> float:
        """How long it may take. The stage of grading must leave it that long, or there would be no verdict."""
        ...
