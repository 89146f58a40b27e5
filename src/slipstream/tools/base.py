"""What a tool is: a spec for the model, one `call`, one of three outcomes.

Input: the arguments a model wrote and a ToolContext. Output: an Observation, a ContextEdit or a Finish.
Invariants: a tool never receives the agent. A ToolError is told to the model, as are SandboxFileError and
SandboxLimitError; whatever else a tool raises is an infrastructure failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias, runtime_checkable

from slipstream.errors import ConfigError, Origin, ToolFailure
from slipstream.sandbox.base import Sandbox
from slipstream.types import Image, Json, Message, ToolSpec


class Effect(StrEnum):
    """What a call leaves behind, and so how it may be repeated when a rollout is resumed."""

    PURE = "pure"
    """Nothing, and it keeps nothing, neither in itself nor in the rollout's state: its recorded result is read back."""
    SANDBOX = "sandbox"
    """Depends on the sandbox or changes it: replayed in a fresh one, and the observations compared."""
    EXTERNAL = "external"
    """Changes something outside: never repeated, so the attempt starts over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A word of advice that comes with an observation: `Hint(name="no_such_file", text="Use find to look for it.")`."""

    name: str
    """Under which its firings are counted."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the model is told: `Observation(text="3 passed")`."""

    text: str = ""
    images: tuple[Image, ...] = ()
    is_error: bool = False
    """The call did not do what it was asked for."""
    hints: tuple[Hint, ...] = ()
    """Shown after the text, inside the same tool response: a message of their own could make the template render the
    conversation anew, and fork it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextEdit:
    """The conversation is to be rewritten to `messages`."""

    messages: tuple[Message, ...]
    note: str = ""
    """What the record says of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The agent is done: `Finish(answer="42")`."""

    answer: str | None = None


Outcome: TypeAlias = Observation | ContextEdit | Finish


def as_outcome(returned: object, name: str) -> Outcome:
    """What the tool `name` returned, as an Outcome; ToolFailure if it is none, or holds what cannot be recorded."""
    match returned:
        case str():
            return Observation(text=returned)
        case Observation(text=str(), images=tuple() as images, hints=tuple() as hints):
            holds = all(isinstance(image, Image) and isinstance(image.data, bytes) for image in images)
            if holds and all(isinstance(hint, Hint) for hint in hints):
                return returned
        case Finish(answer=str() | None):
            return returned
        case ContextEdit(messages=tuple() as messages, note=str()):
            if all(isinstance(message, Message) for message in messages):
                return returned
    told = f"{returned!r:.120}" if isinstance(returned, Observation | Finish | ContextEdit) else "no outcome"
    failed = ToolFailure(
        f"tool {name} returned a {type(returned).__name__}: {told}; return a str, an Observation, a Finish whose "
        "answer is a str, or a ContextEdit"
    )
    failed.origin = Origin(kind="ToolFailure", place=f"tool {name}")
    raise failed


class NestedModel(Protocol):
    """A model that a tool may ask; what it says is the tool's business and is not trained on."""

    async def ask(self, messages: Sequence[Message], *, max_tokens: int) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """All that a call may touch."""

    sandbox: Sandbox | None
    deadline_s: float
    """The time of the event loop by which this call must be over; it is cancelled then."""
    state: dict[str, object]
    """Shared by the tools of one rollout, and lives as long."""
    messages: Sequence[Message]
    """The conversation so far, the calls of this turn included."""
    model: NestedModel | None = None

    def remaining_s(self) -> float:
        return max(0.0, self.deadline_s - asyncio.get_running_loop().time())

    def need_sandbox(self) -> Sandbox:
        if self.sandbox is None:
            raise ConfigError("this tool needs a sandbox and the rollout has none: open its toolset with one")
        return self.sandbox


@runtime_checkable
class Tool(Protocol):
    @property
    def spec(self) -> ToolSpec: ...

    @property
    def effect(self) -> Effect: ...

    @property
    def timeout_s(self) -> float:
        """The deadline of one call."""
        ...

    @property
    def max_output_chars(self) -> int:
        """Longer text is cut in the middle."""
        ...

    @property
    def concurrent(self) -> bool:
        """Whether it may run beside the other calls of its turn."""
        ...

    def fresh(self) -> Tool:
        """The instance that lives for one rollout: a new one, or this one if it keeps nothing between calls."""
        ...

    async def call(self, arguments: Mapping[str, Json], ctx: ToolContext) -> Outcome:
        """Check the arguments and act. Raises ToolError for what the model did wrong."""
        ...

    async def aclose(self) -> None:
        """Let go of what this instance holds. Closing twice is fine."""
        ...
