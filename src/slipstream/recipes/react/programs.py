"""Code generation: functions and whole programs, graded by tests that never enter the agent's sandbox.

| set | fields |
|---|---|
| HumanEval | `prompt`, `canonical_solution`, `test`, `entry_point` |
| MBPP | `text` or `prompt`, `code`, `test_list`, perhaps `test_setup_code` or `test_imports` |
| APPS, TACO | `question`, `input_output` with `inputs`, `outputs` and perhaps `fn_name`, perhaps `starter_code` |
| LiveCodeBench | `question_content`, `public_test_cases`, `private_test_cases`, `metadata`, `starter_code` |
"""

from __future__ import annotations

import ast
import base64
import io
import json
import pickle
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import slipstream as ss
from slipstream.recipes.react.files import first_of, path_of, tools_without

WORK = "solution.py"
MAX_TEST_BYTES = 256 << 20
_TOOLS = ("python", "write_file", "finish")
_LIMITS = ss.SandboxLimits(memory_mb=1_024, processes=64, disk_mb=256)
TYPING = "from typing import *\nimport collections, functools, heapq, itertools, math\nfrom collections import *"
"""What LeetCode, whose functions APPS, TACO and LiveCodeBench have, imports for its users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    statement: str
    grader: Any  # what `ss.passes`, `ss.prints` and `ss.returns` give
    starter: str = ""


def read_programs(
    *,
    path: str = "programs",
    num: int | None = None,
    num_shown: int = 1,
    timeout_s: float = 10.0,
    without: str = "",
    turns: int = 15,
) -> tuple[ss.Task, ...]:
    """The problems of a file, or of a shipped sample (`functions` or `programs`). Of MBPP, whose statements name no
    function, `num_shown` assertions are shown. `without` names a tool that agents do not get."""
    tools = tools_without(_TOOLS, without)
    return tuple(
        _task(number, _problem(row, num_shown, timeout_s), tools, turns)
        for number, row in enumerate(ss.read_rows(path_of(path), num))
    )


def _task(number: int, problem: _Problem, tools: Sequence[str], turns: int) -> ss.Task:
    starter = f"\n\nBegin with this:\n\n{problem.starter}" if problem.starter else ""
    return ss.Task(
        id=f"{number:05d}",
        instruction=f"{problem.statement}{starter}\n\nWrite the solution into {WORK}, try it, then finish.",
        tools=tools,
        grader=problem.grader,
        limits=ss.AgentLimits(turns=turns),
        sandbox=ss.SandboxSpec(limits=_LIMITS),
        artifact=(WORK,),
    )


def _problem(row: ss.Row, num_shown: int, timeout_s: float) -> _Problem:
    if "entry_point" in row.fields and "test" in row.fields:
        return _humaneval(row, timeout_s)
    if "test_list" in row.fields:
        return _mbpp(row, num_shown, timeout_s)
    if "input_output" in row.fields:
        return _apps(row, timeout_s)
    if "public_test_cases" in row.fields:
        return _livecodebench(row, timeout_s)
    known = "entry_point (HumanEval), test_list (MBPP), input_output (APPS, TACO), public_test_cases (LiveCodeBench)"
    raise row.wrong(f"there is none of the fields {known}")


def _humaneval(row: ss.Row, timeout_s: float) -> _Problem:
    prompt, entry = row.text("prompt"), row.text("entry_point")
    return _Problem(
        statement=f"Write this function in Python.\n\n{prompt.strip()}",
        grader=ss.passes(
            row.text("test"),
            entry=entry,
            reference=prompt + row.text("canonical_solution"),
            path=WORK,
            preamble=prompt[: prompt.rfind(f"def {entry}")],
            timeout_s=timeout_s,
        ),
    )


def _mbpp(row: ss.Row, num_shown: int, timeout_s: float) -> _Problem:
    code, asserts = row.text("code"), row.texts("test_list")
    imports = row.texts("test_imports") if row.fields.get("test_imports") else []
    setup = "\n".join([*imports, row.text("test_setup_code", "")])
    entry = _called(row, code, asserts)
    shown = "\n".join(asserts[:num_shown])
    return _Problem(
        statement=first_of(row, "text", "prompt") + (f"\nFor example:\n\n{shown}" if shown else f"\nCall it {entry}."),
        grader=ss.passes(
            "\n".join([setup, *asserts]), entry=entry, reference=code, path=WORK, preamble=setup, timeout_s=timeout_s
        ),
    )


def _called(row: ss.Row, code: str, asserts: Sequence[str]) -> str:
    """The function of the reference that the assertions call."""
    try:
        defined = {node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}
        tree = ast.parse("\n".join(asserts))
    except SyntaxError as raised:
        raise row.wrong(f"code or test_list is not Python: {raised}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
            return node.func.id
    raise row.wrong("no assertion of test_list calls a function that code defines")


def _apps(row: ss.Row, timeout_s: float) -> _Problem:
    tests = row.structure("input_output")
    inputs, outputs = tests.get("inputs", []), tests.get("outputs", [])
    if not inputs or len(inputs) != len(outputs):
        raise row.wrong(f"input_output has {len(inputs)} inputs and {len(outputs)} outputs")
    statement, starter = first_of(row, "question"), row.text("starter_code", "").strip()
    if entry := tests.get("fn_name"):
        calls = [(list(args), _unwrapped(output)) for args, output in zip(inputs, outputs, strict=True)]
        return _Problem(statement=statement, starter=starter, grader=_returns(entry, calls, timeout_s))
    cases = [(_text(given), _text(output)) for given, output in zip(inputs, outputs, strict=True)]
    return _Problem(statement=statement, starter=starter, grader=_prints(cases, timeout_s))


def _unwrapped(output: Any) -> Any:
    """The sets write what a function returns as a list of one value."""
    return output[0] if isinstance(output, list) and len(output) == 1 else output


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _livecodebench(row: ss.Row, timeout_s: float) -> _Problem:
    cases = [*row.structure("public_test_cases"), *_private(row)]
    statement, starter = first_of(row, "question_content"), row.text("starter_code", "").strip()
    entry = (row.structure("metadata") if row.fields.get("metadata") else {}).get("func_name")
    if entry:
        calls = [
            ([json.loads(line) for line in case["input"].splitlines() if line], json.loads(case["output"]))
            for case in cases
        ]
        return _Problem(statement=statement, starter=starter, grader=_returns(entry, calls, timeout_s))
    printed = [(case["input"], case["output"]) for case in cases]
    return _Problem(statement=statement, starter=starter, grader=_prints(printed, timeout_s))


def _private(row: ss.Row) -> list[dict[str, str]]:
    """The hidden tests: JSON, or JSON that was pickled, compressed and written in base64."""
    text = row.text("private_test_cases", "[]")
    if re.match(r"\s*\[", text):
        return list(json.loads(text))
    try:
        opened = zlib.decompressobj().decompress(base64.b64decode(text), MAX_TEST_BYTES)
        return list(json.loads(_TextUnpickler(io.BytesIO(opened)).load()))
    except (ValueError, zlib.error, pickle.UnpicklingError, EOFError) as raised:
        raise row.wrong(f"private_test_cases cannot be read: {raised}") from raised


class _TextUnpickler(pickle.Unpickler):
    """For pickled text. Anything else would run code of whoever wrote the file."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and only text is read")


def _prints(cases: Sequence[tuple[str, str]], timeout_s: float) -> Any:
    return ss.prints(cases, path=WORK, timeout_s=timeout_s)


def _returns(entry: str, calls: Sequence[tuple[list[Any], Any]], timeout_s: float) -> Any:
    return ss.returns(entry, calls, path=WORK, preamble=TYPING, timeout_s=timeout_s)
