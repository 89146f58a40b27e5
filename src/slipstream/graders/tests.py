"""The `tests` grader: the work is a patch, and hidden tests decide its reward.

In a fresh sandbox of the task, the accepted part of the patch is applied to the clean files (`testing.work`), the
set-up runs, the grading's hidden tests are written, and the tests run. The reward is 1 if the expected tests have the
expected results (`testing.rules`), else 0.

    {"kind": "tests", "command": ["python3"], "fail_to_pass": ["tests/test_a.py::test_sum"],
     "pass_to_pass": ["tests/test_a.py::test_name"], "drop": ["tests/**"], "timeout_s": 20}

    {"kind": "tests", "command": "pytest -rA tests/test_a.py", "parser": "pytest", "rules": "swebench",
     "fail_to_pass": [...], "pass_to_pass": [...], "test_patch": "diff --git ...", "timeout_s": 1800}

Invariants: a patch that does not apply, tampers, breaks the sandbox, ends the tests early or makes them time out is a
trusted 0, with the reason. A failure after the work is in place is blamed on the work unless the same fails in a fresh
sandbox without it: only then, or if a sandbox does not open, is there no verdict. Grading holds one sandbox at a time.
The patch is data: none of it runs except what the tests import.

Defences. With our own reporter (`parser` "report"), results leave the process that runs the tests through a pipe to a
process that loads only the standard library. Patched parts of pytest, changed test files and results without the run's
key are refused, and two randomly named tests must have the expected results. Code written against all this can still
get round it, since it shares a process with the tests. So work that passed is run again in another sandbox against
twins of the hidden tests (`testing.twin`): copies under random names, some with wrong expectations. Work that passes
wrong copies which the reference patch fails, or that fails true ones, is worth 0.

Remaining risks: code that knows the right answers to the hidden tests and nothing else, such as a table of them; tests
without an assertion that can be made wrong, which have no twins; tests whose only assertions are negated, wrapped or
weak, where code that reads the calling test can recognise a twin. With a log parser, what the tests print is the
report, as in the data sets' own harnesses; there only the twin run tells forged lines from results.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from slipstream.errors import GraderError, SandboxBroken, SandboxError, SandboxFileError, SandboxLimitError
from slipstream.graders.base import GradeContext
from slipstream.graders.replay.grading import CallSite, check_replay
from slipstream.graders.spec import read_spec
from slipstream.graders.testing.rules import ResultComparison, Rules
from slipstream.graders.testing.spec import TestsSpec
from slipstream.graders.testing.trial import (
    FailedStep,
    RefusedUnlessTaskFails,
    TrialOutcome,
    check_program,
    hidden_files,
    run_tests,
    set_up,
)
from slipstream.graders.testing.twin_run import LazyTwin, TwinCheck
from slipstream.graders.testing.work import ReadEntries, Refused, Work, accept_work, entry_reader, place_files
from slipstream.patches.apply import Entry
from slipstream.sandbox.base import Sandbox
from slipstream.sandbox.ready import open_sandbox
from slipstream.types import Artifact, Grading, Json, Verdict

NO_PROGRAM = (126, 127)
"""A shell's exit codes when a program cannot be executed or found."""
_SHOWN_CHARS = 2_000


class TestsGrader:
    __test__ = False
    """Keeps pytest from collecting this class by its name."""
    needs_sandbox = True

    def __init__(self) -> None:
        self._twins = TwinCheck()

    def check(self, spec: Mapping[str, Json]) -> None:
        read_spec("tests", TestsSpec, spec)

    def limit_s(self, spec: Mapping[str, Json]) -> float:
        read = read_spec("tests", TestsSpec, spec)
        num_runs = 3 if read.twin and read.oracle else 1  # the tests, and twins on work and reference
        return read.timeout_s * num_runs + (0.0 if read.replay is None else read.replay.timeout_s)

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        spec = read_spec("tests", TestsSpec, grading.spec)
        sandbox = context.sandbox
        if spec.sandbox_setup is not None:
            sandbox = replace(sandbox, setup=tuple(spec.sandbox_setup))
        paths = sandbox.env.get("PYTHONPATH", sandbox.activation.env.get("PYTHONPATH", ""))
        env = {**({"PYTHONPATH": paths} if paths else {}), **spec.env}
        spec = spec.model_copy(update={"env": env, "folder": spec.folder or sandbox.workdir})
        runner = _SuiteRunner(spec, replace(context, sandbox=sandbox))
        verdict = await runner.grade(artifact)
        if verdict.reward and spec.twin and spec.oracle:
            verdict = await self._twins.check(verdict, runner, artifact.patch)
        return await runner.replayed(verdict, artifact)


class _SuiteRunner:
    """Runs a task's tests on a patch, each time in a fresh sandbox."""

    def __init__(self, spec: TestsSpec, context: GradeContext) -> None:
        self._spec = spec
        self._context = context

    @property
    def identity(self) -> str:
        """A key of the tests and the files they run on."""
        return f"{self._spec.model_dump_json()} {self._context.sandbox!r} {self._context.sandbox.activation!r}"

    @property
    def oracle(self) -> bytes:
        return self._spec.oracle.encode("utf-8", "surrogateescape")

    @property
    def fail_to_pass(self) -> tuple[str, ...]:
        return tuple(self._spec.fail_to_pass)

    @property
    def expected(self) -> tuple[str, ...]:
        return (*self._spec.fail_to_pass, *self._spec.pass_to_pass)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[tuple[Sandbox, ReadEntries, dict[str, Entry | None]]]:
        """A sandbox of the task in which none of the work has run, and the grading's hidden files."""
        context = self._context
        sandbox = await open_sandbox(context.provider, context.sandbox, timeout_s=context.start_timeout_s)
        try:
            read_entries = entry_reader(sandbox, self._spec.folder)
            hidden = await hidden_files(self._spec, read_entries)
            await check_program(sandbox, self._spec)
            yield sandbox, read_entries, hidden
        finally:
            await sandbox.aclose()

    async def grade(self, artifact: Artifact) -> Verdict:
        try:
            outcome = await self.run(artifact.patch)
        except Refused as raised:
            return _verdict(self._spec, None, str(raised))
        problems = [f"{path}: {why}" for path, why in artifact.problems.items()][:3]
        detail = "\n".join(filter(None, (outcome.comparison.detail, *problems, outcome.output)))
        return _verdict(self._spec, outcome.comparison, detail)

    async def replayed(self, verdict: Verdict, artifact: Artifact) -> Verdict:
        """The verdict after the grading's recorded calls were also made on the work."""
        spec = self._spec

        async def accept(read_entries: ReadEntries) -> Work:
            hidden = await hidden_files(spec, read_entries)
            paths = {"drop_paths": frozenset(hidden), "keep_paths": frozenset(spec.keep)}
            return await accept_work(artifact.patch, read_entries, drop=spec.drop, forbid=spec.forbid, **paths)

        site = CallSite(
            interpreter=spec.command[0],
            folder=spec.folder,
            paths=tuple(filter(None, spec.env.get("PYTHONPATH", "").split(":"))),
            env=spec.env,
        )
        return await check_replay(verdict, spec.replay, site, self._context, artifact.patch, accept)

    async def statuses(self, patch: bytes, twin: LazyTwin) -> Mapping[str, str]:
        """The results of tests and twins on a patch. Raises Refused."""
        return (await self.run(patch, twin)).statuses

    async def run(self, patch: bytes, twin: LazyTwin | None = None) -> TrialOutcome:
        """Run the tests on a patch. Raises Refused if the patch makes that fail."""
        for _ in range(2):
            try:
                outcome = await self._try(patch, twin)
            except RefusedUnlessTaskFails as raised:
                refused = raised
            else:
                if outcome.exit_code in NO_PROGRAM and not outcome.comparison.solved and twin is None:
                    await self._check_without_work(FailedStep.COMMAND)
                return outcome
            await self._check_without_work(refused.step)
            if refused.step is not FailedStep.HOST:  # which may have been chance
                break
        raise Refused(str(refused))

    async def _try(self, patch: bytes, twin: LazyTwin | None) -> TrialOutcome:
        left_out = ""
        async with self._open() as (sandbox, read_entries, hidden):
            spec = self._spec
            if twin is not None:
                made = await twin.make(hidden, read_entries, self.fail_to_pass)
                hidden |= made.entries
                spec = spec.model_copy(update={"tests": made.with_copies(spec.tests)})
            try:
                work = await accept_work(
                    patch,
                    read_entries,
                    drop=spec.drop,
                    drop_paths=frozenset(hidden),
                    keep_paths=frozenset(spec.keep),
                    forbid=spec.forbid,
                )
                left_out = f"left out: {', '.join(work.left_out[:5])}" if work.left_out else ""
                await place_files(sandbox, spec.folder, work.files)
                if wrong := await set_up(sandbox, spec):
                    raise RefusedUnlessTaskFails(f"with the work {wrong}", FailedStep.SETUP)
                await place_files(sandbox, spec.folder, hidden)
                outcome = await run_tests(sandbox, spec, work.added_modules, "" if twin is None else twin.seed)
            except RefusedUnlessTaskFails as raised:
                raise RefusedUnlessTaskFails(" ".join(filter(None, (str(raised), left_out))), raised.step) from raised
            except Refused as raised:
                raise Refused(" ".join(filter(None, (str(raised), left_out)))) from raised
            except SandboxBroken as raised:  # as a failure, breaking the grader's sandbox would avoid the 0
                raise Refused(f"the work broke the grading sandbox: {raised}") from raised
            except (SandboxFileError, SandboxLimitError) as raised:
                raise Refused(f"the work does not fit a fresh sandbox: {raised}") from raised
            except SandboxError as raised:
                raise RefusedUnlessTaskFails(
                    f"the sandbox failed with the work, and not without it: {raised}", FailedStep.HOST
                ) from raised
        return replace(outcome, output="\n".join(filter(None, (left_out, outcome.output))))

    async def _check_without_work(self, step: FailedStep) -> None:
        """Raises GraderError or a sandbox error if the step that failed with the work also fails without it."""
        spec = self._spec
        async with self._open() as (sandbox, _, hidden):
            if wrong := await set_up(sandbox, spec):
                remedy = "fix it, or end it with `|| true` if it succeeds only with the right work"
                raise GraderError(f"even without the work {wrong} ({remedy})")
            if step is FailedStep.SETUP:
                return
            try:
                await place_files(sandbox, spec.folder, hidden)
                outcome = await run_tests(sandbox, spec, ())
            except RefusedUnlessTaskFails as raised:
                raise GraderError(f"even without the work {raised}") from raised
            except (Refused, SandboxBroken, SandboxFileError, SandboxLimitError):
                return  # another failure than with the work
        if step is FailedStep.COMMAND and outcome.exit_code in NO_PROGRAM:
            raise GraderError(
                f"even without the work the test command ended with {outcome.exit_code}: a program is missing; "
                f"fix the command, or give the task an image that has it: {outcome.output}"
            )


def _verdict(spec: TestsSpec, comparison: ResultComparison | None, detail: str) -> Verdict:
    kinds = ("as_expected",) if spec.rules is Rules.R2EGYM else ("fail_to_pass", "pass_to_pass")
    shares = dict.fromkeys(kinds, 0.0) if comparison is None else dict(comparison.shares)
    solved = comparison is not None and comparison.solved
    shown = detail[:_SHOWN_CHARS].encode("utf-8", "backslashreplace").decode()  # it may hold undecodable paths
    return Verdict(reward=float(solved), components=shares, detail=shown)
