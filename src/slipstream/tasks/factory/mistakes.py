"""The edits that plant one mistake in one node of a syntax tree: small mistakes of the kind that people make. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any


class Mistake(StrEnum):
    """The kinds of bugs."""

    OPERATOR = "operator"
    BOUNDARY = "boundary"
    WRONG_VARIABLE = "wrong_variable"
    DROPPED_BRANCH = "dropped_branch"
    DROPPED_CALL = "dropped_call"
    SWAPPED_ARGUMENTS = "swapped_arguments"
    OFF_BY_ONE = "off_by_one"
    REMOVED_HANDLING = "removed_handling"
    WRONG_CONSTANT = "wrong_constant"
    CONTROL_FLOW = "control_flow"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Edit:
    """Replaces the bytes `start` to `end` of a file by `text`."""

    start: int
    end: int
    text: str
    mistake: Mistake


class Source:
    """Source text, addressed by nodes of its syntax tree."""

    def __init__(self, text: str) -> None:
        self.data = text.encode("utf-8", "surrogateescape")
        self.lines = [0]
        for line in re.finditer(rb"\r\n|\n|\r", self.data):
            self.lines.append(line.end())
        self.lines.append(len(self.data))

    def start(self, node: ast.AST) -> int:
        return self.lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined,no-any-return]

    def end(self, node: ast.AST) -> int:
        return self.lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined,no-any-return]

    def text(self, node: ast.AST) -> str:
        return self.between(self.start(node), self.end(node))

    def between(self, start: int, end: int) -> str:
        return self.data[start:end].decode("utf-8", "surrogateescape")

    def replace(self, node: ast.AST, text: str, mistake: Mistake) -> Edit:
        return Edit(start=self.start(node), end=self.end(node), text=text, mistake=mistake)

    def in_gap(self, left: ast.AST, right: ast.AST, old: str, new: str, mistake: Mistake) -> Iterator[Edit]:
        """Replace the operator between two operands."""
        start, end = self.end(left), self.start(right)
        gap = self.between(start, end)
        match = re.fullmatch(rf"([\s)]*){_pattern(old)}([\s(]*)", gap)
        if match is not None:
            yield Edit(start=start + match.end(1), end=end - len(match[2]), text=new, mistake=mistake)

    def parses(self, edit: Edit, start: int, end: int) -> bool:
        """Whether the lines from `start` to `end`, parsed by themselves to save time, are valid with the edit."""
        made = self.data[start : edit.start] + edit.text.encode("utf-8", "surrogateescape") + self.data[edit.end : end]
        try:
            ast.parse(b"if 1:\n" + made if made[:1] in (b" ", b"\t") else made)
        except (SyntaxError, ValueError):
            return False
        return True

    def whole_lines(self, node: ast.stmt) -> tuple[int, int] | None:
        """The byte range of a statement's lines, if it shares them with no other."""
        start, end = self.lines[node.lineno - 1], self.lines[min((node.end_lineno or 0), len(self.lines) - 1)]
        before, after = self.between(start, self.start(node)), self.between(self.end(node), end)
        if before.strip() or not re.fullmatch(r"[ \t]*(#[^\r\n]*)?\r?\n?", after):
            return None
        return start, end


def _pattern(operator: str) -> str:
    return r"\s+".join(map(re.escape, operator.split()))


_COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[tuple[str, Mistake], ...]]] = {
    ast.Lt: ("<", (("<=", Mistake.BOUNDARY), (">", Mistake.OPERATOR))),
    ast.LtE: ("<=", (("<", Mistake.BOUNDARY), (">=", Mistake.OPERATOR))),
    ast.Gt: (">", ((">=", Mistake.BOUNDARY), ("<", Mistake.OPERATOR))),
    ast.GtE: (">=", ((">", Mistake.BOUNDARY), ("<=", Mistake.OPERATOR))),
    ast.Eq: ("==", (("!=", Mistake.OPERATOR), (">=", Mistake.BOUNDARY))),
    ast.NotEq: ("!=", (("==", Mistake.OPERATOR),)),
    ast.Is: ("is", (("is not", Mistake.OPERATOR),)),
    ast.IsNot: ("is not", (("is", Mistake.OPERATOR),)),
    ast.In: ("in", (("not in", Mistake.OPERATOR),)),
    ast.NotIn: ("not in", (("in", Mistake.OPERATOR),)),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, tuple[str, ...]]] = {
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("+", "//")),
    ast.Div: ("/", ("*", "//")),
    ast.FloorDiv: ("//", ("/", "%")),
    ast.Mod: ("%", ("//",)),
    ast.BitAnd: ("&", ("|",)),
    ast.BitOr: ("|", ("&",)),
    ast.Pow: ("**", ("*",)),
    ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)),
}


def _compare(source: Source, node: ast.Compare) -> Iterator[Edit]:
    operands = [node.left, *node.comparators]
    for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
        sign, others = _COMPARISONS[type(operator)]
        for other, mistake in others:
            if other == ">=" and sign == "==" and not isinstance(right, ast.Constant):
                continue
            yield from source.in_gap(left, right, sign, other, mistake)


def _arithmetic(source: Source, node: ast.BinOp) -> Iterator[Edit]:
    is_text = isinstance(node.left, ast.Constant | ast.JoinedStr) and isinstance(getattr(node.left, "value", ""), str)
    sign, others = _ARITHMETIC.get(type(node.op), ("", ()))
    if is_text:
        return
    for other in others:
        yield from source.in_gap(node.left, node.right, sign, other, Mistake.OPERATOR)
    if isinstance(node.op, ast.Add | ast.Sub) and isinstance(node.right, ast.Constant) and node.right.value == 1:
        yield source.replace(node, source.text(node.left), Mistake.OFF_BY_ONE)


def _augmented(source: Source, node: ast.AugAssign) -> Iterator[Edit]:
    sign, others = _ARITHMETIC.get(type(node.op), ("", ()))
    if sign:
        for other in others:
            yield from source.in_gap(node.target, node.value, f"{sign}=", f"{other}=", Mistake.OPERATOR)
        yield from source.in_gap(node.target, node.value, f"{sign}=", "=", Mistake.OPERATOR)


def _logic(source: Source, node: ast.BoolOp) -> Iterator[Edit]:
    old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    for left, right in zip(node.values, node.values[1:], strict=False):
        yield from source.in_gap(left, right, old, new, Mistake.OPERATOR)
    kept = [source.text(one) for one in node.values]
    if "\n" not in source.text(node):
        yield source.replace(node, f" {old} ".join(kept[:-1]), Mistake.REMOVED_HANDLING)
        yield source.replace(node, f" {old} ".join(kept[1:]), Mistake.REMOVED_HANDLING)


def _negation(source: Source, node: ast.UnaryOp) -> Iterator[Edit]:
    if isinstance(node.op, ast.Not | ast.USub) and not isinstance(node.operand, ast.Compare):
        yield source.replace(node, source.text(node.operand), Mistake.OPERATOR)


def _condition(source: Source, node: ast.If | ast.While | ast.IfExp) -> Iterator[Edit]:
    if isinstance(node.test, ast.Name | ast.Call | ast.Attribute) and not isinstance(node, ast.While):
        yield source.replace(node.test, f"not {source.text(node.test)}", Mistake.OPERATOR)
    if isinstance(node, ast.IfExp) and "\n" not in source.text(node):
        body, test, other = (source.text(one) for one in (node.body, node.test, node.orelse))
        yield source.replace(node, f"{other} if {test} else {body}", Mistake.SWAPPED_ARGUMENTS)
        yield source.replace(node, body, Mistake.DROPPED_BRANCH)


def constant_edits(source: Source, node: ast.Constant) -> Iterator[Edit]:
    if node.value is True or node.value is False:
        yield source.replace(node, str(not node.value), Mistake.WRONG_CONSTANT)
    elif type(node.value) is int and source.text(node).isdecimal():
        yield source.replace(node, str(node.value + 1), Mistake.OFF_BY_ONE)
        if node.value > 0:
            yield source.replace(node, str(node.value - 1), Mistake.OFF_BY_ONE)


def _slice(source: Source, node: ast.Slice) -> Iterator[Edit]:
    if node.lower is not None and node.upper is None and node.step is None and isinstance(node.lower, ast.Name):
        yield source.replace(node.lower, f"{source.text(node.lower)} + 1", Mistake.OFF_BY_ONE)
    if node.upper is not None and isinstance(node.upper, ast.Name | ast.Call):
        yield source.replace(node.upper, f"{source.text(node.upper)} - 1", Mistake.OFF_BY_ONE)


def _call(source: Source, node: ast.Call) -> Iterator[Edit]:
    plain = [one for one in node.args if not isinstance(one, ast.Starred)]
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if name in ("isinstance", "getattr", "hasattr", "setattr", "super", "issubclass", "cast", "TypeVar"):
        return
    for first, second in pairwise(plain[:3]):
        if source.text(first) != source.text(second):
            start, end = source.start(first), source.end(second)
            middle = source.between(source.end(first), source.start(second))
            text = f"{source.text(second)}{middle}{source.text(first)}"
            yield Edit(start=start, end=end, text=text, mistake=Mistake.SWAPPED_ARGUMENTS)
    if name == "range" and len(plain) == len(node.args) and plain:
        last = plain[-1] if len(plain) < 3 else plain[1]
        if not isinstance(last, ast.Constant):
            yield source.replace(last, f"{source.text(last)} - 1", Mistake.OFF_BY_ONE)
    is_plain = len(plain) == len(node.args) == 1 and not node.keywords and isinstance(node.func, ast.Name)
    if is_plain and not name.startswith("_"):
        yield source.replace(node, source.text(plain[0]), Mistake.DROPPED_CALL)
    if not node.args and not node.keywords and isinstance(node.func, ast.Attribute):
        yield source.replace(node, source.text(node.func.value), Mistake.DROPPED_CALL)
    if name in ("get", "pop", "getattr", "setdefault", "next") and len(node.args) == 2:
        start, end = source.end(node.args[0]), source.end(node.args[1])
        yield Edit(start=start, end=end, text="", mistake=Mistake.REMOVED_HANDLING)
    if node.keywords and node.keywords[-1].arg is not None and (node.args or len(node.keywords) > 1):
        before = node.args[-1] if len(node.keywords) == 1 else node.keywords[-2].value
        if source.end(before) < source.start(node.keywords[-1]):
            start, end = source.end(before), source.end(node.keywords[-1].value)
            yield Edit(start=start, end=end, text="", mistake=Mistake.REMOVED_HANDLING)


def _returned_pair(source: Source, node: ast.Return) -> Iterator[Edit]:
    if isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
        first, second = node.value.elts
        middle = source.between(source.end(first), source.start(second))
        text = f"{source.text(second)}{middle}{source.text(first)}"
        yield Edit(start=source.start(first), end=source.end(second), text=text, mistake=Mistake.SWAPPED_ARGUMENTS)


def _handler(source: Source, node: ast.Try) -> Iterator[Edit]:
    for handler in node.handlers:
        if isinstance(handler.type, ast.Tuple) and len(handler.type.elts) > 1:
            for one in (handler.type.elts[0], handler.type.elts[-1]):
                yield source.replace(handler.type, source.text(one), Mistake.REMOVED_HANDLING)
    if len(node.handlers) > 1:
        for handler in node.handlers:
            start = source.lines[handler.lineno - 1]
            end = source.lines[min(handler.end_lineno or 0, len(source.lines) - 1)]
            if not source.between(start, source.start(handler)).strip():
                yield Edit(start=start, end=end, text="", mistake=Mistake.REMOVED_HANDLING)


def _jump(source: Source, node: ast.Break | ast.Continue) -> Iterator[Edit]:
    yield source.replace(node, "continue" if isinstance(node, ast.Break) else "break", Mistake.CONTROL_FLOW)


def wrong_variable_edits(source: Source, node: ast.Name, names: list[str]) -> Iterator[Edit]:
    """Replace a variable by one of the two that are introduced next to it."""
    if not isinstance(node.ctx, ast.Load) or node.id not in names:
        return
    place = names.index(node.id)
    for other in {place - 1, place + 1} & set(range(len(names))):
        yield source.replace(node, names[other], Mistake.WRONG_VARIABLE)


_Maker = Callable[[Source, Any], Iterator[Edit]]
"""Makes the edits of a node of the given type."""
MAKERS: tuple[tuple[type[ast.AST] | tuple[type[ast.AST], ...], _Maker], ...] = (
    (ast.Compare, _compare),
    (ast.BinOp, _arithmetic),
    (ast.AugAssign, _augmented),
    (ast.BoolOp, _logic),
    (ast.UnaryOp, _negation),
    ((ast.If, ast.While, ast.IfExp), _condition),
    (ast.Constant, constant_edits),
    (ast.Slice, _slice),
    (ast.Call, _call),
    (ast.Return, _returned_pair),
    (ast.Try, _handler),
    ((ast.Break, ast.Continue), _jump),
)
