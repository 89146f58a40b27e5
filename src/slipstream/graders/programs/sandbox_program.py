"""Calls functions for the `programs` grader. A standalone program: standard library only.

    sandbox_program.py work < REQUEST > REPLY     {"path", "entry", "calls": [...]} -> {"outcomes": [...], "failed": ""}
    sandbox_program.py tests < REQUEST > REPLY    {"tests", "entry", "calls", "outcomes"} -> {"failed": "", "wanted"}
    sandbox_program.py record < REQUEST > REPLY   {"tests", "entry", "reference"} -> {"calls": [...], "failed": ""}

`work` runs what the agent wrote: it gets arguments and never what is expected of them. `tests` runs the tests, where
each call of the function under test is answered with what `work` gave for these arguments, and a call on others is what
is wanted next; `record` runs them with the reference solution and notes the calls. Values travel in a form of plain
data, so that no object of the agent's is ever among the tests.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

FORMS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
MAX_DEPTH = 200
MAX_CALLS = 10_000


class Foreign:
    """A value that is no plain data. Equal to nothing."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True


class Missing(BaseException):
    """A call for which there is no outcome. No `except Exception` of a test takes it for an answer."""


def encode(value: Any, depth: int = 0) -> Any:
    """A value as JSON; what has no plain form becomes a Foreign. Subclasses lose what makes them special."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if kind is str:
        return value
    if kind is int:
        return value if -(2**53) < value < 2**53 else {"int": hex(value)}
    if kind is float:
        return {"float": value.hex()}
    if isinstance(value, bool | int):
        return encode(int(value), depth)
    if isinstance(value, float):
        return encode(float(value), depth)
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    for name, form in FORMS.items():
        if isinstance(value, form):
            return {name: [encode(item, depth + 1) for item in form.__iter__(value)]}
    if isinstance(value, dict):
        pairs = dict.items(value)
        return {"dict": [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in pairs]}
    return {"foreign": kind.__name__}


def decode(value: Any) -> Any:
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((name, inner),) = value.items()
    if name == "int":
        return int(inner, 16)
    if name == "float":
        return float.fromhex(inner)
    if name == "complex":
        return complex(*map(float.fromhex, inner))
    if name == "bytes":
        return bytes.fromhex(inner)
    if name == "dict":
        return {decode(key): decode(item) for key, item in inner}
    if name == "foreign":
        return Foreign()
    return FORMS[name](decode(item) for item in inner)


def outcome_of(function: Any, call: dict[str, Any]) -> dict[str, Any]:
    args, kwargs = decode(call["args"]), {name: decode(value) for name, value in call.get("kwargs", {}).items()}
    try:
        value = function(*args, **kwargs)
        if hasattr(value, "__next__"):
            value = list(value)
        return {"value": encode(value)}
    except Exception as raised:
        return {"raised": type(raised).__name__, "message": str(raised)[:200]}


def function_in(names: dict[str, Any], entry: str) -> Any:
    """The function, or the method of `Solution`."""
    if entry in names:
        return names[entry]
    return getattr(names["Solution"](), entry)


def loaded(path: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "solution", "__file__": path}
    exec(compile(Path(path).read_bytes(), path, "exec"), names)
    return names


def work(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        function = function_in(loaded(asked["path"]), asked["entry"])
    except Exception as raised:
        return {"outcomes": [], "failed": f"{type(raised).__name__}: {raised}"[:500]}
    return {"outcomes": [outcome_of(function, call) for call in asked["calls"]], "failed": ""}


class Answered:
    """Stands for the function under test: answers each call with the outcome that was had for it elsewhere."""

    def __init__(self, calls: list[dict[str, Any]], outcomes: list[dict[str, Any]]) -> None:
        self._outcomes: dict[str, list[dict[str, Any]]] = {}
        for call, outcome in zip(calls, outcomes):  # noqa: B905
            self._outcomes.setdefault(json.dumps(call), []).append(outcome)
        self.wanted: dict[str, Any] | None = None
        """The first call that has no outcome: tests may call a function on what it returned."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = call_of(args, kwargs)
        known = self._outcomes.get(json.dumps(call))
        if known is None:
            self.wanted = self.wanted or call
            raise Missing
        outcome = known.pop(0) if len(known) > 1 else known[0]
        if "raised" in outcome:
            kind: Any = getattr(builtins, outcome["raised"], None)
            is_error = isinstance(kind, type) and issubclass(kind, Exception)
            raise (kind if is_error else RuntimeError)(outcome.get("message", ""))
        return decode(outcome["value"])


def call_of(args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"args": encode(list(args)), "kwargs": {name: encode(each) for name, each in sorted(kwargs.items())}}


class Recorded:
    """Notes the arguments of each call, before the function can change them."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.calls: list[dict[str, Any]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(self.calls) >= MAX_CALLS:
            raise ValueError(f"the tests make more than {MAX_CALLS} calls")
        self.calls.append(call_of(args, kwargs))
        return self._function(*args, **kwargs)


def failure_of(tests: str, entry: str, function: Any) -> str:
    """Run the tests with this function in the place of the one under test. Why they failed; empty if they passed."""
    names: dict[str, Any] = {"__name__": "tests", entry: function, "candidate": function}
    random.seed(0)
    try:
        exec(compile(tests, "tests", "exec"), names)
        if callable(names.get("check")):
            names["check"](function)
    except Missing:
        return "there is no outcome of a call"
    except SystemExit:
        return "the tests ended early"
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"[:500] or "failed"
    return ""


def run_tests(asked: dict[str, Any]) -> dict[str, Any]:
    answered = Answered(asked["calls"], asked["outcomes"])
    failed = failure_of(asked["tests"], asked["entry"], answered)
    return {"failed": failed, "wanted": answered.wanted}


def record(asked: dict[str, Any]) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "reference"}
    try:
        exec(compile(asked["reference"], "reference", "exec"), names)
        recorded = Recorded(function_in(names, asked["entry"]))
    except Exception as raised:
        return {"calls": [], "failed": f"{type(raised).__name__}: {raised}"[:500]}
    failed = failure_of(asked["tests"], asked["entry"], recorded)
    if not failed:  # with the reference's values in place of its function, they must pass too
        outcomes = [outcome_of(function_in(names, asked["entry"]), call) for call in recorded.calls]
        failed = failure_of(asked["tests"], asked["entry"], Answered(recorded.calls, outcomes))
    return {"calls": recorded.calls, "failed": failed}


def main() -> None:
    asked = json.loads(sys.stdin.buffer.read())
    replying = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    with contextlib.redirect_stdout(io.StringIO()):
        reply = {"work": work, "tests": run_tests, "record": record}[sys.argv[1]](asked)
    data = json.dumps(reply).encode()
    while data:
        data = data[os.write(replying, data) :]


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    main()
