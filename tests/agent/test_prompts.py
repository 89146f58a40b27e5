"""Prompts that recipes share."""

import pytest

from slipstream.agent.prompts import code_prompt


def test_it_leads_to_search_before_reading() -> None:
    prompt = code_prompt(("search", "bash", "edit", "finish"))
    assert (
        prompt.index("Search before you read") < prompt.index("Do not read whole files") < prompt.index("Call finish")
    )
    assert "ask search" in prompt and "grep" not in prompt
    assert "grep -rn" in code_prompt(("bash", "edit", "finish"))


@pytest.mark.parametrize("tool", ["search", "edit", "bash", "finish"])
def test_it_speaks_only_of_tools_that_are_there(tool: str) -> None:
    words = {"search": "ask search", "edit": "old_str", "bash": "run the code", "finish": "finish"}
    tools = {"search", "bash", "edit", "finish"}
    assert words[tool] in code_prompt(tools)
    assert words[tool] not in code_prompt(tools - {tool})
