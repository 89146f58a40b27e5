"""Finds the expectations in a test function, and edits that make them wrong. Pure.

Only the expected side is changed, never the arguments of the code under test: a wrong expectation must be one that
correct work cannot meet.
"""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

_BUILDERS = frozenset({"approx", "set", "frozenset", "list", "tuple", "dict", "Decimal", "Fraction", "bytearray"})
"""Callables that only wrap a literal."""
_EQUALS = frozenset({
    "assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertTupleEqual", "assertSetEqual",
    "assertSequenceEqual", "assertCountEqual", "assertMultiLineEqual", "assertAlmostEqual", "assert_equal",
    "assert_array_equal", "assert_allclose", "assert_almost_equal", "assert_array_almost_equal", "assert_eq", "eq_",
    "eq",
})  # fmt: skip
_RAISES = frozenset({"raises", "assertRaises", "assertRaisesRegex", "assertRaisesRegexp"})
_OPPOSITES = {
    one: other
    for pair in (
        ("assertTrue", "assertFalse"), ("assertIn", "assertNotIn"), ("assertIs", "assertIsNot"),
        ("assertIsNone", "assertIsNotNone"), ("assertGreater", "assertLessEqual"), ("assertLess", "assertGreaterEqual"),
        ("assertIsInstance", "assertNotIsInstance"), ("assertEqual", "assertNotEqual"),
        ("assertAlmostEqual", "assertNotAlmostEqual"), ("assertRegex", "assertNotRegex"),
    )
    for one, other in (pair, pair[::-1])
}  # fmt: skip
_EXCEPTIONS = ("ZeroDivisionError", "BlockingIOError", "StopAsyncIteration", "ProcessLookupError")
_NUM_TRIES = 5


class ChangeKind(StrEnum):
    VALUES = "values"
    LEFT = "left"
    RIGHT = "right"
    NEGATED = "negated"


KINDS = tuple(ChangeKind)


class Edit(NamedTuple):
    """A byte range of a file, and its replacement."""

    start: int
    end: int
    text: bytes


def line_starts(text: str) -> list[int]:
    """The byte offset of each line, with lines counted as by `ast`."""
    starts = [0]
    for line in text.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def edits_of(
    text: str, function: ast.FunctionDef | ast.AsyncFunctionDef, kind: ChangeKind, rng: random.Random
) -> list[Edit]:
    """Edits that make a test's expectations wrong in one way; none if it has no such expectation."""
    finder = _Finder(text, rng)
    match kind:
        case ChangeKind.VALUES:
            return _outermost(finder.values(function))
        case ChangeKind.LEFT | ChangeKind.RIGHT:
            return _outermost(finder.wrapped(function, 0 if kind is ChangeKind.LEFT else 1))
        case ChangeKind.NEGATED:
            return _outermost(finder.negated(function))


def _outermost(edits: Iterable[Edit]) -> list[Edit]:
    """Drop edits that lie within another."""
    found: list[Edit] = []
    for edit in sorted(edits, key=lambda one: (one.start, -one.end)):
        if not found or edit.start >= found[-1].end:
            found.append(edit)
    return found


def _sides(function: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Pairs of values that the test requires to be equal."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            for compared in _parts(node.test):
                if isinstance(compared, ast.Compare) and [type(op) for op in compared.ops] in ([ast.Eq], [ast.Is]):
                    yield compared.left, compared.comparators[0]
        elif isinstance(node, ast.Call) and _called(node) in _EQUALS and len(node.args) >= 2:
            yield node.args[0], node.args[1]


def _parts(test: ast.expr) -> Iterable[ast.expr]:
    """The conditions joined by `and`."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [part for value in test.values for part in _parts(value)]
    return [test]


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


class _Finder:
    def __init__(self, text: str, rng: random.Random) -> None:
        self._starts = line_starts(text)
        self._data = text.encode()
        self._rng = rng

    def values(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[Edit]:
        edits: list[Edit] = []
        for sides in _sides(function):
            expected = next((side for side in reversed(sides) if _is_literal(side)), None)
            if expected is not None and (edit := self._another(expected)) is not None:
                edits.append(edit)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and _called(node) in _RAISES and node.args:
                edits.append(self._other_exception(node.args[0]))
        return [*edits, *self._columns(function)]

    def wrapped(self, function: ast.AST, place: int) -> list[Edit]:
        """Put one side of each comparison in a tuple, so that plain values are no longer equal."""
        return [edit for sides in _sides(function) for edit in self._around(sides[place], b"(", b",)")]

    def negated(self, function: ast.AST) -> list[Edit]:
        edits: list[Edit] = []
        for node in ast.walk(function):
            if isinstance(node, ast.Assert):
                edits += self._around(node.test, b"(not (", b"))")
            elif isinstance(node, ast.Call) and (other := _OPPOSITES.get(_called(node))) is not None:
                end = self._end(node.func)
                edits.append(Edit(end - len(_called(node)), end, other.encode()))
        return edits

    def _columns(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[Edit]:
        """Change the literals of parameters that are only used to be compared with results."""
        edits: list[Edit] = []
        compared = {id(side): side.id for sides in _sides(function) for side in sides if isinstance(side, ast.Name)}
        used = [(id(node), node.id) for part in function.body for node in ast.walk(part) if isinstance(node, ast.Name)]
        for decorator in function.decorator_list:
            if not isinstance(decorator, ast.Call) or _called(decorator) != "parametrize" or len(decorator.args) < 2:
                continue
            names, rows = _parameters(decorator.args[0]), decorator.args[1]
            if not isinstance(rows, ast.List | ast.Tuple):
                continue
            for place, name in enumerate(names):
                mine = {node for node, one in used if one == name}
                if not mine or not mine <= set(compared):
                    continue
                cells = [_cell(row, place, len(names)) for row in rows.elts]
                found = [None if cell is None or not _is_literal(cell) else self._another(cell) for cell in cells]
                if all(edit is not None for edit in found):
                    edits += [edit for edit in found if edit is not None]
        return edits

    def _another(self, literal: ast.expr) -> Edit | None:
        """Replace a literal, or one inside it, by another value of the same type."""
        start, end = self._start(literal), self._end(literal)
        before = _evaluated(self._data[start:end])
        for _ in range(_NUM_TRIES):
            spots = [(spot, text) for spot in _spots(literal) if (text := _other_text(spot, self._rng))]
            if not spots:
                return None
            spot, text = self._rng.choice(spots)
            edit = Edit(self._start(spot), self._end(spot), text.encode())
            after = self._data[start : edit.start] + edit.text + self._data[edit.end : end]
            if before is None or _evaluated(after) != before:
                return edit
        return None

    def _other_exception(self, named: ast.expr) -> Edit:
        source = self._data[self._start(named) : self._end(named)].decode()
        others = [name for name in _EXCEPTIONS if name not in source]
        return Edit(self._start(named), self._end(named), self._rng.choice(others).encode())

    def _around(self, node: ast.expr, before: bytes, after: bytes) -> list[Edit]:
        start, end = self._start(node), self._end(node)
        return [Edit(start, end, before + self._data[start:end] + after)]

    def _start(self, node: ast.expr) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr) -> int:
        return self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)


def _parameters(names: ast.expr) -> list[str]:
    if isinstance(names, ast.Constant) and isinstance(names.value, str):
        return [name.strip() for name in names.value.split(",") if name.strip()]
    if isinstance(names, ast.List | ast.Tuple):
        return [one.value for one in names.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return []


def _cell(row: ast.expr, place: int, num: int) -> ast.expr | None:
    """The value of one parameter in a row of parametrize."""
    if isinstance(row, ast.Call) and _called(row) == "param":
        return row.args[place] if place < len(row.args) else None
    if num == 1:
        return row
    if isinstance(row, ast.List | ast.Tuple) and place < len(row.elts):
        return row.elts[place]
    return None


def _is_literal(node: ast.expr) -> bool:
    match node:
        case ast.Constant() | ast.List() | ast.Tuple() | ast.Set() | ast.Dict():
            return bool(_spots(node))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            return True
        case ast.Call():
            return _called(node) in _BUILDERS and bool(node.args) and _is_literal(node.args[0])
    return False


def _spots(node: ast.expr) -> list[ast.expr]:
    """The literals inside a literal that can be changed by themselves; an empty container is changed as a whole."""
    match node:
        case ast.Constant(value=value):
            return [] if value is None or value is ... else [node]
        case ast.UnaryOp(operand=ast.Constant()):
            return [node]
        case ast.List(elts=[]) | ast.Tuple(elts=[]) | ast.Dict(keys=[]):
            return [node]
        case ast.List(elts=inner) | ast.Tuple(elts=inner) | ast.Set(elts=inner) | ast.Dict(values=inner):
            return [spot for one in inner for spot in _spots(one)]
        case ast.Call():
            return _spots(node.args[0]) if _called(node) in _BUILDERS and node.args else []
    return []


def _other_text(spot: ast.expr, rng: random.Random) -> str:
    """Another literal of the same type."""
    match spot:
        case ast.List():
            return "[0]"
        case ast.Tuple():
            return "(0,)"
        case ast.Dict():
            return "{0: 0}"
        case ast.UnaryOp(operand=ast.Constant(value=value)) if not isinstance(value, str | bytes | bool):
            return f"-{_other(value, rng)!r}" if isinstance(value, int | float) and value > 9 else "-97"
        case ast.Constant(value=value):
            return repr(_other(value, rng))
    return ""


def _other(value: object, rng: random.Random) -> object:
    match value:
        case bool():
            return not value
        case int():
            return value + rng.choice([-5, -3, -2, -1, 1, 2, 3, 4, 7])
        case float():
            return value + rng.choice([-2.25, -1.5, 1.5, 3.75]) if math.isfinite(value) else 0.5
        case complex():
            return value + 1
        case str():
            return _other_word(value, rng)
        case bytes():
            return _other_word(value.decode("latin-1"), rng).encode("latin-1")
    return 0


def _other_word(word: str, rng: random.Random) -> str:
    """The word with one letter or digit changed; with a letter appended if it has none."""
    places = [place for place, letter in enumerate(word) if letter.isascii() and letter.isalnum()]
    if not places:
        return f"{word}x"
    place = rng.choice(places)
    letters = "0123456789" if word[place].isdigit() else "abcdefghijklmnopqrstuvwxyz"
    others = [letter for letter in letters if letter != word[place].lower()]
    letter = rng.choice(others)
    return word[:place] + (letter.upper() if word[place].isupper() else letter) + word[place + 1 :]


def _evaluated(source: bytes) -> object:
    """The value of a plain literal; None for anything else."""
    try:
        return ast.literal_eval(source.decode().strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
