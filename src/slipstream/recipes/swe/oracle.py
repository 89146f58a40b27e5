"""A tool-using oracle: it looks for the faulty lines, fixes them, runs what failed, and finishes.

Input: made tasks, or rows of a public format. Output: a Script for a scripted model, or the lines of one task.
Invariants: it uses the task's own tools; what it writes is what the oracle's patch says. A task whose patch cannot be
told as calls of its tools is given up at once, with the reason as the answer; the others are not affected.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import ConfigError, ModelError
from slipstream.model.scripted import Script, ScriptedCall, act
from slipstream.patches.parse import PatchError, sections
from slipstream.tasks.factory.levels import Level, level_of
from slipstream.tasks.factory.package.suite import Function, functions_of
from slipstream.tasks.factory.statement import names_in
from slipstream.tasks.gate import oracle_of
from slipstream.tasks.source import load_tasks
from slipstream.types import Json, Message, Role, Task, ToolCall

log = logging.getLogger(__name__)

CONTEXT_LINES = 12
VIEWED_LINES = 40
"""From the line of a function's `def`."""
_PROGRAM = re.compile(r"When I run this\n\n(?P<code>(?:    .*\n|\n)+?)\nit fails\.", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceEdit:
    """One place to fix: text that is once in the file, and what it must be. A new file has no old text."""

    path: str
    line: int
    old: str
    new: str


def reference_edits_of(task: Task) -> list[ReferenceEdit]:
    """What the oracle changes, as replacements of text. Raises ConfigError if a place is ambiguous."""
    fixes: list[ReferenceEdit] = []
    for section in sections(oracle_of(task).encode("utf-8", "surrogateescape")):
        path = section.new_path
        if path is None or section.old_path not in (path, None) or section.hunks is None:
            raise ConfigError(f"the oracle of {task.id} renames or deletes {section.old_path}, or it is no text")
        text = _text_of(task, path)
        for hunk in section.hunks:
            old, new, skipped = _decoded(hunk.old), _decoded(hunk.new), 0
            if text is not None and old in text:
                old, new, skipped = _shortest(old, new, text)
            is_new = section.old_path is None
            if is_new == bool(old) or (text is not None and text.count(old) > 1):
                raise ConfigError(f"the oracle of {task.id} cannot be expressed as a replacement in {path}")
            fixes.append(ReferenceEdit(path=path, line=hunk.old_start + skipped, old=old, new=new))
    return fixes


def _decoded(lines: Sequence[bytes]) -> str:
    return b"".join(lines).decode("utf-8", "surrogateescape")


def _text_of(task: Task, path: str) -> str | None:
    """A file of the task as the agent finds it; None if it is in an image."""
    if task.sandbox is None:
        return None
    if path in task.sandbox.files:
        return task.sandbox.files[path].data.decode("utf-8", "surrogateescape")
    place = Path(task.sandbox.tree, path)
    is_there = bool(task.sandbox.tree) and place.is_file()
    return place.read_bytes().decode("utf-8", "surrogateescape") if is_there else None


def _shortest(old: str, new: str, text: str | None) -> tuple[str, str, int]:
    """Both sides without the lines that they share at the ends, as far as the old one is still once in the text."""
    before, after = old.split("\n"), new.split("\n")
    lead = 0
    while True:
        for end in (True, False):
            cut_old, cut_new = (before[:-1], after[:-1]) if end else (before[1:], after[1:])
            shares = before and after and (before[-1] == after[-1] if end else before[0] == after[0])
            joined = "\n".join(cut_old)
            if shares and joined.strip() and (text is None or text.count(joined) == 1):
                before, after, lead = cut_old, cut_new, lead + (not end)
                break
        else:
            return "\n".join(before), "\n".join(after), lead


def demonstration(task: Task, *, with_search: bool = False) -> list[Message]:
    """What the oracle says, turn by turn."""
    names = {name.rpartition(":")[2] for name in task.brief.tools}
    fixes = reference_edits_of(task)
    lines: list[Message] = []
    if with_search:
        lines.append(_search(task, fixes, names))
    for fix in fixes:
        first, last = _view(task, fix) if with_search else _around(fix)
        if not fix.old:
            if "edit" not in names:
                raise ConfigError(f"the oracle of {task.id} makes {fix.path}, for which the task has no tool")
            lines.append(act("edit", command="create", path=fix.path, file_text=fix.new))
        elif "edit" in names:
            lines.append(act("edit", command="view", path=fix.path, view_range=[first, last]))
            lines.append(act("edit", command="str_replace", path=fix.path, old_str=fix.old, new_str=fix.new))
        else:
            if level_of(task.id) is not Level.SHOWN:
                lines.append(act("bash", command=f"sed -n {first},{last}p {shlex.quote(fix.path)}"))
            lines.append(act("replace", path=fix.path, old=fix.old, new=fix.new))
    if program := program_of(task.brief.instruction):
        lines.append(act("bash", command=f"python3 - <<'END'\n{program}\nEND"))
    lines.append(act("finish"))
    return lines


def _function(task: Task, fix: ReferenceEdit) -> Function | None:
    """The function that a place is in."""
    files = {} if task.sandbox is None else task.sandbox.files
    if fix.path not in files:
        return None
    found = functions_of(fix.path, files[fix.path].data.decode("utf-8", "replace"))
    around = [one for one in found if one.first_line <= fix.line <= one.last_line]
    return around[-1] if around else None


def _around(fix: ReferenceEdit) -> tuple[int, int]:
    return max(1, fix.line - CONTEXT_LINES), fix.line + CONTEXT_LINES


def _view(task: Task, fix: ReferenceEdit) -> tuple[int, int]:
    """The lines to look at: from where a search finds the function, so that what is said follows from what was seen."""
    function = _function(task, fix)
    if function is None or fix.line - function.body_line + fix.old.count("\n") >= VIEWED_LINES:
        return _around(fix)
    return function.body_line, function.body_line + VIEWED_LINES


def _search(task: Task, fixes: Sequence[ReferenceEdit], names: set[str]) -> Message:
    said = names_in(task.brief.instruction)
    functions = [function for fix in fixes if (function := _function(task, fix)) is not None]
    named = {part for function in functions for part in function.name.split(".") if part in said}
    wanted = [*sorted(named), *(name for name in said if name not in named)][:3] or ["def"]
    if "search" in names:
        return act("search", terms=[*wanted])
    pattern = "|".join(f"(def|class) {re.escape(name)}" for name in wanted)
    return act("bash", command=f"grep -rnE --include=*.py {shlex.quote(pattern)} . | grep -v '^./.deps' | head -20")


def program_of(instruction: str) -> str:
    """The failing program that a statement shows; empty if it shows none."""
    found = _PROGRAM.search(instruction)
    return "" if found is None else "\n".join(line[4:] for line in found["code"].rstrip("\n").split("\n"))


def oracle(*, tasks: str, args: Mapping[str, Json] | None = None, with_search: bool = False) -> Script:
    """A script that solves the tasks of a folder, or of another source with these arguments, each known by its
    instruction. Those that it cannot tell are given up, with the reason."""
    known: dict[str, Sequence[Message]] = {}
    for task in load_tasks(tasks, num=None, args=args or {}):
        try:
            known[task.brief.instruction] = demonstration(task, with_search=with_search)
        except (ConfigError, PatchError, UnicodeEncodeError) as raised:
            log.warning("the oracle gives up %s: %s", task.id, raised)
            known[task.brief.instruction] = [act("finish", answer=f"given up: {raised}")]

    def script(scene: ScriptedCall) -> Message:
        for instruction, lines in known.items():
            if instruction in scene.prompt_text:
                if scene.num_calls >= len(lines):
                    return act("finish")
                line = lines[scene.num_calls]
                call = line.calls[0]
                return Message(
                    role=Role.ASSISTANT,
                    calls=(ToolCall(id=f"call{scene.num_calls}", name=call.name, arguments=call.arguments),),
                )
        raise ModelError("the oracle does not know this task: it solves only those of its folder")

    return script
