"""Escapes what strict readers of JSON and Parquet refuse: lone surrogates, and numbers that are not finite.

They become text: `python:` and then Python's spelling, as in `python:'\\ud800'` or `python:nan`.
Invariants: restoring gives back exactly what was escaped; ordinary text stays as it is.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterable

from slipstream.types import Json

MARK = "python:"

_NOT_FINITE = ("nan", "inf", "-inf")
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Characters that JSON allows in a line but that naive readers treat as its end."""


def json_line(value: Json) -> str:
    """One line of JSON that any reader accepts."""
    try:
        text = _dumps(value)
        text.encode()
    except ValueError:
        text = _dumps(portable(value))
    else:
        if MARK in text:
            text = _dumps(portable(value))
    return text.translate(_LINE_ENDS)


def read_json(text: str) -> Json:
    """The inverse of `json_line`."""
    value: Json = json.loads(text)
    return restored(value) if MARK in text else value


def portable(value: Json) -> Json:
    """`value` with everything escaped that strict readers refuse."""
    match value:
        case str():
            return portable_text(value)
        case float() if not math.isfinite(value):
            return f"{MARK}{value!r}"
        case list():
            return [portable(item) for item in value]
        case dict():
            return {portable_text(name): portable(item) for name, item in value.items()}
        case _:
            return value


def restored(value: Json) -> Json:
    match value:
        case str():
            return _meant(value)
        case list():
            return [restored(item) for item in value]
        case dict():
            return {restored_text(name): restored(item) for name, item in value.items()}
        case _:
            return value


def portable_text(text: str) -> str:
    if not text.startswith(MARK):
        try:
            text.encode()
        except UnicodeEncodeError:
            pass
        else:
            return text
    return f"{MARK}{text!a}"


def restored_text(text: str) -> str:
    meant = _meant(text)
    if not isinstance(meant, str):
        raise ValueError(f"{text!r} is not text")
    return meant


def float32_list(values: Iterable[float]) -> list[Json]:
    """float32 values in nine digits, which identify the float32 exactly and are half as long as all digits."""
    return [float(f"{value:.9g}") for value in values]


def _dumps(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _meant(text: str) -> str | float:
    if not text.startswith(MARK):
        return text
    spelled = text.removeprefix(MARK)
    if spelled in _NOT_FINITE:
        return float(spelled)
    try:
        meant = ast.literal_eval(spelled)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        meant = None
    if not isinstance(meant, str):
        raise ValueError(f"{text[:80]!r} is not Python's spelling of a value")
    return meant
