"""The tool interface: a spec for the model, one `call`, one of three outcomes.

Input: the arguments a model wrote and a ToolContext. Output: an Observation, a ContextEdit or a Finish. Invariants: a
tool never receives the agent. ToolError, SandboxFileError and SandboxLimitError are shown to the model; any other
exception is an infrastructure failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias, runtime_checkable

from slipstream.errors import ConfigError, Origin, ToolFailure
from slipstream.sandbox.base import Sandbox
from slipstream.types import Image, Json, Message, ToolSpec


class Effect(StrEnum):
    """A call's side effects, which decide how it is repeated when a rollout is resumed."""

    PURE = "pure"
    """None, and the tool keeps no state, in itself or in the rollout: its recorded result is read back."""
    STATE = "state"
    """It changes what the tools keep for this rollout (`ToolContext.state`, the tool itself), and nothing else:
    replayed, and the outcomes compared."""
    SANDBOX = "sandbox"
    """It reads or changes the sandbox: replayed in a fresh one, and the outcomes compared."""
    EXTERNAL = "external"
    """It changes something outside: never repeated, so the attempt starts over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """Advice that comes with an observation: `Hint(name="no_such_file", text="Use find to look for it.")`."""

    name: str
    """The name under which it is counted."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the model reads: `Observation(text="3 passed")`."""

    text: str = ""
    images: tuple[Image, ...] = ()
    is_error: bool = False
    """The call did not do what was asked."""
    hints: tuple[Hint, ...] = ()
    """Shown after the text, in the same tool response: a separate message could make the template render the
    conversation again, and fork it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextEdit:
    """Replaces the conversation with `messages`."""

    messages: tuple[Message, ...]
    note: str = ""
    """A note for the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The agent is done: `Finish(answer="42")`."""

    answer: str | None = None


Outcome: TypeAlias = Observation | ContextEdit | Finish


def as_outcome(returned: object, name: str) -> Outcome:
    """What the tool `name` returned, as an Outcome. Raises ToolFailure if it is not one, or cannot be recorded."""
    if type(returned) is Observation and type(returned.text) is str and not (returned.images or returned.hints):
        return returned  # as most are
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
    shown = f"{returned!r:.120}" if isinstance(returned, Observation | Finish | ContextEdit) else "not an outcome"
    failed = ToolFailure(
        f"tool {name} returned a {type(returned).__name__}: {shown}; return a str, an Observation, a Finish whose "
        "answer is a str, or a ContextEdit"
    )
    failed.origin = Origin(kind="ToolFailure", place=f"tool {name}")
    raise failed


class NestedModel(Protocol):
    """A model that a tool may ask; its replies are only for the tool and are not trained on."""

    async def ask(self, messages: Sequence[Message], *, max_tokens: int) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Everything that a call may use."""

    sandbox: Sandbox | None
    deadline_s: float
    """The event loop's time at which this call is cancelled."""
    state: dict[str, object]
    """Shared by the tools of one rollout, for as long as it runs."""
    messages: Sequence[Message]
    """The conversation so far, including the calls of this turn."""
    model: NestedModel | None = None
    resources: Mapping[str, Json] = field(default_factory=dict)
    """What the task gives its tools to work on."""
    opening: Sequence[Message] = ()
    """The messages that the rollout began with: the system prompt, if any, and the task. A ContextEdit that continues
    the same task begins with them."""

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
        """Longer text is truncated in the middle."""
        ...

    @property
    def concurrent(self) -> bool:
        """Whether it may run concurrently with the other calls of its turn."""
        ...

    def fresh(self) -> Tool:
        """The instance for one rollout: a new one, or this one if it keeps no state between calls."""
        ...

    async def call(self, arguments: Mapping[str, Json], ctx: ToolContext) -> Outcome:
        """Check the arguments and act. Raises ToolError for mistakes of the model."""
        ...

    async def aclose(self) -> None:
        """Release what this instance holds. Closing twice is fine."""
        ...
