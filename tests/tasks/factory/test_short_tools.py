"""The short replace tool: what it answers when the text is not there, is there twice, or broke the file."""

import asyncio

import pytest

from slipstream.sandbox.local.provider import LocalProvider
from slipstream.sandbox.ready import open_sandbox
from slipstream.tasks.factory.levels import TOOLS
from slipstream.tools import Toolset
from slipstream.tools.toolset import CallResult
from slipstream.types import File, SandboxSpec, ToolCall

SOURCE = """def area(width, height):
    return width * height


def total(values):
    name = "it's"
    return sum(values[1:])


def first(values):
    return sum(values[1:])
"""


def after(old: str, new: str, source: str = SOURCE) -> tuple[CallResult, str]:
    async def edit() -> tuple[CallResult, str]:
        provider = LocalProvider()
        try:
            sandbox = await open_sandbox(
                provider, SandboxSpec(files={"a.py": File(data=source.encode())}), timeout_s=60.0
            )
            async with Toolset.named(TOOLS).open(sandbox=sandbox) as tools:
                call = ToolCall(id="1", name="replace", arguments={"path": "a.py", "old": old, "new": new})
                (result,) = await tools.run([call], [])
            return result, (await sandbox.read("a.py")).decode()
        finally:
            await provider.aclose()

    return asyncio.run(edit())


def test_a_change_is_shown_with_its_lines() -> None:
    result, text = after("width * height", "width + height")
    assert text == SOURCE.replace("width * height", "width + height")
    assert not result.is_error
    assert result.text == ("Changed a.py:\n1| def area(width, height):\n2|     return width + height\n3| \n4| ")


def test_a_change_that_breaks_the_file_is_made_and_said() -> None:
    result, text = after("return width * height", "return (width * height")
    assert "(width" in text and not result.is_error
    assert "[the file no longer parses, line 2: " in result.text


@pytest.mark.parametrize(
    ("old", "said"),
    [
        (
            "    name = 'it`s'",
            ["quotes differ: old has `'` instead of `\"` in line 6, ``` instead of `'`", '6|     name = "it\'s"'],
        ),
        (
            "\treturn width * height",
            ["old has 1 tab instead of 4 spaces in line 2", "2|     return"],
        ),
        ("    return width*height", ["2|     return width * height", "old has nothing instead of 1 space in line 2"]),
        ("    return sum(values[2:])", ["7|     return sum(values[1:])", "11|     return sum(values[1:])"]),
        ("import os", ["Nothing in its 11 lines is similar"]),
    ],
)
def test_text_that_is_not_there_is_answered_with_the_closest_lines(old: str, said: list[str]) -> None:
    result, text = after(old, "x")
    assert result.is_error and text == SOURCE
    assert result.text.startswith("old was not found in a.py, so nothing was changed.")
    assert all(one in result.text for one in said), result.text


def test_text_that_is_there_twice_is_answered_with_its_lines() -> None:
    result, text = after("    return sum(values[1:])", "    return sum(values)")
    assert result.is_error and text == SOURCE
    assert "2 times" in result.text
    assert "\n7|     return sum(values[1:])\n11|     return sum(values[1:])\n" in result.text


def test_answers_about_long_lines_stay_short() -> None:
    source = "".join(f"value_{number} = [{'1, ' * 400}]\n" for number in range(40))
    result, _ = after("value_3 = [1, 1, 2]", "x", source)
    assert result.is_error and len(result.text) <= 2_000
    twice, _ = after("1, 1", "x", source)
    assert "more than 8 times" in twice.text and len(twice.text) <= 2_000
