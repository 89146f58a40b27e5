"""One run of a task's tests in one sandbox.

Input: a sandbox, and a TestsSpec whose folder and environment are complete. Output: a TrialOutcome. Raises Refused if
the run speaks against the work in the sandbox, and RefusedUnlessTaskFails if the grading itself may be at fault.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from slipstream.errors import GraderError, SandboxBroken, SandboxLimitError
from slipstream.graders.testing.logs import PARSERS, between_markers, ran_to_its_end, spelled
from slipstream.graders.testing.reported import ReporterOutput, TestRun, run_reported
from slipstream.graders.testing.rules import Expected, ResultComparison, SuiteResult, compare, files_of
from slipstream.graders.testing.spec import REPORT, TestsSpec
from slipstream.graders.testing.work import TEST_SETTINGS, ReadEntries, Refused, applied
from slipstream.offload import WorkTooLarge, apart
from slipstream.patches.apply import Entry, PatchError
from slipstream.sandbox.base import ExecResult, Sandbox
from slipstream.types import File

MAX_LOG_BYTES = 64 << 20
LOG_RULE = "log_rule"
"""The verdict's component that says what the data set's own rule says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    comparison: ResultComparison
    output: str
    exit_code: int | None = None
    """The test command's exit code, if its log is the report."""
    statuses: Mapping[str, str] = field(default_factory=dict)


class FailedStep(StrEnum):
    """The step that failed with the work in place, and may fail without it too."""

    SETUP = "setup"
    COMMAND = "command"
    RUNNER = "runner"
    HOST = "host"


class RefusedUnlessTaskFails(Refused):
    """The work is refused unless the same step also fails without it."""

    def __init__(self, why: str, step: FailedStep) -> None:
        super().__init__(why)
        self.step = step


async def hidden_files(spec: TestsSpec, read_entries: ReadEntries) -> dict[str, Entry | None]:
    """The files that the grading itself writes, made from the clean files."""
    files: dict[str, Entry | None] = {}
    if spec.test_patch:
        try:
            files = await applied(spec.test_patch.encode("utf-8", "surrogateescape"), read_entries)
        except PatchError as raised:
            raise GraderError(f"the grading's test_patch does not apply to the task's files: {raised}") from raised
    for path, text in spec.restore.items():
        files[path] = None if text is None else Entry(data=text.encode("utf-8", "surrogateescape"))
    return files


async def check_program(sandbox: Sandbox, spec: TestsSpec) -> None:
    """Raises GraderError if the sandbox, still without the work, lacks the program that runs the tests."""
    name = "/bin/bash" if isinstance(spec.command, str) else spec.command[0]
    result = await sandbox.exec(["/bin/sh", "-c", 'command -v "$1"', "sh", name], env=spec.env, timeout_s=60.0)
    if result.exit_code != 0:
        raise GraderError(f"the sandbox has no {name} to run the tests with: give the task an image that has it")


async def set_up(sandbox: Sandbox, spec: TestsSpec) -> str:
    """Run the set-up commands; returns what went wrong, or an empty string."""
    for command in spec.setup:
        try:
            result = await sandbox.exec(
                ["/bin/sh", "-c", command], env=spec.env, cwd=spec.folder, timeout_s=spec.timeout_s
            )
        except (SandboxBroken, SandboxLimitError) as raised:
            return f"the set-up {command!r} broke the sandbox: {raised}"
        if result.exit_code != 0:
            limit = f"exceeded its limit of {spec.timeout_s:g} s"
            how = limit if result.timed_out else f"ended with {result.exit_code}"
            return f"the set-up {command!r} {how}: {tail(result.stdout.text() + result.stderr.text())}"
    return ""


def _expected(spec: TestsSpec) -> Expected:
    return Expected(
        fail_to_pass=tuple(spec.fail_to_pass), pass_to_pass=tuple(spec.pass_to_pass), statuses=spec.expected
    )


async def run_tests(sandbox: Sandbox, spec: TestsSpec, added_modules: tuple[str, ...], order: str = "") -> TrialOutcome:
    if spec.parser == REPORT:
        return await _reported(sandbox, spec, added_modules, order)
    return await _logged(sandbox, spec)


async def _reported(sandbox: Sandbox, spec: TestsSpec, added_modules: tuple[str, ...], order: str) -> TrialOutcome:
    expected = (*spec.fail_to_pass, *spec.pass_to_pass)
    run = TestRun(
        command=tuple(spec.command),
        tests=tuple(spec.tests) or files_of(expected),
        env=spec.env,
        folder=spec.folder,
        protect=(*spec.drop, *TEST_SETTINGS),
        added_modules=added_modules,
        append=spec.log_rule is None,
        canaries=spec.canaries,
        order=order,
    )
    report = await run_reported(sandbox, run, timeout_s=spec.timeout_s)
    if report.cannot_run:
        raise RefusedUnlessTaskFails(report.problem, FailedStep.RUNNER)
    if report.problem:
        raise Refused(report.problem)
    if spec.log_rule is None:
        compared = compare(spec.rules, _expected(spec), SuiteResult(statuses=report.statuses))
        return TrialOutcome(comparison=compared, output=_why(report), statuses=report.statuses)
    try:
        return await apart(_read_report, spec, report)
    except WorkTooLarge as raised:
        raise Refused(f"the log of the tests cannot be read: {raised}") from raised


def _read_report(spec: TestsSpec, report: ReporterOutput) -> TrialOutcome:
    """The result by the report, and beside it by the data set's rule on what was printed."""
    rule = spec.log_rule
    assert rule is not None
    statuses = spelled(rule.parser, report.statuses)
    compared = compare(spec.rules, _expected(spec), SuiteResult(statuses=statuses))
    printed = SuiteResult(statuses=PARSERS[rule.parser](report.log), to_its_end=ran_to_its_end(report.log))
    by_log = compare(rule.rules, _expected(spec), printed)
    output = _why(report)
    if by_log.solved != compared.solved:
        says = "solved" if by_log.solved else f"not solved ({by_log.detail})"
        output = f"the data set's own rule, on the printed log, says {says}\n{output}"
    shares = {**compared.shares, LOG_RULE: float(by_log.solved)}
    return TrialOutcome(comparison=replace(compared, shares=shares), output=output, statuses=statuses)


def _why(report: ReporterOutput) -> str:
    """The error message of one test that failed."""
    for test, text in report.texts.items():
        if text and (test in report.statuses or test == "collection"):
            return f"{test}: {text}"
    return ""


async def _logged(sandbox: Sandbox, spec: TestsSpec) -> TrialOutcome:
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
        raise Refused(f"the tests exceeded their limit of {spec.timeout_s:g} s")
    try:  # in another process: on a crafted line, a parser's pattern can take forever
        return await apart(_read_log, spec, result)
    except WorkTooLarge as raised:
        raise Refused(f"the log of the tests cannot be read: {raised}") from raised


def _read_log(spec: TestsSpec, result: ExecResult) -> TrialOutcome:
    log = result.stdout.text()
    parse = PARSERS[spec.parser]
    statuses = parse(between_markers(log, *spec.markers)) if spec.markers else parse(log)
    if not statuses:  # some runners print outside the markers
        statuses = parse(log)
    ran = SuiteResult(statuses=statuses, exit_code=result.exit_code, to_its_end=ran_to_its_end(log))
    comparison = compare(spec.rules, _expected(spec), ran)
    output = "" if comparison.solved else tail(log)
    return TrialOutcome(comparison=comparison, output=output, exit_code=result.exit_code, statuses=statuses)


def tail(text: str) -> str:
    return text[-1_000:].strip()
