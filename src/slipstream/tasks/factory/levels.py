"""Levels of a made task, for a curriculum: how much of the search for the bug is done for the agent.

Input: a task as `slipstream tasks make` wrote it. Output: the same bug with another statement, short tools and a window
of 4,096 tokens; its id ends in `@` and the level.
Invariants: the place of the bug is taken from the reference patch, and nothing of the fix is shown, only the tree
as the agent finds it. The grading is that of the made task.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import SequenceMatcher
from enum import StrEnum

from slipstream.patches.parse import Hunk, sections
from slipstream.tasks.factory.package.suite import Function, functions_of
from slipstream.tasks.gate import oracle_of
from slipstream.types import AgentLimits, Task

MAX_SHOWN_LINES = 60
"""Of a function whose source is shown; what is longer would not leave room in the window."""
TOOLS = tuple(f"slipstream.tasks.factory.tools:{name}" for name in ("bash", "replace", "finish"))
_MARK = "@"


class Level(StrEnum):
    SHOWN = "shown"
    """The faulty function's file and source: only the edit is required."""
    NAMED = "named"
    """The faulty function's file and name."""
    SEARCH = "search"
    """What the user reports, and no more."""


TURNS = {Level.SHOWN: 6, Level.NAMED: 9, Level.SEARCH: 12}


def level_of(task_id: str) -> Level | None:
    """None for a task as it was made."""
    _, _, level = task_id.partition(_MARK)
    return Level(level) if level else None


def made_id(task_id: str) -> str:
    """The id of the made task that a level was derived from."""
    return task_id.partition(_MARK)[0]


def at_levels(task: Task, levels: Iterable[Level]) -> list[Task]:
    """The task at each of these levels that is possible for it."""
    wanted = list(levels)
    functions = [] if set(wanted) <= {Level.SEARCH} else faulty_functions(task)
    return [made for level in wanted if (made := _at_level(task, level, functions)) is not None]


def at_level(task: Task, level: Level) -> Task | None:
    """None where the level is impossible: the place is in no function, or the function is too long to be shown."""
    return next(iter(at_levels(task, [level])), None)


def _at_level(task: Task, level: Level, functions: list[Function]) -> Task | None:
    if level is not Level.SEARCH and not functions:
        return None
    if level is Level.SHOWN and any(one.last_line - one.first_line >= MAX_SHOWN_LINES for one in functions):
        return None
    told = [task.brief.instruction, *_place(task, functions, level), _opening(functions, level)]
    limits = AgentLimits(turns=TURNS[level], context_tokens=4_096, tool_seconds=120.0)
    brief = replace(task.brief, instruction="\n\n".join(told), system=SYSTEM[level], tools=TOOLS, limits=limits)
    return replace(task, id=f"{task.id}{_MARK}{level}", brief=brief)


def _place(task: Task, functions: list[Function], level: Level) -> list[str]:
    if level is Level.SEARCH:
        return []
    if level is Level.NAMED:
        names = " and ".join(f"`{one.name}` in `{one.path}`" for one in functions)
        return [f"The cause is in {names}."]
    parts = []
    for one in functions:
        source = "\n".join(_text(task, one.path).split("\n")[one.first_line - 1 : one.last_line])
        where = f"`{one.name}` in `{one.path}`, from line {one.first_line}"
        parts.append(f"The cause is in {where}:\n\n```python\n{source}\n```")
    return parts


def faulty_functions(task: Task) -> list[Function]:
    """The innermost functions that the reference patch changes, as they are in the agent's tree; empty if it changes
    anything outside of a function."""
    found: dict[tuple[str, str], Function] = {}
    for section in sections(oracle_of(task).encode("utf-8", "surrogateescape")):
        path = section.old_path or ""
        functions = functions_of(path, _text(task, path))
        for hunk in section.hunks or []:
            for line in _changed_lines(hunk):
                around = [one for one in functions if one.first_line <= line <= one.last_line]
                if not around:
                    return []
                found[path, around[-1].name] = around[-1]
    return list(found.values())


def _text(task: Task, path: str) -> str:
    files = {} if task.sandbox is None else task.sandbox.files
    return files[path].data.decode("utf-8", "replace") if path in files else ""


def _changed_lines(hunk: Hunk) -> list[int]:
    """The lines of the agent's tree that the patch removes; where it only adds some, the line before them."""
    found: list[int] = []
    for kind, start, end, *_ in SequenceMatcher(None, hunk.old, hunk.new, autojunk=False).get_opcodes():
        if kind != "equal":
            found += range(hunk.old_start + start, hunk.old_start + end) or [hunk.old_start + max(0, start - 1)]
    return found


_ROLE = "You fix a bug in the Python package in /work. Every reply is one tool call."
_EDIT = "Correct the fault with replace: copy old exactly from the file, as few whole lines as are in it once."
_CHECK = "Run the failing program with bash, such as python3 -c. If it still fails, change the code again."
_FINISH = "When it runs without an error, call finish."


def _system(*steps: str) -> str:
    numbered = [f"{number}. {step}" for number, step in enumerate(steps, start=1)]
    return "\n".join((_ROLE, *numbered))


SYSTEM = {
    Level.SHOWN: _system(_EDIT, _CHECK, _FINISH),
    Level.NAMED: _system("Read the function with bash, such as grep -n and sed -n.", _EDIT, _CHECK, _FINISH),
    Level.SEARCH: _system(
        "Find the faulty function with bash, such as grep -rn for the names in the report; read it with sed -n.",
        _EDIT,
        _CHECK,
        _FINISH,
    ),
}


def _opening(functions: list[Function], level: Level) -> str:
    """How the first call is written, since a small model takes its form from what it has just read."""
    first = functions[0] if functions else None
    match level:
        case Level.SHOWN if first is not None:
            arguments = {"path": first.path, "old": "<wrong lines, as above>", "new": "<the same lines, corrected>"}
            return _written("replace", arguments)
        case Level.NAMED if first is not None:
            command = f"grep -n -A 40 'def {first.name.rpartition('.')[2]}' {first.path}"
            return _written("bash", {"command": command})
        case _:
            return _written("bash", {"command": "grep -rn --include=*.py '<name in the report>' . | grep -v .deps"})


def _written(name: str, arguments: Mapping[str, str]) -> str:
    call = json.dumps({"name": name, "arguments": dict(arguments)})
    return f"Begin with a call like this:\n<tool_call>\n{call}\n</tool_call>"
