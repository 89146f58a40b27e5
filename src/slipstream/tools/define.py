"""Makes tools out of typed code.

Input: a typed function, async or plain, or a class with one typed `call`. Output: a Tool whose JSON schema comes from
the signature. A bad definition raises ConfigError when it is defined, not when a model first calls it.

    @tool
    def count(letter: str, word: str) -> str:
        \"\"\"Count how often a letter occurs in a word.\"\"\"

    @tool(effect=Effect.SANDBOX)
    async def grep(pattern: str, path: Annotated[str, "folder to search"] = ".", *, ctx: ToolContext) -> str:
        \"\"\"Search files for a pattern.\"\"\"

The model reads the first paragraph of the docstring; `ctx` is not shown to it, and is optional. A plain function runs
in a thread: if it hangs, it is abandoned at its deadline, but keeps running.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, overload, runtime_checkable

from slipstream.errors import ConfigError
from slipstream.tools.base import Effect, Outcome, ToolContext, as_outcome
from slipstream.tools.signature import Signature, ToolFunction
from slipstream.types import Json, ToolSpec

DEFAULT_TIMEOUT_S = 60.0
DEFAULT_MAX_OUTPUT_CHARS = 16_000


class ToolObject(Protocol):
    """An instance of a class with one typed `call`; its `aclose`, if any, is awaited when the rollout ends."""

    @property
    def call(self) -> ToolFunction: ...


@runtime_checkable
class _Closes(Protocol):
    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedTool:
    """A Tool over typed code; made by `tool` and `class_tool`."""

    spec: ToolSpec
    effect: Effect
    timeout_s: float
    max_output_chars: int
    concurrent: bool
    signature: Signature
    function: ToolFunction
    """What is called with the checked arguments."""
    make: Callable[[], ToolObject] | None = None
    holder: object = None
    """The object whose `call` is the function."""

    def fresh(self) -> TypedTool:
        if self.make is None:
            return self
        holder = self.make()
        return replace(self, holder=holder, function=_as_async(holder.call))

    async def call(self, arguments: Mapping[str, Json], ctx: ToolContext) -> Outcome:
        values = self.signature.check(self.spec.name, arguments)
        if self.signature.takes_ctx:
            values["ctx"] = ctx
        return as_outcome(await self.function(**values), self.spec.name)

    async def aclose(self) -> None:
        if isinstance(self.holder, _Closes):
            await self.holder.aclose()


@overload
def tool(
    function: Callable[..., Any],
    /,
    *,
    effect: Effect = ...,
    name: str = ...,
    description: str = ...,
    timeout_s: float = ...,
    max_output_chars: int = ...,
    concurrent: bool | None = ...,
) -> TypedTool: ...


@overload
def tool(
    *,
    effect: Effect = ...,
    name: str = ...,
    description: str = ...,
    timeout_s: float = ...,
    max_output_chars: int = ...,
    concurrent: bool | None = ...,
) -> Callable[[Callable[..., Any]], TypedTool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    effect: Effect = Effect.EXTERNAL,
    name: str = "",
    description: str = "",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    max_output_chars: int = DEFAULT_MAX_OUTPUT_CHARS,
    concurrent: bool | None = None,
) -> TypedTool | Callable[[Callable[..., Any]], TypedTool]:
    """Make a tool of a typed function, or of a class with a typed `call`; `@tool` and `@tool(...)` both work.

    `effect` says how a resumed run treats its calls: EXTERNAL, the default, is never repeated, and the rollout starts
    over. PURE calls are read back and SANDBOX calls replayed, so set these where they apply. `name` defaults to the
    function's, or the class's in snake case; `concurrent` defaults to true for PURE tools.
    """

    def define(function: Callable[..., Any]) -> TypedTool:
        if isinstance(function, type):
            return class_tool(
                function,
                name=name or _snake_case(function.__name__),
                description=description,
                effect=effect,
                timeout_s=timeout_s,
                max_output_chars=max_output_chars,
                concurrent=concurrent,
            )
        called = getattr(function, "__qualname__", repr(function))
        return _define(
            function,
            where=f"tool {called}",
            name=name or getattr(function, "__name__", ""),
            description=description or _first_paragraph(function),
            effect=effect,
            timeout_s=timeout_s,
            max_output_chars=max_output_chars,
            concurrent=concurrent,
        )

    return define if function is None else define(function)


def class_tool(
    make: Callable[[], ToolObject],
    *,
    name: str,
    effect: Effect,
    description: str = "",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    max_output_chars: int = DEFAULT_MAX_OUTPUT_CHARS,
    concurrent: bool | None = None,
) -> TypedTool:
    """Make a tool of a class: `class_tool(Bash, name="bash", effect=Effect.SANDBOX)`.

    `make` is the class, or a partial of it. It is called once now, to read the signature, and once for each rollout, so
    the constructor must not start anything. The description is the docstring of `call`, or else of the class.
    """
    holder = make()
    where = f"tool {type(holder).__qualname__}.call"
    if not callable(getattr(holder, "call", None)):
        raise ConfigError(f"tool {type(holder).__qualname__} has no method `call`: write `def call(self, ...)`")
    defined = _define(
        holder.call,
        where=where,
        name=name,
        description=description or _first_paragraph(holder.call) or _first_paragraph(type(holder)),
        effect=effect,
        timeout_s=timeout_s,
        max_output_chars=max_output_chars,
        concurrent=concurrent,
    )
    return replace(defined, make=make, holder=holder)


def shared_tool(
    holder: ToolObject,
    *,
    name: str,
    effect: Effect,
    description: str = "",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    max_output_chars: int = DEFAULT_MAX_OUTPUT_CHARS,
) -> TypedTool:
    """Make a tool of one object that all rollouts share, such as a pool of connections. It keeps nothing of a rollout,
    and its `aclose` is awaited when the run ends."""
    made = class_tool(
        lambda: holder,
        name=name,
        effect=effect,
        description=description,
        timeout_s=timeout_s,
        max_output_chars=max_output_chars,
    )
    return replace(made, make=None)


def _define(
    function: ToolFunction,
    *,
    where: str,
    name: str,
    description: str,
    effect: Effect,
    timeout_s: float,
    max_output_chars: int,
    concurrent: bool | None,
) -> TypedTool:
    function = _as_async(function)
    signature = Signature.of(function, where)
    if not description:
        raise ConfigError(f"{where} has no description: write a docstring, which the model reads")
    return TypedTool(
        spec=ToolSpec(name=name, description=description, parameters=signature.parameters),
        effect=effect,
        timeout_s=timeout_s,
        max_output_chars=max_output_chars,
        concurrent=effect is Effect.PURE if concurrent is None else concurrent,
        signature=signature,
        function=function,
    )


def _as_async(function: Callable[..., Any]) -> ToolFunction:
    """A plain function as an async one that does not block the event loop."""
    if inspect.iscoroutinefunction(function) or not inspect.isroutine(function):
        return function

    @functools.wraps(function)
    async def in_thread(**arguments: object) -> Any:
        return await asyncio.to_thread(function, **arguments)

    return in_thread


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _first_paragraph(documented: Any) -> str:
    """The first paragraph of its own docstring, not of an inherited one."""
    text = inspect.cleandoc(getattr(documented, "__doc__", None) or "")
    return " ".join(text.split("\n\n")[0].split())
