"""A tool-using oracle: it looks for the faulty lines, fixes them, runs what failed, and finishes.

Input: made tasks, or rows of a public format. Output: a script for a scripted model, or the lines of one task.
Invariants: it uses the task's own tools; what it writes is what the oracle's patch says. A task whose patch cannot be
told as calls of its tools is given up at once, with the reason as the answer; the others are not affected.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Mapping, Sequence

import slipstream as ss

log = logging.getLogger(__name__)

CONTEXT_LINES = 12
VIEWED_LINES = 40
"""From the line of a function's `def`."""
_PROGRAM = re.compile(r"When I run this\n\n(?P<code>(?:    .*\n|\n)+?)\nit fails\.", re.MULTILINE)


def demonstration(task: ss.Task, *, with_search: bool = False) -> list[ss.Message]:
    """What the oracle says, turn by turn."""
    names = {name.rpartition(":")[2] for name in task.brief.tools}
    fixes = ss.made_tasks.reference_edits(task)
    lines: list[ss.Message] = []
    if with_search:
        lines.append(_search(task, fixes, names))
    for fix in fixes:
        first, last = _view(task, fix) if with_search else _around(fix)
        if not fix.old:
            if "edit" not in names:
                raise ss.ConfigError(f"the oracle of {task.id} makes {fix.path}, for which the task has no tool")
            lines.append(ss.act("edit", command="create", path=fix.path, file_text=fix.new))
        elif "edit" in names:
            lines.append(ss.act("edit", command="view", path=fix.path, view_range=[first, last]))
            lines.append(ss.act("edit", command="str_replace", path=fix.path, old_str=fix.old, new_str=fix.new))
        else:
            if ss.made_tasks.level_of(task.id) is not ss.made_tasks.Level.SHOWN:
                lines.append(ss.act("bash", command=f"sed -n {first},{last}p {shlex.quote(fix.path)}"))
            lines.append(ss.act("replace", path=fix.path, old=fix.old, new=fix.new))
    if program := program_of(task.brief.instruction):
        lines.append(ss.act("bash", command=f"python3 - <<'END'\n{program}\nEND"))
    lines.append(ss.act("finish"))
    return lines


def _function(task: ss.Task, fix: ss.made_tasks.ReferenceEdit) -> ss.made_tasks.Function | None:
    """The function that a place is in."""
    files = {} if task.sandbox is None else task.sandbox.files
    if fix.path not in files:
        return None
    found = ss.made_tasks.functions_of(fix.path, files[fix.path].data.decode("utf-8", "replace"))
    around = [one for one in found if one.first_line <= fix.line <= one.last_line]
    return around[-1] if around else None


def _around(fix: ss.made_tasks.ReferenceEdit) -> tuple[int, int]:
    return max(1, fix.line - CONTEXT_LINES), fix.line + CONTEXT_LINES


def _view(task: ss.Task, fix: ss.made_tasks.ReferenceEdit) -> tuple[int, int]:
    """The lines to look at: from where a search finds the function, so that what is said follows from what was seen."""
    function = _function(task, fix)
    if function is None or fix.line - function.body_line + fix.old.count("\n") >= VIEWED_LINES:
        return _around(fix)
    return function.body_line, function.body_line + VIEWED_LINES


def _search(task: ss.Task, fixes: Sequence[ss.made_tasks.ReferenceEdit], names: set[str]) -> ss.Message:
    said = ss.made_tasks.names_in(task.brief.instruction)
    functions = [function for fix in fixes if (function := _function(task, fix)) is not None]
    named = {part for function in functions for part in function.name.split(".") if part in said}
    wanted = [*sorted(named), *(name for name in said if name not in named)][:3] or ["def"]
    if "search" in names:
        return ss.act("search", terms=[*wanted])
    pattern = "|".join(f"(def|class) {re.escape(name)}" for name in wanted)
    return ss.act("bash", command=f"grep -rnE --include=*.py {shlex.quote(pattern)} . | grep -v '^./.deps' | head -20")


def program_of(instruction: str) -> str:
    """The failing program that a statement shows; empty if it shows none."""
    found = _PROGRAM.search(instruction)
    return "" if found is None else "\n".join(line[4:] for line in found["code"].rstrip("\n").split("\n"))


def oracle(*, tasks: str, args: Mapping[str, ss.Json] | None = None, with_search: bool = False) -> ss.Script:
    """A script that solves the tasks of a folder, or of another source with these arguments, each known by its
    instruction. Those that it cannot tell are given up, with the reason."""
    known: dict[str, Sequence[ss.Message]] = {}
    for task in ss.load_tasks(tasks, args=args):
        try:
            known[task.brief.instruction] = demonstration(task, with_search=with_search)
        except ss.ConfigError as raised:
            log.warning("the oracle gives up %s: %s", task.id, raised)
            known[task.brief.instruction] = [ss.act("finish", answer=f"given up: {raised}")]

    def script(scene: ss.ScriptedCall) -> ss.Message:
        for instruction, lines in known.items():
            if instruction in scene.prompt_text:
                if scene.num_calls >= len(lines):
                    return ss.act("finish")
                line = lines[scene.num_calls]
                call = line.calls[0]
                return ss.Message(
                    role=ss.Role.ASSISTANT,
                    calls=(ss.ToolCall(id=f"call{scene.num_calls}", name=call.name, arguments=call.arguments),),
                )
        raise ss.ModelError("the oracle does not know this task: it solves only those of its folder")

    return script
