"""Prompts that recipes share."""

from pathlib import Path

import pytest

from slipstream.agent.config import AgentConfig
from slipstream.agent.loop import briefed
from slipstream.agent.prompts import code_prompt
from slipstream.config import apply_overrides
from slipstream.errors import ConfigError
from slipstream.types import Brief


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


def test_a_prompt_of_ones_own_is_a_text_or_a_file(tmp_path: Path) -> None:
    file, brief = tmp_path / "prompt.md", Brief(instruction="Do it.")
    file.write_text("You repair code.\n")
    config = apply_overrides(AgentConfig(), [f"prompt=@{file}"])
    file.unlink()
    assert briefed(brief, config).system == "You repair code.", "the file was read when the setting was made"
    assert briefed(brief, AgentConfig(prompt="Be quick.")).system == "Be quick."
    assert briefed(Brief(instruction="Do it.", system="Own."), config).system == "Own."
    assert briefed(brief, AgentConfig(prompt="none")).system == ""


@pytest.mark.parametrize("prompt", ["cod", "", "@nowhere.md"])
def test_a_prompt_that_cannot_be_meant_is_refused(prompt: str) -> None:
    with pytest.raises(ConfigError, match=r"agent\.prompt="):
        AgentConfig(prompt=prompt)
