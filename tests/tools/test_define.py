from __future__ import annotations

import asyncio
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from slipstream.errors import ConfigError, ToolError
from slipstream.tools import Effect, Finish, Observation, ToolContext, class_tool, tool
from slipstream.tools.bash import bash
from slipstream.types import Json


class Order(StrEnum):
    UP = "up"
    DOWN = "down"


class Edit(BaseModel):
    """One edit."""

    line: int
    title: str | None = None


@tool(effect=Effect.SANDBOX)
async def grep(
    pattern: str,
    path: Annotated[str, "folder to search"] = ".",
    num: Annotated[int | None, Field(ge=1, description="how many")] = None,
    mode: Literal["text", "regex"] = "text",
    order: Order = Order.UP,
    edits: list[Edit] | None = None,
    schema: bool | list[str] = False,
    *,
    ctx: ToolContext,
) -> str:
    """Search files
    for a pattern.

    This is for those who read the code.
    """
    return f"{pattern} {path} {num} {mode} {order!r} {edits} {schema} {ctx.state}"


def context() -> ToolContext:
    return ToolContext(sandbox=None, deadline_s=1e9, state={"a": 1}, messages=())


def refused(**arguments: Json) -> str:
    with pytest.raises(ToolError) as raised:
        asyncio.run(grep.call(arguments, context()))
    return str(raised.value).removesuffix(GREP_ARGUMENTS)


GREP_ARGUMENTS = (
    ' Arguments: pattern (string, required), path (string, optional), num (integer, optional), mode ("text" or "regex",'
    ' optional), order ("up" or "down", optional), edits (array of object, optional),'
    " schema (boolean or array of string, optional)."
)


def test_schema_of_a_function() -> None:
    assert grep.spec.name == "grep"
    assert grep.spec.description == "Search files for a pattern."
    assert grep.spec.parameters == {
        "$defs": {
            "Edit": {
                "description": "One edit.",
                "properties": {"line": {"type": "integer"}, "title": {"type": "string"}},
                "required": ["line"],
                "type": "object",
            },
            "Order": {"enum": ["up", "down"], "type": "string"},
        },
        "additionalProperties": False,
        "properties": {
            "pattern": {"type": "string"},
            "path": {"default": ".", "description": "folder to search", "type": "string"},
            "num": {"minimum": 1, "type": "integer", "description": "how many"},
            "mode": {"default": "text", "enum": ["text", "regex"], "type": "string"},
            "order": {"$ref": "#/$defs/Order", "default": "up"},
            "edits": {"items": {"$ref": "#/$defs/Edit"}, "type": "array"},
            "schema": {
                "anyOf": [{"type": "boolean"}, {"items": {"type": "string"}, "type": "array"}],
                "default": False,
            },
        },
        "required": ["pattern"],
        "type": "object",
    }


def test_schema_of_a_class() -> None:
    assert bash.spec.parameters == {
        "additionalProperties": False,
        "properties": {
            "command": {"description": "the command, of one or more lines", "type": "string"},
            "timeout_s": {
                "exclusiveMinimum": 0,
                "type": "number",
                "description": "seconds after which the command is killed",
            },
        },
        "required": ["command"],
        "type": "object",
    }


def test_values_arrive_as_the_function_declares_them() -> None:
    arguments: dict[str, Json] = {"pattern": "x", "num": "5", "order": "down", "edits": [{"line": 3.0}]}
    assert asyncio.run(grep.call(arguments, context())) == Observation(
        text="x . 5 text <Order.DOWN: 'down'> [Edit(line=3, title=None)] False {'a': 1}"
    )


def test_only_pure_tools_run_beside_others_by_default() -> None:
    async def look() -> str:
        """Look."""
        return ""

    assert tool(effect=Effect.PURE)(look).concurrent
    assert not tool(effect=Effect.SANDBOX)(look).concurrent
    assert tool(effect=Effect.EXTERNAL, concurrent=True)(look).concurrent


def test_missing_argument() -> None:
    with pytest.raises(ToolError) as raised:
        asyncio.run(bash.call({}, context()))
    assert str(raised.value) == (
        'bash: argument "command" is missing. Arguments: command (string, required), timeout_s (number, optional).'
    )


def test_a_tool_without_arguments_says_so() -> None:
    @tool(effect=Effect.PURE)
    async def noop() -> Finish:
        """Nothing."""
        return Finish()

    assert asyncio.run(noop.call({}, context())) == Finish()
    with pytest.raises(ToolError, match=r'^noop: argument "x" is unknown. Arguments: none.$'):
        asyncio.run(noop.call({"x": 1}, context()))


def test_wrong_types_say_what_was_given_and_what_is_needed() -> None:
    assert refused(pattern=5) == 'grep: argument "pattern" is 5: input should be a valid string.'
    assert refused(pattern="x", num="many") == (
        'grep: argument "num" is "many": input should be a valid integer, unable to parse string as an integer.'
    )
    assert refused(pattern="x", num=0) == 'grep: argument "num" is 0: input should be greater than or equal to 1.'
    assert refused(pattern="x", mode="all") == "grep: argument \"mode\" is \"all\": input should be 'text' or 'regex'."
    assert refused(pattern="x", schema={}) == (
        'grep: argument "schema" is {}: input should be a valid boolean or a valid list.'
    )


def test_wrong_types_inside_are_named_by_their_path() -> None:
    assert refused(pattern="x", edits=[{"line": 1}, {"line": "y"}, {}]) == (
        'grep: argument "edits[1].line" is "y": input should be a valid integer, unable to parse string as an integer;'
        ' argument "edits[2].line" is missing.'
    )


def test_numbers_are_finite() -> None:
    with pytest.raises(ToolError, match='argument "timeout_s" is "inf": input should be a finite number'):
        asyncio.run(bash.call({"command": "ls", "timeout_s": "inf"}, context()))


def test_unknown_argument_names_the_nearest() -> None:
    assert refused(patern="x") == (
        'grep: argument "pattern" is missing; argument "patern" is unknown (did you mean "pattern"?).'
    )
    assert 'argument "PATH" is unknown (did you mean "path"?)' in refused(pattern="x", PATH="y")
    assert refused(pattern="x", zzz=1) == 'grep: argument "zzz" is unknown.'


def test_messages_stay_short() -> None:
    assert refused(pattern=["y" * 1000]) == (
        f'grep: argument "pattern" is ["{"y" * 58}...: input should be a valid string.'
    )
    assert refused(pattern="x", **dict.fromkeys(map("k{}".format, range(9)), 1)).endswith(
        '"k4" is unknown; and 4 more.'
    )


def test_half_a_surrogate_pair_is_the_models_mistake() -> None:
    assert refused(pattern="\ud800") == r"grep: '\ud800' is no character: leave it out"


class Counter:
    """Count the calls."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.num_closed = 0

    async def call(self, by: int = 1) -> str:
        self.num_calls += by
        return str(self.num_calls)

    async def aclose(self) -> None:
        self.num_closed += 1


def test_a_class_keeps_its_state_for_one_rollout() -> None:
    made: list[Counter] = []

    def make() -> Counter:
        made.append(Counter())
        return made[-1]

    counter = class_tool(make, name="count", effect=Effect.PURE)
    assert counter.spec.description == "Count the calls."

    async def main() -> list[str]:
        one, other = counter.fresh(), counter.fresh()
        seen = [await one.call({}, context()), await one.call({"by": 2}, context()), await other.call({}, context())]
        await one.aclose()
        return [outcome.text for outcome in seen if isinstance(outcome, Observation)]

    assert asyncio.run(main()) == ["1", "3", "1"]
    assert [counter.num_closed for counter in made] == [0, 1, 0]


def bad_definitions() -> list[tuple[Any, str]]:
    async def unannotated(a) -> str:  # type: ignore[no-untyped-def]
        """D."""
        return ""

    async def args(*parts: str) -> str:
        """D."""
        return ""

    async def kwargs(**parts: str) -> str:
        """D."""
        return ""

    async def undocumented(a: str) -> str:
        return a

    async def wrong_ctx(ctx: str) -> str:
        """D."""
        return ctx

    async def field_default(a: str = Field("x")) -> str:
        """D."""
        return a

    async def no_schema(a: object, b: type[Counter] | asyncio.Task[None]) -> str:
        """D."""
        return ""

    return [
        (unannotated, 'unannotated: parameter "a" has no annotation'),
        (args, 'args: parameter "parts" is variadic positional'),
        (kwargs, 'kwargs: parameter "parts" is variadic keyword'),
        (undocumented, "undocumented has no description: write a docstring"),
        (wrong_ctx, 'wrong_ctx: parameter "ctx" must be annotated as ToolContext'),
        (field_default, r'field_default: parameter "a" has Field\(...\) as its default'),
        (no_schema, "no_schema: a parameter's type has no JSON schema"),
        (partial(print, "a"), "is not async: write `async def`"),
    ]


@pytest.mark.parametrize(("function", "said"), bad_definitions())
def test_bad_definitions_are_refused(function: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tool(effect=Effect.PURE)(function)


def test_a_class_without_call_is_refused() -> None:
    no_call: Any = object
    with pytest.raises(ConfigError, match="tool object has no method `call`"):
        class_tool(no_call, name="x", effect=Effect.PURE)


def test_plain_functions_and_classes_are_tools_too() -> None:
    @tool
    def shout(text: str) -> str:
        """Say it louder."""
        return text.upper()

    @tool(effect=Effect.PURE)
    class WordCount:
        """Count words."""

        def call(self, text: str) -> str:
            return str(len(text.split()))

    ctx = ToolContext(sandbox=None, deadline_s=0.0, state={}, messages=())
    assert shout.effect is Effect.EXTERNAL and not shout.concurrent
    assert asyncio.run(shout.call({"text": "a"}, ctx)) == Observation(text="A")
    counting: Any = WordCount  # a class that `tool` stands above is a tool; type checkers take it for the class
    assert counting.spec.name == "word_count"
    assert asyncio.run(counting.fresh().call({"text": "a b"}, ctx)) == Observation(text="2")
