"""Builds Tasks from the rows of all these data sets.

Invariants: what the agent can see (the brief and the sandbox) depends only on the problem statement and the image.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from slipstream.errors import SlipstreamError
from slipstream.graders.testing.paths import any_of
from slipstream.graders.testing.spec import REPORT
from slipstream.graders.testing.work import TEST_SETTINGS, paths_of
from slipstream.tasks.swe.options import HOST, TESTBED, RowContext, filled
from slipstream.tasks.swe.rows import Row
from slipstream.types import Brief, Grading, Json, SandboxSpec, Task

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


def make_task(
    row: Row,
    context: RowContext,
    *,
    id: str,
    image: str,
    problem: str,
    setup: Sequence[str],
    grading: Mapping[str, Json],
) -> Task:
    if not problem.strip():
        raise row.wrong('the field "problem_statement" is empty: the agent would not know what to do')
    options = context.options
    base = HOST if context.checkouts is not None else filled(options.base, image=full_image_name(image), id=id)
    tree, env = context.tree(row, id)
    return Task(
        id=id,
        brief=Brief(
            instruction=INSTRUCTION.format(folder=TESTBED, problem=problem.strip()),
            tools=options.tools,
            limits=options.agent_limits(),
        ),
        sandbox=SandboxSpec(
            base=base,
            workdir=TESTBED,
            tree=tree,
            setup=(*options.setup, *setup),
            env={**ENVIRONMENT, **env, **options.env},
            limits=options.limits_of_sandbox(),
            activation=context.activation,
        ),
        patch_of=TESTBED,
        grading=Grading(
            kind="tests",
            spec={
                "folder": TESTBED,
                "timeout_s": context.timeout_s,
                **grading,
                **_grader_setup(grading, options.setup),
            },
        ),
    )


def _grader_setup(grading: Mapping[str, Json], setup: Sequence[str]) -> dict[str, Json]:
    """A set-up of the grader's own also begins with the reader's commands."""
    own = grading.get("sandbox_setup")
    return {"sandbox_setup": [*setup, *own]} if isinstance(own, list) else {}


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


def in_testbed(commands: Iterable[str]) -> str:
    """A bash script in the repository's folder. As in the data sets' harnesses, a failing command does not stop it."""
    return "\n".join([f"cd {TESTBED}", *commands]) + "\n"


def script_for(command: str, before: Iterable[str] = ()) -> str:
    """A script with the test command's exit code, which prints the results between two markers."""
    return in_testbed((*before, f"echo '{START}'", command, "code=$?", f"echo '{END}'", "exit $code"))


def reported(context: RowContext, arguments: str, log_parser: str, rules: str) -> dict[str, Json]:
    """The part of a grading that runs tests by our own reporter, with these arguments of pytest, and reads what it
    prints by the data set's rule, for comparison."""
    return {
        "command": [context.python, *shlex.split(arguments)],
        "parser": REPORT,
        "log_rule": {"parser": log_parser, "rules": rules},
    }


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
