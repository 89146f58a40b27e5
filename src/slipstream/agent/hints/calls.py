"""Rules about calls that cannot be parsed, name no tool, or repeat themselves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from slipstream.agent.hints.seen import AnsweredCall, Situation, Step
from slipstream.types import CallProblem

STEPS_BACK = 6
"""How far back to look for the same call."""

_HOW_TO_WRITE: Mapping[CallProblem, str] = {
    CallProblem.BAD_JSON: 'In a JSON string write a line break as \\n, a quote as \\" and a backslash as \\\\.',
    CallProblem.UNCLOSED: "The call did not end. Write less at once: make a long file in parts.",
    CallProblem.NO_NAME: 'Put the name of the tool under "name".',
    CallProblem.TOO_DEEP: "Write the arguments flat, as the tool describes them.",
    CallProblem.SEVERAL: "Write one call in each reply; the next one after its answer.",
    CallProblem.BAD_SHAPE: 'Write one object with "name" and "arguments", and the arguments as an object.',
}
_EDIT_COMMANDS = frozenset({"view", "create", "str_replace", "insert", "undo", "undo_edit", "open", "edit_file"})
_EDITOR_NAMES = frozenset({"str_replace_editor", "str_replace_based_edit_tool", "editor", "text_editor"})
_PROGRAMS = frozenset(
    {
        *("ls", "cat", "grep", "find", "sed", "awk", "head", "tail", "python", "python3", "pytest", "pip", "git", "cd"),
        *("pwd", "echo", "mkdir", "rm", "cp", "mv", "touch", "diff", "make", "sh", "shell", "terminal", "run"),
        *("execute_bash", "run_command", "execute"),
    }
)


def malformed_call(situation: Situation) -> str | None:
    problems = [answer.call.problem for answer in situation.now if answer.call.problem is not None]
    return _HOW_TO_WRITE[problems[0]] if problems else None


def unknown_tool(situation: Situation) -> str | None:
    for answer in situation.now:
        name = answer.call.name
        if answer.call.problem is not None or name in situation.tools:
            continue
        if "edit" in situation.tools and name in _EDIT_COMMANDS:
            return f'Call edit with "command": "{"undo" if name == "undo_edit" else name}".'
        if "edit" in situation.tools and name in _EDITOR_NAMES:
            return "The editor is called edit here; its commands are view, create, str_replace, insert and undo."
        if "bash" in situation.tools and name in _PROGRAMS:
            return 'Programs are run by bash: {"name": "bash", "arguments": {"command": "..."}}.'
    return None


def no_call(situation: Situation) -> str | None:
    if situation.now:
        return None
    if "bash" in situation.tools:
        return 'For example, call bash with {"command": "ls"}.'
    return f"The tools are: {', '.join(sorted(situation.tools)[:20])}."


def repeated_failure(situation: Situation) -> str | None:
    for now in situation.now:
        if not now.is_error or now.call.problem is not None:
            continue
        for place, before in enumerate(_before(situation)):
            if any(answer.edited for answer in before.answers):
                break
            if any(_failed_alike(answer, now, place == 0) for answer in before.answers):
                return f"This very call to {now.call.name[:60]} failed before. Change it, or find out why it fails."
    return None


def repeated_call(situation: Situation) -> str | None:
    for now in situation.now:
        if now.is_error or now.edited:
            continue
        past = itertools.chain.from_iterable(step.answers for step in _before(situation))
        if any(now.same_call(answer) and now.text == answer.text for answer in past):
            return "This call had the same answer before, so you know it already. Go on to the next step."
    return None


def _before(situation: Situation) -> Iterator[Step]:
    """The steps before the last, the latest first."""
    return itertools.islice(reversed(situation.steps[:-1]), STEPS_BACK)


def _failed_alike(before: AnsweredCall, now: AnsweredCall, was_last: bool) -> bool:
    """Whether the same call failed; with the same answer, if steps in between may have changed something."""
    return before.is_error and now.same_call(before) and (was_last or now.text == before.text)
