"""Builds Tasks from the rows of all these data sets.

Invariants: what the agent can see (the brief and the sandbox) depends only on the problem statement and the image.
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
"""The usual paths of tests in repositories."""
START, END = ">>>>> Start Test Output", ">>>>> End Test Output"

ENVIRONMENT = {
    # the image's files belong to another user than the sandbox's
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
"""Removes from a repository everything that is not history of the checked-out commit: remotes, later branches, tags,
stashes, logs and their objects. Fails if a later commit can still be reached."""

INSTRUCTION = """The repository in {folder} has the problem that is described below. Change its files so that the \
problem is solved. Tests that you cannot see will be run on your changes; you need not change the tests that are there.

{problem}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """The options of a reader."""

    base: str = "{image}"
    """The base of sandboxes; `{image}` is the image's name and `{id}` the task's id."""
    tree: str = ""
    """A folder with the repository's files, used instead of the image's; may contain `{id}`."""
    tools: tuple[str, ...] = DEFAULT_TOOLS
    timeout_s: float
    """The time limit of one task's tests."""


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


def reader_of(task_of: Callable[[Row, ReaderOptions], Task], *, timeout_s: float = 1_800.0) -> Reader:
    """Make the reader of a data set from a function that turns a row into a task, and the default time limit."""
    default_s = timeout_s

    def read(
        *,
        path: str,
        num: int | None = None,
        base: str = "{image}",
        tree: str = "",
        tools: tuple[str, ...] = DEFAULT_TOOLS,
        timeout_s: float = default_s,
    ) -> tuple[Task, ...]:
        options = ReaderOptions(base=base, tree=tree, tools=tools, timeout_s=timeout_s)
        return tuple(task_of(row, options) for row in read_rows(path, num))

    return read


def make_task(
    row: Row,
    options: ReaderOptions,
    *,
    id: str,
    image: str,
    problem: str,
    setup: Sequence[str],
    grading: Mapping[str, Json],
) -> Task:
    try:
        base, tree = (text.format(image=full_image_name(image), id=id) for text in (options.base, options.tree))
    except (KeyError, IndexError, ValueError) as raised:
        raise ConfigError(
            f"base and tree may contain {{image}} and {{id}}, and nothing else in braces: {raised}"
        ) from None
    if not problem.strip():
        raise row.wrong('the field "problem_statement" is empty: the agent would not know what to do')
    return Task(
        id=id,
        brief=Brief(
            instruction=INSTRUCTION.format(folder=TESTBED, problem=problem.strip()),
            tools=options.tools,
            limits=AgentLimits(),
        ),
        sandbox=SandboxSpec(base=base, workdir=TESTBED, tree=tree, setup=tuple(setup), env=ENVIRONMENT, limits=LIMITS),
        patch_of=TESTBED,
        grading=Grading(kind="tests", spec={"folder": TESTBED, "timeout_s": options.timeout_s, **grading}),
    )


def full_image_name(image: str) -> str:
    """An image's name with its registry, by default Docker Hub's: podman requires one."""
    first, slash, _ = image.partition("/")
    has_registry = bool(slash) and (first == "localhost" or "." in first or ":" in first)
    return image if has_registry else f"docker.io/{image}"


def fail_to_pass(row: Row) -> list[str]:
    """The tests that fail before the problem is solved and pass afterwards."""
    tests = row.texts("FAIL_TO_PASS")
    if not tests:
        raise row.wrong('the field "FAIL_TO_PASS" is empty: nothing would show that the problem is solved')
    return tests


def changed_paths(row: Row, name: str) -> tuple[str, ...]:
    """The files that a patch of the row changes."""
    try:
        return paths_of(row.text(name, "").encode("utf-8", "surrogateescape"))
    except SlipstreamError as raised:
        raise row.wrong(f'the field "{name}" is not a valid patch: {raised}') from raised


def test_patterns(sources: Iterable[str]) -> list[Json]:
    """Patterns of paths where changes do not count: the usual test paths, except those that match its source files."""
    known = list(sources)
    return [pattern for pattern in TEST_PLACES if not any(map(any_of([pattern]), known))]


def kept_settings(sources: Iterable[str]) -> list[Json]:
    """Test settings that the reference fix changes too: there, changes of the work count."""
    return [path for path in sources if any_of((*TEST_SETTINGS, "setup.cfg", "pyproject.toml"))(path)]


def in_conda(commands: Iterable[str]) -> str:
    """A bash script that runs in the images' environment. As in the data sets' harnesses, a failing command does not
    stop it."""
    lines = ["source /opt/miniconda3/bin/activate", "conda activate testbed", f"cd {TESTBED}", *commands]
    return "\n".join(lines) + "\n"


def script_for(command: str, before: Iterable[str] = ()) -> str:
    """A script with the test command's exit code, which prints the results between two markers."""
    return in_conda((*before, f"echo '{START}'", command, "code=$?", f"echo '{END}'", "exit $code"))


def ignoring_failure(script: str) -> str:
    """A set-up command that runs a script and ignores its exit code."""
    return f"/bin/bash -c {shlex.quote(script)} || true"


def with_exit_code(script: str) -> str:
    """The script, which has the markers, changed to end with the exit code of what runs between them."""
    lines = script.split("\n")
    ends = [number for number, line in enumerate(lines) if END in line]
    if not ends:
        return script
    lines.insert(ends[0], "slipstream_test_code=$?")
    return "\n".join([*lines, 'exit "${slipstream_test_code:-0}"', ""])


def apply_command(patch: str, row: Row) -> str:
    """A set-up command that applies a patch and leaves no trace of it. It begins with a comment that
    explains its failure in error messages."""
    ending = "END_OF_PATCH_8b1f"
    if re.search(rf"^{ending}$", patch, re.MULTILINE):
        raise row.wrong(f"the patch contains the line {ending}, which ends it in the set-up command")
    meaning = "# the patch of the row must fit the files of its image"
    return f"{meaning}\ngit apply --whitespace=nowarn - <<'{ending}'\n{patch.rstrip(chr(10))}\n{ending}"


_RANGES = re.compile(r"@@ -(\S+) \+(\S+) @@")
_REVERSED_HEADERS = {"new file mode": "deleted file mode", "deleted file mode": "new file mode"}


def reversed_patch(patch: str) -> str:
    """The patch that undoes a text patch; empty if it renames files or has binary data."""
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
            continue  # its hashes would have to be swapped
        else:
            kind = line[:17] if line.startswith("deleted") else line[:13]
            lines.append(_REVERSED_HEADERS.get(kind, kind) + line[len(kind) :])
    return "\n".join(lines)


def _swapped(name: str, side: str) -> str:
    return name if name.startswith("/dev/null") else f"{side}{name[1:]}"
