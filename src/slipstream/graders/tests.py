"""The `tests` grader: the work is a patch, and tests say what it is worth.

In a fresh sandbox of the task: what of the patch may count is applied to the clean files (`testing.work`), the set-up
runs, then the grading's own hidden tests are put into place, and then the tests run. The reward is 1 if the expected
tests came out as they must (`testing.rules`), else 0.

    {"kind": "tests", "command": ["python3"], "fail_to_pass": ["tests/test_a.py::test_sum"],
     "pass_to_pass": ["tests/test_a.py::test_name"], "drop": ["tests/**"], "timeout_s": 20}

    {"kind": "tests", "command": "pytest -rA tests/test_a.py", "parser": "pytest", "rules": "swebench",
     "fail_to_pass": [...], "pass_to_pass": [...], "test_patch": "diff --git ...", "timeout_s": 1800}

Always holds: a patch that does not fit, that tampers, that breaks the sandbox, ends the tests early or makes them last
too long is a trusted 0, with the reason; a fault of provider, host or of the grading itself raises. Where a set-up
fails, or the tests' command ends for want of a program, that is tried once more without the work, in a fresh sandbox
that is opened when the first is closed: what fails there too is the grading's fault. The patch is data: nothing of it
runs but what the tests import.

What is left at risk. Code under test runs in the process that runs the tests, under the same user. With our own
reporter (`parser` "report"), results leave that process by a pipe to one that never runs the work, under a key that is
made for each run, and leave the sandbox as that one's output: there is no file of results that anyone could own. Parts
of pytest may not be replaced, test files may not be written to, and two tests of random name must come out as they
must. That stops what is easy: ending early, forged output or result files, plugins, patched runners. It cannot stop
code written against this very reporter: such code can search the process's memory for the key and the pipe, tell the
random tests from the others by their place, and report what it likes; nor values made to be equal to everything. With
a log parser, what the tests print is the report, as in the data sets' own harnesses: code under test that prints lines
in the runner's form is believed, and what a set-up command started may still run when the tests do. Rewards near 1 for
code that looks at its callers are worth a look.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from pydantic import Field, field_validator, model_validator

from slipstream.errors import GraderError, SandboxBroken, SandboxFileError, SandboxLimitError
from slipstream.graders.base import GradeContext
from slipstream.graders.replay.judge import Place, ReplaySpec, with_replay
from slipstream.graders.spec import GraderSpec, read_spec
from slipstream.graders.testing.logs import PARSERS, between_markers, ran_to_its_end
from slipstream.graders.testing.reported import Report, TestRun, run_reported
from slipstream.graders.testing.rules import Comparison, Expected, Ran, Rules, compare, files_of
from slipstream.graders.testing.work import TEST_SETTINGS, Look, Refused, Work, applied, looking_into, put, take_work
from slipstream.names import did_you_mean
from slipstream.offload import WorkTooLarge, apart
from slipstream.sandbox.base import ExecResult, Sandbox
from slipstream.sandbox.opening import open_sandbox
from slipstream.sandbox.patch import Entry, PatchError
from slipstream.types import Artifact, File, Grading, Json, Verdict

REPORT = "report"
MAX_LOG_BYTES = 64 << 20
NO_PROGRAM = (126, 127)
"""What a shell ends with whose last program may not be run, or is not there."""
_SHOWN_CHARS = 2_000


class TestsSpec(GraderSpec):
    command: str | list[str]
    """For the parser "report": the interpreter, then arguments for pytest. For the others: a script for bash, or the
    argument list of a program."""
    parser: str = REPORT
    """"report": our own reporter on pytest. Else the name of a log parser (`testing.logs.PARSERS`)."""
    rules: Rules = Rules.STRICT
    fail_to_pass: list[str] = Field(default_factory=list)
    pass_to_pass: list[str] = Field(default_factory=list)
    expected: dict[str, str] | None = None
    """All statuses, for the rules "r2egym"."""
    tests: list[str] = Field(default_factory=list)
    """For "report": what pytest is asked to run; the files of the expected tests if it is empty."""
    folder: str = ""
    """The folder that the patch is of; the sandbox's working directory if it is empty."""
    drop: list[str] = Field(default_factory=list)
    """Patterns of paths, such as the tests', where changes are left out. Environments, compiled files, conftest.py and
    the like always are."""
    keep: list[str] = Field(default_factory=list)
    """Paths that count although changes there are left out, or looked into, otherwise."""
    forbid: list[str] = Field(default_factory=list)
    """Patterns of paths whose change makes the work worth 0."""
    restore: dict[str, str | None] = Field(default_factory=dict)
    """Hidden files, written last; null for one that must not be there."""
    test_patch: str = ""
    """Hidden changes, made last. What it touches is dropped from the work."""
    sandbox_setup: list[str] | None = None
    """In place of the sandbox's own set-up, where that takes away from the agent what grading needs."""
    setup: list[str] = Field(default_factory=list)
    """Shell commands run after the work is in place, and before the hidden tests are. They must go well on the task's
    own files: end one with `|| true` if that takes the right work."""
    env: dict[str, str] = Field(default_factory=dict)
    markers: list[str] = Field(default_factory=list)
    """Two lines of the log, between which the results stand; none for all of it."""
    oracle: str = ""
    """A patch that solves the task, for those who check tasks. The grader does not look at it."""
    replay: ReplaySpec | None = None
    """Calls to be made on work whose tests came out as they must, and what they must return."""
    canaries: bool = True
    """For "report": run two tests of random name among the others."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Set it from what the reference solution takes: work that is slower is worth 0."""

    @field_validator("parser")
    @classmethod
    def _known(cls, name: str) -> str:
        if name != REPORT and name not in PARSERS:
            raise ValueError(f'there is no log parser "{name}"{did_you_mean(name, PARSERS)}')
        return name

    @field_validator("command")
    @classmethod
    def _not_empty(cls, command: str | list[str]) -> str | list[str]:
        if not command:
            raise ValueError("write the command that runs the tests")
        return command

    @model_validator(mode="after")
    def _fits(self) -> TestsSpec:
        if self.parser == REPORT and isinstance(self.command, str):
            raise ValueError('for the parser "report" the command is a list: the interpreter, then pytest\'s arguments')
        if (self.rules is Rules.R2EGYM) != (self.expected is not None):
            raise ValueError('"expected" belongs to the rules "r2egym": give both or neither')
        if self.expected is None and not self.fail_to_pass:
            raise ValueError("fail_to_pass is empty: name at least one test that the work must make pass")
        if self.replay is not None and (self.parser != REPORT or self.setup):
            raise ValueError('"replay" is for the parser "report" without a setup: leave it out')
        if len(self.markers) not in (0, 2):
            raise ValueError("markers are two lines, or none")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    comparison: Comparison
    said: str
    exit_code: int | None = None
    """Of the tests' command, where its log is the report."""


class _Doubt(StrEnum):
    """What went wrong over the work and may be the grading's own fault."""

    SETUP = "setup"
    COMMAND = "command"


class TestsGrader:
    needs_sandbox = True

    def check(self, spec: Mapping[str, Json]) -> None:
        read_spec("tests", TestsSpec, spec)

    def limit_s(self, spec: Mapping[str, Json]) -> float:
        read = read_spec("tests", TestsSpec, spec)
        return read.timeout_s + (0.0 if read.replay is None else read.replay.timeout_s)

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        spec = read_spec("tests", TestsSpec, grading.spec)
        asked = context.sandbox
        if spec.sandbox_setup is not None:
            asked = replace(asked, setup=tuple(spec.sandbox_setup))
        sandbox = await open_sandbox(context.provider, asked, timeout_s=context.start_timeout_s)
        try:
            folder = spec.folder or asked.workdir
            look = looking_into(sandbox, folder)
            hidden = await _hidden_files(spec, look)
            await _check_program(sandbox, spec)
            spec = spec.model_copy(update={"env": {**asked.env, **spec.env}, "folder": folder})
            verdict, doubt = await _judged(sandbox, spec, artifact, look, hidden)
        finally:
            await sandbox.aclose()
        if doubt is not None:  # whoever grades holds one sandbox at a time
            sandbox = await open_sandbox(context.provider, asked, timeout_s=context.start_timeout_s)
            try:
                await _check_without_work(sandbox, spec, hidden, doubt)
            finally:
                await sandbox.aclose()
        return await _with_replay(verdict, spec, artifact, hidden, replace(context, sandbox=asked))


async def _with_replay(
    verdict: Verdict, spec: TestsSpec, artifact: Artifact, hidden: Mapping[str, Entry | None], context: GradeContext
) -> Verdict:
    """The verdict, after the grading's recorded calls were made on the work too."""

    async def take(look: Look) -> Work:
        paths = {"drop_paths": frozenset(hidden), "keep_paths": frozenset(spec.keep)}
        return await take_work(artifact.patch, look, drop=spec.drop, forbid=spec.forbid, **paths)

    place = Place(
        interpreter=spec.command[0],
        folder=spec.folder,
        paths=tuple(filter(None, spec.env.get("PYTHONPATH", "").split(":"))),
        env=spec.env,
    )
    return await with_replay(verdict, spec.replay, place, context, artifact.patch, take)


async def _hidden_files(spec: TestsSpec, look: Look) -> dict[str, Entry | None]:
    """What the grading itself puts into place, seen from the clean files."""
    files: dict[str, Entry | None] = {}
    if spec.test_patch:
        try:
            files = await applied(spec.test_patch.encode("utf-8", "surrogateescape"), look)
        except PatchError as raised:
            raise GraderError(f"the grading's own test_patch does not fit the task's files: {raised}") from raised
    for path, text in spec.restore.items():
        files[path] = None if text is None else Entry(data=text.encode("utf-8", "surrogateescape"))
    return files


async def _check_program(sandbox: Sandbox, spec: TestsSpec) -> None:
    """While nothing of the work is there: is there what runs the tests?"""
    name = "/bin/bash" if isinstance(spec.command, str) else spec.command[0]
    result = await sandbox.exec(["/bin/sh", "-c", 'command -v "$1"', "sh", name], env=spec.env, timeout_s=60.0)
    if result.exit_code != 0:
        raise GraderError(f"the sandbox has no {name} to run the tests with: give the task an image that has it")


async def _judged(
    sandbox: Sandbox, spec: TestsSpec, artifact: Artifact, look: Look, hidden: Mapping[str, Entry | None]
) -> tuple[Verdict, _Doubt | None]:
    """The verdict, and whether that stands only if the same goes well without the work. All else that goes wrong
    inside of the sandbox from here on is the work's doing."""
    left_out = ""
    doubt: _Doubt | None = None
    try:
        work = await take_work(
            artifact.patch,
            look,
            drop=spec.drop,
            drop_paths=frozenset(hidden),
            keep_paths=frozenset(spec.keep),
            forbid=spec.forbid,
        )
        left_out = f"left out: {', '.join(work.left_out[:5])}" if work.left_out else ""
        await put(sandbox, spec.folder, work.files)
        if wrong := await _set_up(sandbox, spec):
            doubt = _Doubt.SETUP
            raise Refused(f"over the work {wrong}")
        await put(sandbox, spec.folder, hidden)
        run = _reported(sandbox, spec, work) if spec.parser == REPORT else _logged(sandbox, spec)
        outcome = await run
    except Refused as raised:
        return _verdict(spec, None, " ".join(filter(None, (str(raised), left_out)))), doubt
    except SandboxBroken as raised:  # untrusted, breaking the grader's sandbox would pay
        return _verdict(spec, None, f"the work broke the sandbox that it is graded in: {raised}"), None
    except (SandboxFileError, SandboxLimitError) as raised:
        return _verdict(spec, None, f"the work does not fit a fresh sandbox: {raised}"), None
    if outcome.exit_code in NO_PROGRAM and not outcome.comparison.solved:
        doubt = _Doubt.COMMAND
    problems = [f"{path}: {why}" for path, why in artifact.problems.items()][:3]
    detail = "\n".join(filter(None, (outcome.comparison.detail, *problems, left_out, outcome.said)))
    return _verdict(spec, outcome.comparison, detail), doubt


async def _set_up(sandbox: Sandbox, spec: TestsSpec) -> str:
    """What went wrong, if anything did."""
    for command in spec.setup:
        try:
            result = await sandbox.exec(
                ["/bin/sh", "-c", command], env=spec.env, cwd=spec.folder, timeout_s=spec.timeout_s
            )
        except (SandboxBroken, SandboxLimitError) as raised:
            return f"the set-up {command!r} broke the sandbox: {raised}"
        if result.exit_code != 0:
            how = f"passed its limit of {spec.timeout_s:g} s" if result.timed_out else f"ended with {result.exit_code}"
            return f"the set-up {command!r} {how}: {_tail(result.stdout.text() + result.stderr.text())}"
    return ""


async def _check_without_work(
    sandbox: Sandbox, spec: TestsSpec, hidden: Mapping[str, Entry | None], doubt: _Doubt
) -> None:
    """Raises GraderError if what went wrong over the work does so without it."""
    if wrong := await _set_up(sandbox, spec):
        remedy = "mend it, or end it with `|| true` if only the right work lets it go well"
        raise GraderError(f"without the work too {wrong} ({remedy})")
    if doubt is _Doubt.SETUP:
        return
    try:
        await put(sandbox, spec.folder, hidden)
        outcome = await _logged(sandbox, spec)
    except (Refused, SandboxBroken, SandboxFileError, SandboxLimitError):
        return  # it ends in another way
    if outcome.exit_code in NO_PROGRAM:
        raise GraderError(
            f"without the work too the tests' command ended with {outcome.exit_code}, for want of a program: "
            f"mend the command, or give the task an image that has it: {outcome.said}"
        )


def _verdict(spec: TestsSpec, comparison: Comparison | None, detail: str) -> Verdict:
    kinds = ("as_expected",) if spec.rules is Rules.R2EGYM else ("fail_to_pass", "pass_to_pass")
    shares = dict.fromkeys(kinds, 0.0) if comparison is None else dict(comparison.shares)
    solved = comparison is not None and comparison.solved
    return Verdict(reward=float(solved), components=shares, detail=detail[:_SHOWN_CHARS])


def _expected(spec: TestsSpec) -> Expected:
    return Expected(
        fail_to_pass=tuple(spec.fail_to_pass), pass_to_pass=tuple(spec.pass_to_pass), statuses=spec.expected
    )


async def _reported(sandbox: Sandbox, spec: TestsSpec, work: Work) -> _Outcome:
    expected = (*spec.fail_to_pass, *spec.pass_to_pass)
    run = TestRun(
        command=tuple(spec.command),
        tests=tuple(spec.tests) or files_of(expected),
        env=spec.env,
        folder=spec.folder,
        protect=(*spec.drop, *TEST_SETTINGS),
        added_modules=work.added_modules,
        canaries=spec.canaries,
    )
    report = await run_reported(sandbox, run, timeout_s=spec.timeout_s)
    if report.problem:
        raise Refused(report.problem)
    return _Outcome(comparison=compare(spec.rules, _expected(spec), Ran(statuses=report.statuses)), said=_why(report))


def _why(report: Report) -> str:
    """Of one test that went wrong, what it said."""
    for test, text in report.texts.items():
        if text and (test in report.statuses or test == "collection"):
            return f"{test}: {text}"
    return ""


async def _logged(sandbox: Sandbox, spec: TestsSpec) -> _Outcome:
    argv = spec.command
    if isinstance(argv, str):
        script = f"/tmp/{secrets.token_hex(12)}.sh"
        await sandbox.write({script: File(data=argv.encode("utf-8", "surrogateescape"), mode=0o755)})
        argv = ["/bin/bash", script]
    result = await sandbox.exec(
        ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *argv],
        env=spec.env,
        cwd=spec.folder,
        timeout_s=spec.timeout_s,
        max_output_bytes=MAX_LOG_BYTES,
    )
    if result.timed_out:
        raise Refused(f"the tests passed their limit of {spec.timeout_s:g} s")
    try:  # never here: on a line made for it, a parser's pattern takes for ever
        return await apart(_read_log, spec, result)
    except WorkTooLarge as raised:
        raise Refused(f"the log of the tests cannot be read: {raised}") from raised


def _read_log(spec: TestsSpec, result: ExecResult) -> _Outcome:
    log = result.stdout.text()
    parse = PARSERS[spec.parser]
    statuses = parse(between_markers(log, *spec.markers)) if spec.markers else parse(log)
    if not statuses:  # some runners print outside of the markers
        statuses = parse(log)
    ran = Ran(statuses=statuses, exit_code=result.exit_code, to_its_end=ran_to_its_end(log))
    comparison = compare(spec.rules, _expected(spec), ran)
    said = "" if comparison.solved else _tail(log)
    return _Outcome(comparison=comparison, said=said, exit_code=result.exit_code)


def _tail(text: str) -> str:
    return text[-1_000:].strip()
