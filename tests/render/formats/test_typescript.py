"""Schemas as GPT-OSS is told of them. `tests/bridges/test_harmony_reference.py` compares them with OpenAI's encoder."""

import pytest

from slipstream.render.formats.typescript import namespace_text, type_text
from slipstream.types import Json, ToolSpec

WEATHER = ToolSpec(
    name="get_weather",
    description="Tell the weather.\r\nOf one place.\n",
    parameters={
        "type": "object",
        "properties": {
            "place": {"type": "string", "description": "A city."},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": "array", "items": {"type": "integer"}},
            "near": {
                "type": "object",
                "properties": {"km": {"type": "number", "default": 0.5}, "by": {"type": ["string", "null"]}},
                "required": ["by"],
            },
        },
        "required": ["place"],
    },
)
STOP = ToolSpec(name="stop", description="", parameters={"type": "object", "properties": {}})


def test_a_namespace_has_a_type_for_every_tool() -> None:
    expected = """## functions

namespace functions {

// Tell the weather.
// Of one place.
type get_weather = (_: {
// A city.
place: string,
unit?: "celsius" | "fahrenheit", // default: celsius
days?: number[],
near?: {
    km?: number, // default: 0.5
    by: string | null,
    },
}) => any;

type stop = () => any;

} // namespace functions"""
    assert namespace_text("functions", (WEATHER, STOP)) == expected


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, "any"),
        (True, "any"),
        ({"type": "null"}, "any"),
        ({"type": []}, "any"),
        ({"anyOf": [{"type": "string"}]}, "any"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "array"}, "Array<any>"),
        ({"type": "array", "items": {}}, "any[]"),
        ({"type": "string", "enum": [1]}, "string"),
        ({"type": ["integer", "string"]}, "number | string"),
        ({"type": "object"}, "{\n}"),
        ({"oneOf": [{"type": "string", "description": "s"}, {"type": "number", "nullable": True}]},
         "\n | string // s\n | number | null"),
        ({"oneOf": [{"type": "string", "enum": ["a"], "default": "a"}, False]}, '\n | "a" // default: "a"\n | any'),
    ],
)  # fmt: skip
def test_a_type_is_what_the_schema_says(schema: Json, expected: str) -> None:
    assert type_text(schema) == expected


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (False, "a?: any,\n"),
        ({"type": "string", "nullable": True}, "a?: string | null,\n"),
        ({"type": ["string", "null"], "nullable": True}, "a?: string | null,\n"),
        ({"type": "string", "title": "T", "examples": ["e", 1]}, '// T\n//\n// Examples:\n// - "e"\na?: string,\n'),
        ({"type": "string", "default": 'q"'}, 'a?: string, // default: "q""\n'),
        ({"default": None}, "a?: any, // default: null\n"),
        ({"default": 1e-5}, "a?: any, // default: 0.00001\n"),
        ({"default": -2.5e-7}, "a?: any, // default: -2.5e-7\n"),
        ({"default": 1e16}, "a?: any, // default: 1e16\n"),
        ({"default": {"k": [1, "é"]}}, 'a?: any, // default: {"k":[1,"é"]}\n'),
        ({"oneOf": [{"type": "string", "description": "s"}, {"type": "number", "default": 1}],
          "description": "d", "default": "x"},
         '// d\n// default: "x"\na?:\n | string\n | number // default: 1\n,\n'),
        ({"oneOf": [{"type": "string", "description": "d"}, {"description": "e"}], "description": "d"},
         "a?:\n | string\n | any // e\n,\n"),
    ],
)  # fmt: skip
def test_a_property_says_what_is_known_of_it(schema: Json, expected: str) -> None:
    assert type_text({"type": "object", "properties": {"a": schema}}) == "{\n" + expected + "}"


def test_a_union_of_arguments_is_an_argument() -> None:
    tool = ToolSpec(name="f", description="d", parameters={"oneOf": [{"type": "object"}, {"type": "string"}]})
    assert "type f = (_: \n | {\n   }\n | string) => any;" in namespace_text("functions", (tool,))


def test_arguments_of_any_name_are_an_argument() -> None:
    tool = ToolSpec(name="f", description="d", parameters={"type": "object", "additionalProperties": True})
    assert "type f = (_: {\n}) => any;" in namespace_text("functions", (tool,))
