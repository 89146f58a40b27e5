"""Compares what a program printed or returned with what it should have. Pure."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation

from slipstream.types import Json

MAX_NUMBER_CHARS = 400


def same_output(given: str, expected: str, tolerance: float) -> bool:
    """Line by line, without space at the ends of lines and without empty lines at the end; within a line word by word,
    numbers by their value."""
    ours, theirs = _lines(given), _lines(expected)
    return len(ours) == len(theirs) and all(map(lambda one, other: _same_line(one, other, tolerance), ours, theirs))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_line(given: str, expected: str, tolerance: float) -> bool:
    if given == expected:
        return True
    ours, theirs = given.split(), expected.split()
    return len(ours) == len(theirs) and all(map(lambda one, other: _same_word(one, other, tolerance), ours, theirs))


def _same_word(given: str, expected: str, tolerance: float) -> bool:
    if given == expected:
        return True
    if max(len(given), len(expected)) > MAX_NUMBER_CHARS:
        return False
    try:
        one, other = Decimal(given), Decimal(expected)
        return one == other or (one.is_finite() and other.is_finite() and _close(float(one), float(other), tolerance))
    except (InvalidOperation, OverflowError, ValueError):
        return False


def _close(given: float, expected: float, tolerance: float) -> bool:
    return tolerance > 0 and math.isfinite(given) and abs(given - expected) <= tolerance * max(1.0, abs(expected))


def same_value(outcome: Json, expected: Json, tolerance: float) -> bool:
    """Whether the outcome of a call, as `sandbox_program.encode` writes it, is the expected JSON value. Tuples count as
    lists, since the data sets write both as lists; true is not 1."""
    if not isinstance(outcome, dict) or "value" not in outcome:
        return False
    try:
        return _same(outcome["value"], expected, tolerance)
    except (ValueError, OverflowError):  # it forged a number that is none
        return False


def _same(given: Json, expected: Json, tolerance: float) -> bool:
    match given, expected:
        case {"list": list() as items} | {"tuple": list() as items}, list():
            return len(items) == len(expected) and all(
                _same(one, other, tolerance) for one, other in zip(items, expected, strict=True)
            )
        case {"dict": list() as pairs}, dict():
            found = {_key(pair[0]): pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2}
            return found.keys() == expected.keys() and all(
                _same(found[key], expected[key], tolerance) for key in expected
            )
        case (bool(), _) | (_, bool()):
            return given is expected
        case (str(), _) | (_, str()) | (None, _) | (_, None):
            return given == expected
        case _:
            number = _number(given)
            if number is None or not isinstance(expected, int | float):
                return False
            return number == expected or (
                isinstance(number, float | int) and _close(_float(number), _float(expected), tolerance)
            )


def _key(key: Json) -> str:
    """JSON writes every key of an object as text."""
    number = None if isinstance(key, str) else _number(key)
    return str(key if number is None else number)


def _number(value: Json) -> int | float | None:
    match value:
        case bool():
            return None
        case int() | float():
            return value
        case {"int": str() as digits}:
            return int(digits, 16)
        case {"float": str() as digits}:
            return float.fromhex(digits)
        case _:
            return None


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
