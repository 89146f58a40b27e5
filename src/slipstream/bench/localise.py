"""Measures how well a statement leads to the fault: code search against plain grep.

Input: a folder of tasks made by the factory. None of their code runs; the trees are copied.

Asked for the names in a statement, code search finds a task if its first five answers show a line of the faulty
function; grep finds it if a line of it is in as many characters of `grep -rn` output as those answers have.

The `top5` figures count files: the faulty one is among the first five that search names when it is asked for the names,
when it is given the user's report as it is, and among grep's first five, whichever way of grep is best (`grep_ranks`).
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import ConfigError, ToolError
from slipstream.patches.parse import sections
from slipstream.tasks.factory.building import issue_in
from slipstream.tasks.factory.package.suite import Function, functions_of
from slipstream.tasks.factory.statement import names_in
from slipstream.tasks.gate import file_of, oracle_of
from slipstream.tasks.jsonl import read_tasks
from slipstream.tools.codesearch import CodeSearch, Store, host_folder
from slipstream.types import Json, Task

NUM_ANSWERS = 5
NUM_FILES = 5
MAX_NAMES = 8
_HEADER = re.compile(r"(?P<path>[^\s:|]+\.\w+)(?::(?P<first>\d+)(?:-(?P<last>\d+))?)?(?: (?:in )?\S.*)?")
_PATH = re.compile(r"^([^\s:|]+\.\w+)(?=[:\s]|$)", re.MULTILINE)
_WORD = re.compile(r"[^\W\d]\w{3,}")
_SHOWN = re.compile(r"\s*(?P<first>\d+)(?:-(?P<last>\d+))?(?:\||: )")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Lines of a file that an answer shows."""

    path: str
    first: int
    last: int


def run(folder: Path, *, num: int | None = None) -> dict[str, Json]:
    """The figures: num_tasks, the shares of tasks that were found in each way, and details."""
    tasks = read_tasks(file_of(folder))[:num]
    by_tree: dict[str, list[Task]] = {}
    for task in tasks:
        if task.sandbox is None or not task.sandbox.tree or not oracle_of(task):
            raise ConfigError(f"{task.id} has no tree or no oracle: give a folder that `slipstream tasks make` wrote")
        by_tree.setdefault(task.sandbox.tree, []).append(task)
    start_s = time.monotonic()
    tries: list[_Try] = []
    store = Store()
    try:
        for tree, some in by_tree.items():
            with tempfile.TemporaryDirectory(prefix="slipstream-localise-") as place:
                copy = Path(place, "tree")
                shutil.copytree(tree, copy, ignore=shutil.ignore_patterns(".deps"))
                tries += [_try(task, copy, store) for task in some]
    finally:
        store.close()
    total = len(tries)
    return {
        "num_tasks": total,
        "search_share": round(sum(one.by_search for one in tries) / total, 4),
        "grep_share": round(sum(one.by_grep for one in tries) / total, 4),
        "search_top5": round(sum(one.file_by_search for one in tries) / total, 4),
        "text_top5": round(sum(one.file_by_text for one in tries) / total, 4),
        "grep_top5": round(sum(one.file_by_grep for one in tries) / total, 4),
        "search_only": sum(one.by_search and not one.by_grep for one in tries),
        "grep_only": sum(one.by_grep and not one.by_search for one in tries),
        "without_names": sum(not one.num_names for one in tries),
        "mean_chars": round(sum(one.num_chars for one in tries) / total, 1),
        "mean_files": round(sum(one.num_files for one in tries) / total, 1),
        "seconds": round(time.monotonic() - start_s, 1),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Try:
    by_search: bool
    by_grep: bool
    file_by_search: bool
    file_by_text: bool
    file_by_grep: bool
    num_names: int
    num_chars: int
    num_files: int
    """Python files of the tree."""


def _try(task: Task, copy: Path, store: Store) -> _Try:
    assert task.sandbox is not None
    before = {path: (copy / path).read_bytes() for path in task.sandbox.files}
    try:
        for path, file in task.sandbox.files.items():
            (copy / path).write_bytes(file.data)
        faulty = faulty_functions(task)
        right = {section.old_path for section in sections(oracle_of(task).encode("utf-8", "surrogateescape"))}
        issue = issue_in(task.brief.instruction)
        names = names_in(task.brief.instruction)[:MAX_NAMES]
        search = CodeSearch(host_folder(copy), store)
        by_names, by_text = _asked(search, names), _asked(search, [issue])
        text = first_answers(by_names, NUM_ANSWERS)
        paths = set(search.tree.paths())
        greps = grep_ranks(copy, names or list(dict.fromkeys(_WORD.findall(issue))), len(by_names or by_text))
        return _Try(
            by_search=_hits(shown_in(text, NUM_ANSWERS), faulty),
            by_grep=_hits(grep(copy, names, len(text)), faulty),
            file_by_search=not right.isdisjoint(files_in(by_names, paths)[:NUM_FILES]),
            file_by_text=not right.isdisjoint(files_in(by_text, paths)[:NUM_FILES]),
            file_by_grep=any(not right.isdisjoint(files[:NUM_FILES]) for files in greps),
            num_names=len(names),
            num_chars=len(text),
            num_files=sum(path.endswith(".py") for path in paths),
        )
    finally:
        for path, data in before.items():
            (copy / path).write_bytes(data)


def _asked(search: CodeSearch, terms: Sequence[str]) -> str:
    """The whole answer; empty if there is none."""
    if not terms:
        return ""
    try:
        return search.ask(list(terms)).text
    except ToolError:
        return ""


def faulty_functions(task: Task) -> list[Function]:
    """The functions that the oracle changes, in the faulty files."""
    assert task.sandbox is not None
    found: list[Function] = []
    for section in sections(oracle_of(task).encode("utf-8", "surrogateescape")):
        path = section.old_path or ""
        functions = functions_of(path, task.sandbox.files[path].data.decode("utf-8", "surrogateescape"))
        for hunk in section.hunks or []:
            lead = next((at for at, (old, new) in enumerate(zip(hunk.old, hunk.new, strict=False)) if old != new), 0)
            line = hunk.old_start + lead
            around = [one for one in functions if one.first_line <= line <= one.last_line]
            found += around[-1:]
    return found


def _hits(shown: Sequence[Shown], faulty: Sequence[Function]) -> bool:
    return any(
        one.path == function.path and one.first <= function.last_line and one.last >= function.first_line
        for one in shown
        for function in faulty
    )


# ---------------------------------------------------------------- what is shown


def first_answers(text: str, num: int) -> str:
    """The text of the first `num` answers; each answer begins with a path."""
    lines: list[str] = []
    num_seen = 0
    for line in text.split("\n"):
        num_seen += _HEADER.fullmatch(line) is not None
        if num_seen > num:
            break
        lines.append(line)
    return "\n".join(lines)


def shown_in(text: str, num: int) -> list[Shown]:
    """The lines that the first answers show, or name by line number. A headline counts as showing its whole range,
    except for a class, where it shows the first line."""
    found: list[Shown] = []
    path = ""
    for line in first_answers(text, num).split("\n"):
        if header := _HEADER.fullmatch(line):
            path = header["path"]
            if header["first"]:
                first = int(header["first"])
                last = int(header["last"] or first) if " class " not in line else first
                found.append(Shown(path=path, first=first, last=last))
        elif path and (shown := _SHOWN.match(line)):
            found.append(Shown(path=path, first=int(shown["first"]), last=int(shown["last"] or shown["first"])))
    return found


def files_in(text: str, paths: Collection[str]) -> list[str]:
    """The files that begin a line of an answer, in order, each once."""
    return list(dict.fromkeys(found for found in _PATH.findall(text) if found in paths))


def grep(folder: Path, names: Sequence[str], num_chars: int) -> list[Shown]:
    """The lines in the first `num_chars` characters of `grep -rn` for the names in Python files, sorted by path."""
    found: list[Shown] = []
    for path, number, line in _matches(folder, names):
        num_chars -= len(f"{path}:{number}:{line}\n")
        if num_chars < 0:
            break
        found.append(Shown(path=path, first=number, last=number))
    return found


def grep_ranks(folder: Path, names: Sequence[str], num_chars: int) -> list[list[str]]:
    """The files that grep names, in three orders: by path, as far as `num_chars` characters of `grep -rn` go; with most
    matching lines first; with most different names first."""
    num_lines: Counter[str] = Counter()
    kinds: dict[str, set[str]] = {}
    for path, _, line in _matches(folder, names):
        num_lines[path] += 1
        kinds.setdefault(path, set()).update(name for name in names if name in line)
    by_lines = sorted(num_lines, key=lambda path: (-num_lines[path], path))
    by_names = sorted(num_lines, key=lambda path: (-len(kinds[path]), -num_lines[path], path))
    return [list(dict.fromkeys(one.path for one in grep(folder, names, num_chars))), by_lines, by_names]


def _matches(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    if not names:
        return
    wanted = re.compile("|".join(map(re.escape, names)))
    for place in sorted(folder.rglob("*.py")):
        text = place.read_bytes().decode("utf-8", "replace")
        for number, line in enumerate(text.split("\n"), 1):
            if wanted.search(line):
                yield place.relative_to(folder).as_posix(), number, line
