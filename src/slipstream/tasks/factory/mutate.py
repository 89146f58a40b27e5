"""Mutates functions: finds all edits that plant a small mistake, and applies edits.

Input: the text of a file and the lines of one function in it. Output: Edits, each a span of bytes and its replacement.
Invariants: pure and deterministic; everything outside an edit stays unchanged, byte for byte; an edited text still
parses, and differs from the original.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from slipstream.tasks.factory.mistakes import MAKERS, Edit, Mistake, Source, constant_edits, wrong_variable_edits


def apply(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits applied; they must not overlap."""
    data = text.encode("utf-8", "surrogateescape")
    last = len(data)
    for edit in sorted(edits, reverse=True):
        if edit.end > last:
            raise ValueError(f"the edits overlap at byte {edit.end}")
        data = data[: edit.start] + edit.text.encode("utf-8", "surrogateescape") + data[edit.end :]
        last = edit.start
    return data.decode("utf-8", "surrogateescape")


def edits_of(text: str, first_line: int, last_line: int) -> list[Edit]:
    """Every edit to the function whose `def` is on `first_line`, ordered by position."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    function = next(
        (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.lineno == first_line
            and node.end_lineno == last_line
        ),
        None,
    )
    if function is None:
        return []
    source = Source(text)
    found = {edit for edit in _edits(source, function) if source.data[edit.start : edit.end] != edit.text.encode()}
    start, end = source.lines[first_line - 1], source.lines[last_line]
    return [
        edit for edit in sorted(found) if start <= edit.start and edit.end <= end and source.parses(edit, start, end)
    ]


# ---------------------------------------------------------------- the nodes of a function


def _edits(source: Source, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Edit]:
    names = _names(function)
    for statement in _body(function):
        for node in _inner(statement):
            for kind, make in MAKERS:
                if isinstance(node, kind):
                    yield from make(source, node)
            if isinstance(node, ast.Name):
                yield from wrong_variable_edits(source, node, names)
    for block in _blocks(function):
        yield from _dropped(source, block)
    for default in (*function.args.defaults, *function.args.kw_defaults):
        if isinstance(default, ast.Constant):
            yield from constant_edits(source, default)


def _inner(statement: ast.AST) -> Iterator[ast.AST]:
    """A statement and its nodes, without annotations, raised exceptions, and inner functions and classes."""
    yield statement
    for field, value in ast.iter_fields(statement):
        if field in ("annotation", "returns", "decorator_list") or (
            field == "msg" and isinstance(statement, ast.Assert)
        ):
            continue
        if isinstance(statement, ast.Raise | ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or not isinstance(
                child, ast.AST
            ):
                continue
            yield from _inner(child)


def _body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """The statements without the docstring and inner functions."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return [one for one in body if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]


def _blocks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[list[ast.stmt]]:
    """Every list of statements."""
    yield _body(function)
    for statement in _body(function):
        for node in _inner(statement):
            for field in ("body", "orelse", "finalbody"):
                block = getattr(node, field, None)
                if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                    yield block


def _names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The function's own variables, which may be mistaken for each other."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    for statement in _body(function):
        for node in _inner(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in names:
                names.append(node.id)
    return [name for name in names if name not in ("self", "cls", "_")]


# ---------------------------------------------------------------- dropped statements


def _dropped(source: Source, block: list[ast.stmt]) -> Iterator[Edit]:
    """Drop a statement: a branch, a call, or an assignment to something that outlives the function."""
    for statement in block:
        mistake = _if_dropped(statement)
        lines = source.whole_lines(statement)
        if mistake is None or lines is None:
            continue
        is_elif = source.data[source.start(statement) : source.start(statement) + 4] == b"elif"
        if is_elif or len(block) > 1:
            yield Edit(start=lines[0], end=lines[1], text="", mistake=mistake)
        else:
            yield source.replace(statement, "pass", mistake)


def _if_dropped(statement: ast.stmt) -> Mistake | None:
    if isinstance(statement, ast.If) and not statement.orelse:
        guards = any(isinstance(one, ast.Raise) for one in statement.body)
        return Mistake.REMOVED_HANDLING if guards else Mistake.DROPPED_BRANCH
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return Mistake.DROPPED_CALL
    if isinstance(statement, ast.AugAssign):
        return Mistake.DROPPED_CALL
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute | ast.Subscript):
        return Mistake.DROPPED_CALL
    return None
