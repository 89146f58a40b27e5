"""The memory tool: one section at a time, with a summary in hand."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from slipstream.errors import ConfigError
from slipstream.tools import ContextEdit, Toolset
from slipstream.types import Json, Message, Role, ToolCall

TOOL = "slipstream.recipes.memory.tools:next_with_summary"
OPENING = (Message(role=Role.SYSTEM, content="Be good."), Message(role=Role.USER, content="Where is it?"))
DOCUMENT: Mapping[str, Json] = {"sections": ["It was here.", "It is there."], "memory_chars": 20}


def read(*summaries: str, resources: Mapping[str, Json] = DOCUMENT) -> list[tuple[str, Sequence[Message]]]:
    """What each call answers: a text, or the conversation it rewrites to."""

    async def main() -> list[tuple[str, Sequence[Message]]]:
        told: list[tuple[str, Sequence[Message]]] = []
        async with Toolset.named([TOOL]).open(resources=resources, opening=OPENING) as tools:
            for number, summary in enumerate(summaries):
                call = ToolCall(id=f"{number}", name="next_with_summary", arguments={"summary": summary})
                (result,) = await tools.run([call], [])
                edited = result.outcome.messages if isinstance(result.outcome, ContextEdit) else ()
                told.append((result.text, edited))
        return told

    return asyncio.run(main())


def test_each_call_goes_on_from_the_problem_the_memory_the_section_and_the_progress_alone() -> None:
    (first, first_shown), (second, second_shown), (third, third_shown) = read("", "it was here", "it is\n there")
    assert [first, second] == ["Section 1 of 2:", "Section 2 of 2:"]
    assert third == "All 2 sections were read: call finish with the answer."
    assert [shown[0] for shown in (first_shown, second_shown, third_shown)] == [OPENING[0]] * 3
    assert [shown[1].content for shown in (first_shown, second_shown, third_shown)] == [
        "Where is it?\n\nMemory:\nnone\n\nSection 1 of 2:\nIt was here.",
        "Where is it?\n\nMemory:\nit was here\n\nSection 2 of 2:\nIt is there.",
        "Where is it?\n\nMemory:\nit is there\n\nAll 2 sections were read: call finish with the answer.",
    ]
    assert {len(shown) for shown in (first_shown, second_shown, third_shown)} == {2}


def test_after_the_end_there_is_nothing_more() -> None:
    *_, last = read("", "a", "b", "c")
    assert last == ("The whole document was read: call finish with the answer.", ())


def test_a_summary_over_the_limit_is_told_and_nothing_is_forgotten() -> None:
    _, refused, again = read("", "x" * 21, "x" * 20)
    assert refused == ("The summary has 21 characters, and 20 are kept: write a shorter one.", ())
    assert again[0] == "Section 2 of 2:", "the place is as it was"


@pytest.mark.parametrize(
    "resources",
    [
        {},
        {"sections": [], "memory_chars": 20},
        {"sections": ["a", " "], "memory_chars": 20},
        {"sections": "all of it", "memory_chars": 20},
        {"sections": ["a"], "memory_chars": 0},
    ],
)
def test_a_task_without_a_document_is_an_error_and_not_the_agents_doing(resources: Mapping[str, Json]) -> None:
    with pytest.raises(ConfigError, match="the task's resources"):
        read("", resources=resources)
