"""The `tests` grader: the work is a patch, and tests say what it is worth.

In a fresh sandbox of the task: what of the patch may count is applied to the clean files (`testing.work`), the set-up
runs, then the grading's own hidden tests are put into place, and then the tests run. The reward is 1 if the expected
tests came out as they must (`testing.rules`), else 0.

    {"kind": "tests", "command": ["python3"], "fail_to_pass": ["tests/test_a.py::test_sum"],
     "pass_to_pass": ["tests/test_a.py::test_name"], "drop": ["tests/**"], "timeout_s": 20}

    {"kind": "tests", "command": "pytest -rA tests/test_a.py", "parser": "pytest", "rules": "swebench",
     "fail_to_pass": [...], "pass_to_pass": [...], "test_patch": "diff --git ...", "timeout_s": 1800}

Invariants: a patch that does not fit, that tampers, that breaks the sandbox, ends the tests early or makes them last
too long is a trusted 0, with the reason. Whatever fails once the work is in place is the work's doing, unless the same
fails in a fresh sandbox without it: only then, or when a sandbox does not open, is there no verdict. Whoever grades
holds one sandbox at a time. The patch is data: nothing of it runs but what the tests import.

How a reward is defended. With our own reporter (`parser` "report") results leave the process that runs the tests by a
pipe to one that loads nothing but the standard library; patched parts of pytest, changed test files and results without
the run's key are refused, and two tests of random name must come out as they must. All of that can be got round by code
written against it, since code under test shares a process with the tests. So work that passed is run again in another
sandbox against twins of the hidden tests (`testing.twin`): copies under random names, some of them with expectations
that are wrong. Work that passes wrong ones, which the reference patch fails, or fails true ones, is worth 0.

What is left at risk: code that knows the right answers to the hidden tests and to nothing else, such as a table of
them; tests without an assertion that can be made wrong, which have no twins; tests whose only assertions are negated,
wrapped or weak, where code that reads the calling test can tell a twin by its form. With a log parser, what the tests
print is the report, as in the data sets' own harnesses; there the twin run is what tells forged lines from results.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from slipstream.errors import GraderError, SandboxBroken, SandboxError, SandboxFileError, SandboxLimitError
from slipstream.graders.base import GradeContext
from slipstream.graders.replay.judge import CallSite, with_replay
from slipstream.graders.spec import read_spec
from slipstream.graders.testing.rules import ResultComparison, Rules
from slipstream.graders.testing.spec import TestsSpec
from slipstream.graders.testing.trial import (
    Doubt,
    RefusedIfCleanWithout,
    TrialOutcome,
    check_program,
    hidden_files,
    run_tests,
    set_up,
)
from slipstream.graders.testing.twin_run import Twinned, TwinRuns
from slipstream.graders.testing.work import Look, Refused, Work, looking_into, put, take_work
from slipstream.patches.apply import Entry
from slipstream.sandbox.base import Sandbox
from slipstream.sandbox.ready import open_sandbox
from slipstream.types import Artifact, Grading, Json, Verdict

NO_PROGRAM = (126, 127)
"""What a shell ends with whose last program may not be run, or is not there."""
_SHOWN_CHARS = 2_000


class TestsGrader:
    __test__ = False
    """For pytest, which takes it for a class of tests by its name."""
    needs_sandbox = True

    def __init__(self) -> None:
        self._twins = TwinRuns()

    def check(self, spec: Mapping[str, Json]) -> None:
        read_spec("tests", TestsSpec, spec)

    def limit_s(self, spec: Mapping[str, Json]) -> float:
        read = read_spec("tests", TestsSpec, spec)
        num_runs = 3 if read.twin and read.oracle else 1  # the tests, and twins of work and reference
        return read.timeout_s * num_runs + (0.0 if read.replay is None else read.replay.timeout_s)

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        spec = read_spec("tests", TestsSpec, grading.spec)
        asked = context.sandbox
        if spec.sandbox_setup is not None:
            asked = replace(asked, setup=tuple(spec.sandbox_setup))
        spec = spec.model_copy(update={"env": {**asked.env, **spec.env}, "folder": spec.folder or asked.workdir})
        bench = _Bench(spec, replace(context, sandbox=asked))
        verdict = await bench.judged(artifact)
        if verdict.reward and spec.twin and spec.oracle:
            verdict = await self._twins.checked(verdict, bench, artifact.patch)
        return await bench.replayed(verdict, artifact)


class _Bench:
    """Runs a task's tests over a patch, each time in a fresh sandbox."""

    def __init__(self, spec: TestsSpec, context: GradeContext) -> None:
        self._spec = spec
        self._context = context

    @property
    def identity(self) -> str:
        """The same for the same tests over the same files."""
        return f"{self._spec.model_dump_json()} {self._context.sandbox!r}"

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
    async def _open(self) -> AsyncIterator[tuple[Sandbox, Look, dict[str, Entry | None]]]:
        """A sandbox of the task in which nothing of the work has run, and the grading's own files for it."""
        context = self._context
        sandbox = await open_sandbox(context.provider, context.sandbox, timeout_s=context.start_timeout_s)
        try:
            look = looking_into(sandbox, self._spec.folder)
            hidden = await hidden_files(self._spec, look)
            await check_program(sandbox, self._spec)
            yield sandbox, look, hidden
        finally:
            await sandbox.aclose()

    async def judged(self, artifact: Artifact) -> Verdict:
        try:
            outcome = await self.run(artifact.patch)
        except Refused as raised:
            return _verdict(self._spec, None, str(raised))
        problems = [f"{path}: {why}" for path, why in artifact.problems.items()][:3]
        detail = "\n".join(filter(None, (outcome.comparison.detail, *problems, outcome.said)))
        return _verdict(self._spec, outcome.comparison, detail)

    async def replayed(self, verdict: Verdict, artifact: Artifact) -> Verdict:
        """The verdict, after the grading's recorded calls were made on the work too."""
        spec = self._spec

        async def take(look: Look) -> Work:
            hidden = await hidden_files(spec, look)
            paths = {"drop_paths": frozenset(hidden), "keep_paths": frozenset(spec.keep)}
            return await take_work(artifact.patch, look, drop=spec.drop, forbid=spec.forbid, **paths)

        place = CallSite(
            interpreter=spec.command[0],
            folder=spec.folder,
            paths=tuple(filter(None, spec.env.get("PYTHONPATH", "").split(":"))),
            env=spec.env,
        )
        return await with_replay(verdict, spec.replay, place, self._context, artifact.patch, take)

    async def statuses(self, patch: bytes, twinned: Twinned) -> Mapping[str, str]:
        """How tests and twins come out over a patch. Raises Refused."""
        return (await self.run(patch, twinned)).statuses

    async def run(self, patch: bytes, twinned: Twinned | None = None) -> TrialOutcome:
        """Run the tests over a patch. Raises Refused if that goes wrong, and it is the patch's doing."""
        for _ in range(2):
            try:
                outcome = await self._try(patch, twinned)
            except RefusedIfCleanWithout as raised:
                refused = raised
            else:
                if outcome.exit_code in NO_PROGRAM and not outcome.comparison.solved and twinned is None:
                    await self._check_without_work(Doubt.COMMAND)
                return outcome
            await self._check_without_work(refused.doubt)
            if refused.doubt is not Doubt.HOST:  # which may have been chance
                break
        raise Refused(str(refused))

    async def _try(self, patch: bytes, twinned: Twinned | None) -> TrialOutcome:
        left_out = ""
        async with self._open() as (sandbox, look, hidden):
            spec = self._spec
            if twinned is not None:
                made = await twinned.make(hidden, look, self.fail_to_pass)
                hidden |= made.entries
                spec = spec.model_copy(update={"tests": made.tests_in_place_of(spec.tests)})
            try:
                work = await take_work(
                    patch,
                    look,
                    drop=spec.drop,
                    drop_paths=frozenset(hidden),
                    keep_paths=frozenset(spec.keep),
                    forbid=spec.forbid,
                )
                left_out = f"left out: {', '.join(work.left_out[:5])}" if work.left_out else ""
                await put(sandbox, spec.folder, work.files)
                if wrong := await set_up(sandbox, spec):
                    raise RefusedIfCleanWithout(f"over the work {wrong}", Doubt.SETUP)
                await put(sandbox, spec.folder, hidden)
                outcome = await run_tests(sandbox, spec, work.added_modules, "" if twinned is None else twinned.seed)
            except RefusedIfCleanWithout as raised:
                raise RefusedIfCleanWithout(" ".join(filter(None, (str(raised), left_out))), raised.doubt) from raised
            except Refused as raised:
                raise Refused(" ".join(filter(None, (str(raised), left_out)))) from raised
            except SandboxBroken as raised:  # untrusted, breaking the grader's sandbox would pay
                raise Refused(f"the work broke the sandbox that it is graded in: {raised}") from raised
            except (SandboxFileError, SandboxLimitError) as raised:
                raise Refused(f"the work does not fit a fresh sandbox: {raised}") from raised
            except SandboxError as raised:
                raise RefusedIfCleanWithout(
                    f"over the work, and not without it, the sandbox failed: {raised}", Doubt.HOST
                ) from raised
        return replace(outcome, said="\n".join(filter(None, (left_out, outcome.said))))

    async def _check_without_work(self, doubt: Doubt) -> None:
        """Raises GraderError, or an error of the sandbox, if what went wrong over the work does so without it."""
        spec = self._spec
        async with self._open() as (sandbox, _, hidden):
            if wrong := await set_up(sandbox, spec):
                remedy = "fix it, or end it with `|| true` if only the right work lets it go well"
                raise GraderError(f"without the work too {wrong} ({remedy})")
            if doubt is Doubt.SETUP:
                return
            try:
                await put(sandbox, spec.folder, hidden)
                outcome = await run_tests(sandbox, spec, ())
            except RefusedIfCleanWithout as raised:
                raise GraderError(f"without the work too {raised}") from raised
            except (Refused, SandboxBroken, SandboxFileError, SandboxLimitError):
                return  # it ends in another way
        if doubt is Doubt.COMMAND and outcome.exit_code in NO_PROGRAM:
            raise GraderError(
                f"without the work too the tests' command ended with {outcome.exit_code}, for want of a program: "
                f"fix the command, or give the task an image that has it: {outcome.said}"
            )


def _verdict(spec: TestsSpec, comparison: ResultComparison | None, detail: str) -> Verdict:
    kinds = ("as_expected",) if spec.rules is Rules.R2EGYM else ("fail_to_pass", "pass_to_pass")
    shares = dict.fromkeys(kinds, 0.0) if comparison is None else dict(comparison.shares)
    solved = comparison is not None and comparison.solved
    shown = detail[:_SHOWN_CHARS].encode("utf-8", "backslashreplace").decode()  # paths in it may be no text
    return Verdict(reward=float(solved), components=shares, detail=shown)
