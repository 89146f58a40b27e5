"""Rules about work on code: edits that miss or break something, failing programs, reading too much."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slipstream.agent.hints.seen import AnsweredCall, Situation
from slipstream.tools.editor.editor import NEW_SYNTAX_ERROR
from slipstream.tools.editor.target import CLOSEST, NOT_FOUND

LARGE_CHARS = 8_000
"""A longer answer is a lot to read."""
_MAX_SCANNED_CHARS = 40_000
_AROUND = 10

_NO_MODULE = re.compile(r"(?:ModuleNotFoundError|ImportError): No module named '?([\w.]{1,80})")
_NO_NAME = re.compile(
    r"ImportError: cannot import name '(\w{1,80})' from (?:partially initialized module )?'([\w.]{1,80})"
)
_FRAME = re.compile(r'^ *File "([^"\n]{1,200})", line (\d{1,7})(?:, in (\S{1,80}))?', re.MULTILINE)
_PYTEST_FRAME = re.compile(r"^([\w./-]{1,200}\.py):(\d{1,7}): ", re.MULTILINE)
_LIBRARY = re.compile(r"^<|^/(?:usr|lib|opt)/|/(?:site|dist)-packages/|/lib(?:64)?/python\d")
_CUT = re.compile(r"\[\.\.\. \d+ (?:characters|bytes)[^\]\n]* left out \.\.\.\]")
_CAT = re.compile(r"(?:cd [^|;&]*&&\s*)?(?:cat|less|more|nl|bat)\b(?![^|;&]*<<)[^|;&<>]*$")


def missed_edit(situation: Situation) -> str | None:
    for answer in _of("edit", situation):
        if not (answer.is_error and NOT_FOUND in answer.text):
            continue
        earlier = [old for step in situation.steps[-5:-1] for old in step.answers]
        path = answer.argument("path")
        again = any(old.is_error and NOT_FOUND in old.text and old.argument("path") == path for old in earlier)
        if again:
            return f"View {path} again where you want to change it, and replace one or two whole lines at a time."
        if CLOSEST in answer.text:
            return "Copy old_str from the lines shown here, blanks and tabs included."
        return f"Look for the place in {path} first, view it, and copy old_str from there."
    return None


def syntax_error(situation: Situation) -> str | None:
    for answer in _of("edit", situation):
        if f"\n{NEW_SYNTAX_ERROR}" in answer.text:
            path = answer.argument("path")
            return f"Your edit broke the syntax of {path}: fix it now, or take it back with edit's undo."
    return None


def missing_module(situation: Situation) -> str | None:
    for answer in _of("bash", situation):
        if found := _NO_NAME.search(_scanned(answer)):
            return f"{found[2]} has no {found[1]}: search for where it is defined, then import it from there."
        if found := _NO_MODULE.search(_scanned(answer)):
            return (
                f"If {found[1]} is part of this repository, run from its root, with `python -m pytest` or PYTHONPATH=. "
                "(or PYTHONPATH=src). If it is not, it is not installed: do without it."
            )
    return None


def traceback(situation: Situation) -> str | None:
    for answer in _of("bash", situation):
        text = _scanned(answer)
        if _NO_MODULE.search(text) or not (answer.is_error or "Traceback (most recent call last)" in text):
            continue
        frames = [(found[1], int(found[2]), found[3] or "") for found in _FRAME.finditer(text)]
        frames = frames or [(found[1], int(found[2]), "") for found in _PYTEST_FRAME.finditer(text)]
        own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
        if not own:
            continue
        path, line, name = own[-1]
        where = f"{path}, line {line}" + (f", in {name}" if name and name != "<module>" else "")
        look = f": look there first, with edit view_range [{max(1, line - _AROUND)}, {line + _AROUND}]"
        return f"The last frame in your tree is {where}{look if 'edit' in situation.tools else ': look there first'}."
    return None


def whole_file(situation: Situation) -> str | None:
    for answer in situation.now:
        if not answer.is_error and len(answer.text) > LARGE_CHARS and _reads_whole(answer):
            how = "search" if "search" in situation.tools else "grep -n"
            return f"That was a whole large file. Find the place with {how} first, then read only the lines around it."
    return None


def long_output(situation: Situation) -> str | None:
    for answer in situation.now:
        if _CUT.search(answer.text) and not _reads_whole(answer):
            return "The middle of this output was left out. Ask for less, or pass it through grep, head or tail."
    return None


def _of(tool: str, situation: Situation) -> Iterator[AnsweredCall]:
    return (answer for answer in situation.now if answer.call.name == tool)


def _scanned(answer: AnsweredCall) -> str:
    """The end of the answer, where programs report errors."""
    return answer.text[-_MAX_SCANNED_CHARS:]


def _reads_whole(answer: AnsweredCall) -> bool:
    call = answer.call
    match call.name:
        case "read_file":
            return call.arguments.get("start_line") is None and call.arguments.get("end_line") is None
        case "edit":
            return answer.argument("command") == "view" and call.arguments.get("view_range") is None
        case "bash":
            return _CAT.match(answer.argument("command")[:2_000].strip()) is not None
    return False
