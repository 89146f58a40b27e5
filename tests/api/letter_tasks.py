"""Tasks as a user would write them, for the tests of the public API."""

from __future__ import annotations

import slipstream as ss


@ss.tool
def count(letter: str, word: str) -> str:
    """Count how often a letter occurs in a word."""
    return str(word.count(letter))


@ss.tool(effect=ss.Effect.PURE)
class Notebook:
    """Remember a line."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def call(self, line: str) -> str:
        self._lines.append(line)
        return f"{len(self._lines)} lines"


def grade(answer: str, task: ss.Task) -> float:
    return float(answer.strip() == task.extra["expected"])


async def brief(answer: str, tool_calls: tuple[object, ...]) -> float:
    return 1.0 / max(1, len(tool_calls))


async def judged(answer: str, model: ss.Judge) -> float:
    said = await model.ask([ss.Message(role=ss.Role.USER, content=f"Is {answer} right?")], max_tokens=20)
    return float(said == "yes")


def task(word: str, letter: str, **changes: object) -> ss.Task:
    given: dict[str, object] = {
        "id": f"{word}-{letter}",
        "instruction": f"letter:{letter} word:{word}",
        "tools": [count, ss.finish],
        "grader": grade,
        "extra": {"expected": str(word.count(letter))},
        **changes,
    }
    return ss.Task(**given)  # type: ignore[arg-type]  # the tests vary them


def solver(scene: ss.ScriptedCall) -> object:
    """Counts what it is asked to count, and finishes with what it was told."""
    letter, word = (part.partition(":")[2] for part in scene.messages[0].content.split())
    if len(scene.messages) == 1:
        return ss.act("count", letter=letter, word=word)
    return ss.act("finish", answer=scene.messages[-1].content)
