"""The input of hint rules: the calls and answers so far, and the hints that were given.

Invariants: all of it is recorded with the turns, so a rule gives the same result for a recorded rollout as for a live
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from slipstream.dialogue.base import Window
from slipstream.tools.base import Hint
from slipstream.types import Json, ToolCall

_EDITORS = frozenset({"edit", "replace", "write_file"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredCall:
    """A call and its answer as the model read it, without hints from rules."""

    call: ToolCall
    text: str
    is_error: bool

    def argument(self, name: str) -> str:
        """A string argument; empty if it is missing."""
        value: Json = self.call.arguments.get(name)
        return value if isinstance(value, str) else ""

    @property
    def edited(self) -> bool:
        """Whether an editing tool changed a file."""
        return self.call.name in _EDITORS and not self.is_error and self.argument("command") != "view"

    def same_call(self, other: AnsweredCall) -> bool:
        return (self.call.name, self.call.arguments) == (other.call.name, other.call.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One turn of the agent."""

    answers: tuple[AnsweredCall, ...] = ()
    hints: tuple[Hint, ...] = ()
    """The hints appended to its answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    steps: Sequence[Step]
    """All steps so far; the last one just happened, and has no hints yet."""
    tools: frozenset[str]
    """The names of the agent's tools."""
    turns_left: int
    pure: frozenset[str] = frozenset()
    """The tools that change nothing."""
    window: Window | None = None

    @property
    def now(self) -> tuple[AnsweredCall, ...]:
        return self.steps[-1].answers if self.steps else ()

    def times_given(self, name: str) -> int:
        """How often a hint was given so far."""
        return sum(hint.name == name for step in self.steps for hint in step.hints)


Rule: TypeAlias = Callable[[Situation], str | None]
"""Returns the hint's text, or None if it does not apply."""
