"""Compares what the work returned with what the reference returned, both encoded by `worker.encode`. Pure.

Numbers are compared by value, floats to 1e-9; sequences and sets by type and content, dicts regardless of order; opaque
objects by their type, and by their repr if the reference has one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from slipstream.types import Json

REL_TOLERANCE = 1e-9
MAX_DEPTH = 20
MAX_SHOWN = 200


def same_answer(expected: Json, got: Json) -> bool:
    """Whether one call had the same outcome: result or exception, changes to its arguments, and output if the reference
    printed any."""
    if not isinstance(expected, dict) or not isinstance(got, dict):
        return False
    if "p" in expected and expected["p"] != got.get("p"):
        return False
    if "x" in expected or "x" in got:
        return "x" in expected and expected.get("x") == got.get("x")
    changed, is_changed = expected.get("m", {}), got.get("m", {})
    if not isinstance(changed, dict) or not isinstance(is_changed, dict) or changed.keys() != is_changed.keys():
        return False
    if not all(same(one, is_changed[place]) for place, one in changed.items()):
        return False
    return "r" in expected and "r" in got and same(expected["r"], got["r"])


def same(expected: Json, got: Json, depth: int = 0) -> bool:
    if depth > MAX_DEPTH:
        return False
    a, b = _number(expected), _number(got)
    if a is not None or b is not None:
        return a is not None and b is not None and _same_number(a, b)
    expected, got = _without_kind(expected), _without_kind(got)
    if not isinstance(expected, list) or not isinstance(got, list):
        return type(expected) is type(got) and expected == got
    if not expected or not got or len(expected) != len(got) or expected[0] != got[0]:
        return False
    tag = expected[0]
    if tag in ("l", "t", "s", "z", "d"):
        ours, theirs = expected[1], got[1]
        if not isinstance(ours, list) or not isinstance(theirs, list) or len(ours) != len(theirs):
            return False
        if tag == "d":
            return _same_items(ours, theirs, depth)
        return all(same(one, other, depth + 1) for one, other in zip(ours, theirs, strict=True))
    if tag in ("n", "v"):
        return expected[1] == got[1] and same(expected[2], got[2], depth + 1)
    if tag == "o":
        return expected[1] == got[1] and (expected[2] is None or expected[2] == got[2])
    return expected == got


def _same_items(ours: Sequence[Json], theirs: Sequence[Json], depth: int) -> bool:
    """Items of dicts, in any order. Keys must have the same encoding, except for numbers."""
    left = {_key(item): item for item in theirs}
    for item in ours:
        other = left.get(_key(item))
        if not isinstance(item, list) or not isinstance(other, list) or len(item) != 2 or len(other) != 2:
            return False
        if not same(item[1], other[1], depth + 1):
            return False
    return len(left) == len(theirs)


def _key(item: Json) -> str:
    if not isinstance(item, list) or not item:
        return ""
    number = _number(item[0])
    return json.dumps(item[0]) if number is None else f"number {hash(number)}"


def _without_kind(value: Json) -> Json:
    """A dict subclass of the standard library counts as a dict: equal ones pass the same tests."""
    while isinstance(value, list) and len(value) == 3 and value[0] == "n" and str(value[1]).startswith("collections:"):
        value = value[2]
    return value


def _number(value: Json) -> int | float | complex | None:
    if isinstance(value, int | float):
        return value
    if not isinstance(value, list) or not value or not all(isinstance(part, str) for part in value):
        return None
    tag, *rest = (str(part) for part in value)
    try:
        if tag == "I" and len(rest) == 1:
            return int(rest[0], 16)
        if tag == "f" and len(rest) == 1:
            return float(rest[0])
        if tag == "c" and len(rest) == 2:
            return complex(float(rest[0]), float(rest[1]))
    except ValueError:
        return None
    return None


def _same_number(a: int | float | complex, b: int | float | complex) -> bool:
    if isinstance(a, complex) or isinstance(b, complex):
        return _same_number(a.real, b.real) and _same_number(a.imag, b.imag)
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    try:
        return a == b or math.isclose(a, b, rel_tol=REL_TOLERANCE)
    except OverflowError:
        return False


def shown_call(op: Mapping[str, Json]) -> str:
    """A short description of a call."""
    return f"{_shown(op.get('f'))} of {_shown(op.get('a'))}"


def shown_answer(answer: Json) -> str:
    if isinstance(answer, dict):
        return f"raised {answer['x']}" if "x" in answer else f"returned {_shown(answer.get('r'))}"
    return "did not return"


def _shown(value: Json) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        return "a value nested too deeply"
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
