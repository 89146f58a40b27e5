"""The `programs` grader: code that the agent wrote, graded by tests that it never meets.

    {"kind": "programs", "cases": [{"input": "3 4\\n", "output": "7\\n"}]}
    {"kind": "programs", "entry": "add", "calls": [{"args": [3, 4], "expected": 7}]}
    {"kind": "programs", "entry": "add", "tests": "assert add(3, 4) == 7", "reference": "def add(a, b): return a + b"}

The work is the file `path` of the artifact or, if that is not there, the last code block of the answer.
Invariants: what is expected never enters a sandbox in which the work runs. Printed output and returned values leave it
as data and are compared on this side; test code runs in a sandbox of its own, where each call is answered with the
value that the work gave for it. So there is nothing to forge, to read, or to end early. Work that fails, hangs, floods
or breaks its sandbox is worth 0. Which calls test code makes is found by running it with the reference, once for each
grading; test code that the reference does not pass is a failure of the task.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, JsonValue, model_validator

from slipstream.errors import GraderError, SandboxBroken, SandboxError, SandboxFileError, SandboxLimitError
from slipstream.graders.base import GradeContext
from slipstream.graders.programs.compare import same_output, same_value
from slipstream.graders.spec import GraderSpec, read_spec
from slipstream.offload import OffloadLimits, WorkTooLarge, by_size
from slipstream.sandbox.base import ExecResult, Sandbox
from slipstream.sandbox.ready import open_sandbox
from slipstream.types import Artifact, File, Grading, Json, Verdict

PYTHON = "python3"
PROGRAM = "/tmp/grade_program.py"
MAX_OUTPUT_BYTES = 4 << 20
MAX_REMEMBERED = 512
MAX_ROUNDS = 3
"""How often the tests are run, if they call the work on values that it returned."""
_SOURCE = Path(__file__).with_name("sandbox_program.py")
_BLOCK = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_LIMITS = OffloadLimits(cpu_s=20)
_SHOWN_CHARS = 300


class Case(GraderSpec):
    input: str
    output: str


class Call(GraderSpec):
    args: list[JsonValue]
    expected: JsonValue


class ProgramsSpec(GraderSpec):
    path: str = "solution.py"
    """The file that is the work."""
    cases: list[Case] = Field(default_factory=list)
    """Standard input, and what the program must print."""
    entry: str = ""
    """The function under test, or the method of a class `Solution`; for `calls` and `tests`."""
    calls: list[Call] = Field(default_factory=list)
    """Arguments, and what the function must return."""
    tests: str = ""
    """Test code: assertions that call the function, or a function `check(candidate)`."""
    reference: str = ""
    """A solution that passes `tests`."""
    preamble: str = ""
    """Code before the work: imports that the task takes for granted."""
    tolerance: float = Field(default=0.0, ge=0)
    """Numbers may differ by this share; 0: not at all."""
    timeout_s: float = Field(default=10.0, gt=0)
    """For one case; for all calls together."""
    total_timeout_s: float = Field(default=300.0, gt=0)
    """For all cases together; those that are not reached in time are failed."""

    @model_validator(mode="after")
    def _fits(self) -> ProgramsSpec:
        if sum(map(bool, (self.cases, self.calls, self.tests))) != 1:
            raise ValueError("give one of cases, calls and tests")
        if bool(self.entry) == bool(self.cases):
            raise ValueError("calls and tests need entry, the name of the function; cases have none")
        if bool(self.tests) != bool(self.reference):
            raise ValueError("tests need a reference, which tells what calls they make")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    num_passed: int
    num: int
    detail: str = ""


class ProgramsGrader:
    needs_sandbox = True

    def __init__(self) -> None:
        self._recorded: OrderedDict[str, list[Json]] = OrderedDict()
        """The calls that test code makes, by a digest of the grading."""

    def check(self, spec: Mapping[str, Json]) -> None:
        read_spec("programs", ProgramsSpec, spec)

    def limit_s(self, spec: Mapping[str, Json]) -> float:
        read = read_spec("programs", ProgramsSpec, spec)
        if read.cases:
            return min(read.timeout_s * len(read.cases), read.total_timeout_s)
        return read.timeout_s * (1 + 2 * MAX_ROUNDS if read.tests else 1)

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        spec = read_spec("programs", ProgramsSpec, grading.spec)
        code = code_of(artifact, spec.path)
        if not code.strip():
            why = next(iter(artifact.problems.values()), "")
            return Verdict(
                reward=0.0, detail=f"there is no code: neither {spec.path} nor a code block in the answer. {why}"
            )
        if spec.tests:
            result = await self._by_tests(spec, code, context)
        elif spec.calls:
            result = await _by_calls(spec, code, context)
        else:
            result = await _by_cases(spec, code, context)
        share = result.num_passed / result.num
        return Verdict(
            reward=float(result.num_passed == result.num), components={"tests_passed": share}, detail=result.detail
        )

    async def _by_tests(self, spec: ProgramsSpec, code: str, context: GradeContext) -> _Result:
        calls = await self._calls(spec, context)
        for _ in range(MAX_ROUNDS):
            outcomes, why = await _outcomes(spec, code, calls, context)
            if why:
                return _Result(num_passed=0, num=1, detail=why)
            asked: dict[str, Json] = {"tests": spec.tests, "entry": spec.entry, "calls": calls, "outcomes": outcomes}
            reply = await _trusted(spec, "tests", asked, context)
            if not (wanted := reply.get("wanted")):
                failed = str(reply.get("failed", "there is no result"))
                return _Result(num_passed=int(not failed), num=1, detail=failed)
            calls = [*calls, wanted]  # a call on a value that the work returned, and the reference does not
        return _Result(num_passed=0, num=1, detail="the tests call it on too many values that it returned itself")

    async def _calls(self, spec: ProgramsSpec, context: GradeContext) -> list[Json]:
        key = hashlib.blake2b(json.dumps([spec.tests, spec.reference, spec.entry, spec.preamble]).encode()).hexdigest()
        if key in self._recorded:
            self._recorded.move_to_end(key)
            return self._recorded[key]
        asked: dict[str, Json] = {
            "tests": spec.tests,
            "entry": spec.entry,
            "reference": f"{spec.preamble}\n{spec.reference}",
        }
        reply = await _trusted(spec, "record", asked, context)
        calls = reply.get("calls")
        if reply.get("failed") or not isinstance(calls, list) or not calls:
            why = reply.get("failed") or "they never call it"
            raise GraderError(f"the reference does not pass the tests of {spec.entry}: {why}")
        self._recorded[key] = calls
        while len(self._recorded) > MAX_REMEMBERED:
            self._recorded.popitem(last=False)
        return calls


def code_of(artifact: Artifact, path: str) -> str:
    """The work: the file, or else the last code block of the answer, or all of an answer that has none."""
    if path in artifact.files:
        return artifact.files[path].decode("utf-8", "replace")
    answer = artifact.answer or ""
    blocks = _BLOCK.findall(answer)
    return str(blocks[-1]) if blocks else answer


# ---------------------------------------------------------------- the work


async def _by_cases(spec: ProgramsSpec, code: str, context: GradeContext) -> _Result:
    num, passed, why = len(spec.cases), 0, ""
    loop = asyncio.get_running_loop()
    async with _Work(spec, code, context) as work:
        end_s = loop.time() + spec.total_timeout_s
        for number, case in enumerate(spec.cases, 1):
            left_s = end_s - loop.time()
            if left_s <= 0:
                why = why or f"case {number}: all cases together took more than {spec.total_timeout_s:g} s"
                break
            timeout_s = min(spec.timeout_s, left_s)
            result = await work.run([PYTHON, spec.path], case.input.encode(), timeout_s=timeout_s)
            failed = await _case_failure(result, case, spec)
            passed += not failed
            why = why or (f"case {number}: {failed}" if failed else "")
            if result.timed_out:  # the others would take as long
                break
        return _Result(num_passed=passed, num=num, detail=why)
    return _Result(num_passed=0, num=num, detail=work.refused)


async def _case_failure(result: ExecResult, case: Case, spec: ProgramsSpec) -> str:
    """What is wrong with a case; empty if nothing is. It never says what was expected."""
    if result.timed_out:
        return f"no result after {spec.timeout_s:g} s"
    if result.exit_code:
        return f"exit code {result.exit_code}: {result.stderr.text().strip()[-_SHOWN_CHARS:]}"
    if result.stdout.num_left_out:
        return f"it printed {result.stdout.num_bytes} bytes"
    given = result.stdout.text()
    num_bytes = len(given) + len(case.output)
    try:
        is_same = await by_size(same_output, given, case.output, spec.tolerance, num_bytes=num_bytes, limits=_LIMITS)
    except WorkTooLarge as raised:
        return f"its output cannot be compared: {raised}"
    return "" if is_same else f"wrong output: {given.strip()[:_SHOWN_CHARS]!r}"


async def _by_calls(spec: ProgramsSpec, code: str, context: GradeContext) -> _Result:
    calls: list[Json] = [{"args": _as_arguments(call.args)} for call in spec.calls]
    outcomes, why = await _outcomes(spec, code, calls, context)
    if why:
        return _Result(num_passed=0, num=len(calls), detail=why)
    expected = [call.expected for call in spec.calls]
    try:
        num_bytes = len(json.dumps(outcomes))
        same = await by_size(_same_values, outcomes, expected, spec.tolerance, num_bytes=num_bytes, limits=_LIMITS)
    except (WorkTooLarge, RecursionError) as raised:
        return _Result(num_passed=0, num=len(calls), detail=f"what it returned cannot be compared: {raised}")
    wrong = same.index(False) if False in same else None
    detail = "" if wrong is None else f"call {wrong + 1}: {json.dumps(outcomes[wrong])[:_SHOWN_CHARS]}"
    return _Result(num_passed=sum(same), num=len(calls), detail=detail)


def _same_values(outcomes: Sequence[Json], expected: Sequence[Json], tolerance: float) -> list[bool]:
    return [same_value(one, other, tolerance) for one, other in zip(outcomes, expected, strict=True)]


def _as_arguments(value: JsonValue) -> Json:
    """JSON of a task in the form that the sandbox's program reads."""
    match value:
        case list():
            return {"list": [_as_arguments(item) for item in value]}
        case dict():
            return {"dict": [[key, _as_arguments(item)] for key, item in value.items()]}
        case float():
            return {"float": value.hex()}
        case int() if not isinstance(value, bool) and abs(value) >= 2**53:
            return {"int": hex(value)}
        case _:
            return value


async def _outcomes(spec: ProgramsSpec, code: str, calls: list[Json], context: GradeContext) -> tuple[list[Json], str]:
    """What the work gave for each call; or why there is nothing."""
    asked = {"path": spec.path, "entry": spec.entry, "calls": calls}
    async with _Work(spec, code, context) as work:
        data = json.dumps(asked).encode()
        result = await work.run([PYTHON, PROGRAM, "work"], data, timeout_s=spec.timeout_s, program=True)
        if result.timed_out:
            return [], f"no result after {spec.timeout_s:g} s"
        reply = await _read_reply(result)
        outcomes = reply.get("outcomes")
        if reply.get("failed"):
            return [], str(reply["failed"])[:_SHOWN_CHARS]
        if not isinstance(outcomes, list) or len(outcomes) != len(calls):
            return [], f"it ended early (exit code {result.exit_code}): {result.stderr.text().strip()[-_SHOWN_CHARS:]}"
        return outcomes, ""
    return [], work.refused


async def _read_reply(result: ExecResult) -> dict[str, Json]:
    """What the program in the sandbox replied; nothing if the work spoiled it."""
    if result.stdout.num_left_out:
        return {}
    data = result.stdout.head + result.stdout.tail
    try:
        reply = await by_size(_loads, data, num_bytes=len(data), limits=_LIMITS)
    except (ValueError, WorkTooLarge):
        return {}
    return reply if isinstance(reply, dict) else {}


def _loads(data: bytes) -> Json:
    value: Json = json.loads(data)
    return value


class _Work:
    """A fresh sandbox with the work in it. Whatever the work breaks ends the block, and `refused` says why."""

    def __init__(self, spec: ProgramsSpec, code: str, context: GradeContext) -> None:
        self._spec, self._code, self._context = spec, code, context
        self._sandbox: Sandbox | None = None
        self.refused = ""

    async def __aenter__(self) -> _Work:
        context = self._context
        self._sandbox = await open_sandbox(context.provider, context.sandbox, timeout_s=context.start_timeout_s)
        return self

    async def __aexit__(self, kind: object, raised: BaseException | None, trace: object) -> bool:
        assert self._sandbox is not None
        await self._sandbox.aclose()
        if isinstance(raised, SandboxBroken):  # untrusted, breaking the grader's sandbox would pay
            self.refused = f"the work broke the sandbox that it is graded in: {raised}"
            return True
        if isinstance(raised, SandboxFileError | SandboxLimitError):
            self.refused = f"the work does not fit a fresh sandbox: {raised}"
            return True
        return False

    async def run(self, argv: Sequence[str], stdin: bytes, *, timeout_s: float, program: bool = False) -> ExecResult:
        """Run it on the work, which is written anew: an earlier case may have changed it."""
        assert self._sandbox is not None
        files = {self._spec.path: File(data=f"{self._spec.preamble}\n{self._code}".encode("utf-8", "replace"))}
        if program:
            files[PROGRAM] = File(data=_SOURCE.read_bytes())
        await self._sandbox.write(files)
        return await self._sandbox.exec(
            argv,
            stdin=stdin,
            env={"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
            timeout_s=timeout_s,
            max_output_bytes=MAX_OUTPUT_BYTES,
        )


# ---------------------------------------------------------------- the tests


async def _trusted(spec: ProgramsSpec, what: str, asked: dict[str, Json], context: GradeContext) -> dict[str, Json]:
    """Run test code in a sandbox where none of the work runs. What goes wrong there is a failure of the grader."""
    sandbox = await open_sandbox(context.provider, context.sandbox, timeout_s=context.start_timeout_s)
    try:
        await sandbox.write({PROGRAM: File(data=_SOURCE.read_bytes())})
        result = await sandbox.exec(
            [PYTHON, PROGRAM, what],
            stdin=json.dumps(asked).encode(),
            env={"PYTHONHASHSEED": "0"},
            timeout_s=spec.timeout_s,
            max_output_bytes=MAX_OUTPUT_BYTES,
        )
    except (SandboxBroken, SandboxFileError, SandboxLimitError) as raised:
        raise SandboxError(f"the tests of {spec.entry} could not be run: {raised}") from raised
    finally:
        await sandbox.aclose()
    reply = await _read_reply(result)
    if "failed" not in reply and what == "tests":
        # Values of the work may make the tests take for ever, or more memory than there is.
        return {"failed": "the tests gave no result on these values"}
    if "failed" not in reply:
        why = (
            "in time" if result.timed_out else f"(exit code {result.exit_code}: {result.stderr.text()[-_SHOWN_CHARS:]})"
        )
        raise GraderError(f"the tests of {spec.entry} gave no result {why}")
    return reply
