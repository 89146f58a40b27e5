"""What the tasks of all these data sets have in common: facts of a row enter, a Task leaves.

Invariants: what the agent may see (the brief and the sandbox) is made of the problem statement and the image alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.errors import ConfigError, SlipstreamError
from slipstream.graders.testing.paths import any_of
from slipstream.graders.testing.work import TEST_SETTINGS, paths_of
from slipstream.tasks.swe.rows import Row, read_rows
from slipstream.types import AgentLimits, Brief, Grading, Json, SandboxLimits, SandboxSpec, Task

TESTBED = "/testbed"
DEFAULT_TOOLS = ("bash", "edit", "search", "finish")
LIMITS = SandboxLimits(memory_mb=8192, processes=1024, disk_mb=8192, file_mb=2048)
TEST_PLACES = ("/tests/**", "/test/**", "/testing/**", "**/tests/**", "**/test_*.py", "**/*_test.py", "**/tests.py")
"""Where repositories keep their tests."""
START, END = ">>>>> Start Test Output", ">>>>> End Test Output"

ENVIRONMENT = {
    # the owner of the image's files is another than the sandbox's user
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "PIP_RETRIES": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
NO_LATER_HISTORY = """set -e
if [ -e .git ]; then
later=$(git rev-list -n 1 --all --reflog --not HEAD)
for name in $(git remote); do git remote remove "$name"; done
git for-each-ref --format='delete %(refname)' --no-merged HEAD | git update-ref --stdin
git reflog expire --expire=now --all
rm -f .git/ORIG_HEAD .git/FETCH_HEAD .git/MERGE_HEAD .git/CHERRY_PICK_HEAD
if [ -n "$later" ]; then git gc --quiet --prune=now; fi
later=$(git rev-list -n 1 --all --reflog --not HEAD)
test -z "$later"
fi"""
"""Leaves of a repository what led to the commit that is checked out: no remotes, no later branches, tags, stashes or
logs, and none of their objects. Fails if something later can still be named."""

INSTRUCTION = """The repository in {folder} has the problem that is described below. Change its files so that the \
problem is solved. Tests that you cannot see will be run on your changes; you need not change the tests that are there.

{problem}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a reader was asked to make tasks."""

    base: str = "{image}"
    """What sandboxes stand on; `{image}` is the image's name and `{id}` the task's."""
    tree: str = ""
    """A folder whose files the repository begins with, in place of the image's; may hold `{id}`."""
    tools: tuple[str, ...] = DEFAULT_TOOLS
    timeout_s: float
    """For the tests of one task."""


class Reader(Protocol):
    """Reads the tasks of a data set's file, the first `num` of them."""

    def __call__(
        self,
        *,
        path: str,
        num: int | None = None,
        base: str = "{image}",
        tree: str = "",
        tools: tuple[str, ...] = DEFAULT_TOOLS,
        timeout_s: float = ...,
    ) -> tuple[Task, ...]: ...


def reader_of(task_of: Callable[[Row, Setting], Task], *, timeout_s: float = 1_800.0) -> Reader:
    """The reader of a data set, from what makes a task of one of its rows and its own limit on the tests' time."""
    usual_s = timeout_s

    def read(
        *,
        path: str,
        num: int | None = None,
        base: str = "{image}",
        tree: str = "",
        tools: tuple[str, ...] = DEFAULT_TOOLS,
        timeout_s: float = usual_s,
    ) -> tuple[Task, ...]:
        setting = Setting(base=base, tree=tree, tools=tools, timeout_s=timeout_s)
        return tuple(task_of(row, setting) for row in read_rows(path, num))

    return read


def make_task(
    row: Row,
    setting: Setting,
    *,
    id: str,
    image: str,
    problem: str,
    setup: Sequence[str],
    grading: Mapping[str, Json],
) -> Task:
    try:
        base, tree = (text.format(image=in_full(image), id=id) for text in (setting.base, setting.tree))
    except (KeyError, IndexError, ValueError) as raised:
        raise ConfigError(
            f"base and tree may hold {{image}} and {{id}}, and nothing else in braces: {raised}"
        ) from None
    if not problem.strip():
        raise row.wrong('the field "problem_statement" is empty: the agent would not know what to do')
    return Task(
        id=id,
        brief=Brief(
            instruction=INSTRUCTION.format(folder=TESTBED, problem=problem.strip()),
            tools=setting.tools,
            limits=AgentLimits(),
        ),
        sandbox=SandboxSpec(base=base, workdir=TESTBED, tree=tree, setup=tuple(setup), env=ENVIRONMENT, limits=LIMITS),
        patch_of=TESTBED,
        grading=Grading(kind="tests", spec={"folder": TESTBED, "timeout_s": setting.timeout_s, **grading}),
    )


def in_full(image: str) -> str:
    """An image's name with its registry, which is Docker Hub where none is named: podman does not guess it."""
    first, slash, _ = image.partition("/")
    has_registry = bool(slash) and (first == "localhost" or "." in first or ":" in first)
    return image if has_registry else f"docker.io/{image}"


def fail_to_pass(row: Row) -> list[str]:
    """The tests that show that the problem is solved."""
    tests = row.texts("FAIL_TO_PASS")
    if not tests:
        raise row.wrong('the field "FAIL_TO_PASS" is empty: nothing would show that the problem is solved')
    return tests


def touched(row: Row, name: str) -> tuple[str, ...]:
    """The files that a patch of the row is about."""
    try:
        return paths_of(row.text(name, "").encode("utf-8", "surrogateescape"))
    except SlipstreamError as raised:
        raise row.wrong(f'the field "{name}" is no patch: {raised}') from raised


def places_of_tests(sources: Iterable[str]) -> list[Json]:
    """Where changes do not count: the usual places of tests, less those that are the repository's own source."""
    known = list(sources)
    return [pattern for pattern in TEST_PLACES if not any(map(any_of([pattern]), known))]


def kept_settings(sources: Iterable[str]) -> list[Json]:
    """Files about how tests are run that the repository's own fix changes too: there, the work may as well."""
    return [path for path in sources if any_of((*TEST_SETTINGS, "setup.cfg", "pyproject.toml"))(path)]


def in_conda(commands: Iterable[str]) -> str:
    """A script for bash that runs in the images' environment. As in the data sets' harnesses, a command that fails
    does not stop it."""
    lines = ["source /opt/miniconda3/bin/activate", "conda activate testbed", f"cd {TESTBED}", *commands]
    return "\n".join(lines) + "\n"


def script_for(command: str, before: Iterable[str] = ()) -> str:
    """A script whose exit code is the test command's, with the results between two markers."""
    return in_conda((*before, f"echo '{START}'", command, "code=$?", f"echo '{END}'", "exit $code"))


def forgiving(script: str) -> str:
    """A set-up command that runs a script and does not mind how it ends."""
    return f"/bin/bash -c {shlex.quote(script)} || true"


def with_exit_code(script: str) -> str:
    """A script with the markers in it, that ends with the exit code of what runs between them."""
    lines = script.split("\n")
    ends = [number for number, line in enumerate(lines) if END in line]
    if not ends:
        return script
    lines.insert(ends[0], "slipstream_test_code=$?")
    return "\n".join([*lines, 'exit "${slipstream_test_code:-0}"', ""])


def applying(patch: str, row: Row) -> str:
    """A set-up command that applies a patch and leaves no trace of it. It begins with what it means if it fails, since
    that is what an error shows first."""
    ending = "END_OF_PATCH_8b1f"
    if re.search(rf"^{ending}$", patch, re.MULTILINE):
        raise row.wrong(f"the patch holds the line {ending}")
    meaning = "# the patch of the row must fit the files of its image"
    return f"{meaning}\ngit apply --whitespace=nowarn - <<'{ending}'\n{patch.rstrip(chr(10))}\n{ending}"


_RANGES = re.compile(r"@@ -(\S+) \+(\S+) @@")
_BACKWARDS = {"new file mode": "deleted file mode", "deleted file mode": "new file mode"}


def backwards(patch: str) -> str:
    """The patch that undoes a patch of text; empty if it renames files or has data that is no text."""
    if re.search(r"^(?:rename |copy |GIT binary patch|old mode )", patch, re.MULTILINE):
        return ""
    lines: list[str] = []
    names: list[str] = []
    num_left = 0
    for line in patch.split("\n"):
        ranges = _RANGES.match(line)
        if num_left > 0 and line[:1] in ("+", "-", " ", ""):
            num_left -= 2 if line[:1] in (" ", "") else 1
            lines.append({"+": "-", "-": "+"}.get(line[:1], line[:1]) + line[1:])
        elif ranges is not None:
            num_left = sum(int([*size.split(","), "1"][1]) for size in ranges.groups())
            lines.append(f"@@ -{ranges[2]} +{ranges[1]} @@{line[ranges.end() :]}")
        elif line.startswith("--- "):
            names = [line[4:]]
        elif line.startswith("+++ "):
            names.append(line[4:])
            lines += [f"--- {_swapped(names[1], 'a')}", f"+++ {_swapped(names[0], 'b')}"]
        elif line.startswith("index "):
            continue  # its hashes are the other way round
        else:
            kind = line[:17] if line.startswith("deleted") else line[:13]
            lines.append(_BACKWARDS.get(kind, kind) + line[len(kind) :])
    return "\n".join(lines)


def _swapped(name: str, side: str) -> str:
    return name if name.startswith("/dev/null") else f"{side}{name[1:]}"
