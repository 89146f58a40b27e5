"""System prompts that recipes share. Input: the names of the agent's tools. Output: a text for `Brief.system`."""

from __future__ import annotations

from collections.abc import Collection

_ROLE = "You change the code of a repository until it does what the task asks for. Every reply calls a tool."


def code_prompt(tools: Collection[str]) -> str:
    """For work on code: find the place first, read little, change little, check it. Mentions only the given `tools`."""
    return "\n".join((_ROLE, "", *(f"{number}. {step}" for number, step in enumerate(_steps(tools), start=1))))


def _steps(tools: Collection[str]) -> list[str]:
    steps: list[str] = []
    if "search" in tools:
        steps.append(
            "Search before you read: ask search for the names in the task (Class.method, a function, an error text), "
            "then for callers of what you found."
        )
    elif "bash" in tools:
        steps.append("Search before you read: look for the names in the task with grep -rn.")
    if "edit" in tools:
        steps.append("Do not read whole files: view the lines you need with view_range, or the outline of a long file.")
    elif "read_file" in tools:
        steps.append("Do not read whole files: read the lines you need.")
    if "bash" in tools:
        steps.append("See the fault before you fix it: run a small script or the test that shows it.")
    if "edit" in tools:
        steps.append(
            "Change the smallest piece that fixes it: copy old_str exactly from a view, with a few lines that make it "
            "unique."
        )
    if "bash" in tools:
        steps.append("After the last edit run the code and its tests again.")
    if "finish" in tools:
        steps.append("Call finish when the work is done.")
    return steps
