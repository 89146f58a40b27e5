"""Shortens sessions to the wanted calls and those that they need. Pure.

Input: recorded operations (`recorder.py`), or a session made from them. Output: a SessionSpec with renumbered handles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.graders.replay import worker
from slipstream.graders.replay.grading import Encoded, SessionSpec
from slipstream.types import Json

Op = Mapping[str, Any]
"""A call as JSON, with its outcome."""


def session_of(prelude: Sequence[Op], ops: Sequence[Op]) -> SessionSpec:
    """The calls of a test that involve the package, and those that they need. Their recorded outcomes are expected."""
    everything = [*prelude, *ops]
    needed: set[int] = set()
    for number in range(len(everything) - 1, -1, -1):
        if number in needed or (number >= len(prelude) and everything[number]["own"]):
            needed |= {number, *_handles(everything[number])}
    return _subset(everything, [_outcome(op) if op["own"] else None for op in everything], needed)


def shortened(session: SessionSpec, wanted: set[int]) -> SessionSpec:
    """The wanted calls of a session, and the earlier ones that touch the same objects."""
    needed = set(wanted)
    touched = {handle for number in wanted for handle in _handles(session.ops[number])}
    for number in range(max(wanted, default=-1), -1, -1):
        used = _handles(session.ops[number])
        if number in needed or number in touched or used & touched:
            needed.add(number)
            touched |= used
    expect = [one if number in wanted else None for number, one in enumerate(session.expect)]
    return _subset(session.ops, expect, needed)


def _subset(ops: Sequence[Op], expect: Sequence[Encoded | None], needed: set[int]) -> SessionSpec:
    order = sorted(needed)
    numbers = {old: new for new, old in enumerate(order)}
    return SessionSpec(
        ops=[
            {
                "f": _renumbered(ops[old]["f"], numbers),
                "a": [_renumbered(one, numbers) for one in ops[old]["a"]],
                "k": {name: _renumbered(one, numbers) for name, one in ops[old]["k"].items()},
            }
            for old in order
        ],
        expect=[expect[old] for old in order],
    )


def _outcome(op: Op) -> Encoded:
    return {"x": op["x"]} if "x" in op else {"r": op["r"]}


def _values(op: Op) -> list[Json]:
    return [op["f"], *op["a"], *op["k"].values()]


def _handles(op: Op) -> set[int]:
    found: set[int] = set()
    left = _values(op)
    while left:
        value = left.pop()
        if isinstance(value, list) and value[0] == "h":
            found.add(int(str(value[1])))
        left += worker.parts(value)
    return found


def _renumbered(value: Json, numbers: Mapping[int, int]) -> Json:
    """The value with renumbered handles."""
    if not isinstance(value, list):
        return value
    tag, *rest = value
    inner: list[Json] = [_renumbered(one, numbers) for one in worker.parts(value)]
    if tag == "h":
        return ["h", numbers[int(str(rest[0]))], rest[1]]
    if tag in ("l", "t", "s", "z"):
        return [tag, inner]
    if tag == "d":
        return [tag, [list(item) for item in zip(inner[::2], inner[1::2], strict=True)]]
    if tag in ("r", "sl"):
        return [tag, *inner]
    if tag in ("n", "v"):
        return [tag, rest[0], *inner]
    if tag == "attr":
        return [tag, *inner, rest[1]]
    if tag == "src" and isinstance(rest[2], dict):
        return [tag, rest[0], rest[1], dict(zip(rest[2], inner, strict=True))]
    return value
