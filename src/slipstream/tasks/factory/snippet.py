"""Turns a failing test into a program that a user could report: the lines that lead to the failure, and their imports.

Input: the text of a test file, the line of the failure and the values of the test's parameters. Output: a program, or
None if the test is not self-contained (fixtures, its class). Invariants: pure; the test's name is not in the program.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from slipstream.tasks.factory.lint import undefined_names
from slipstream.tasks.factory.package.layout import TEST_FOLDERS

MAX_CHARS = 1_500
MAX_LINES = 40

_ASSERTIONS = {
    "assertEqual": "==", "assertEquals": "==", "assertListEqual": "==", "assertDictEqual": "==",
    "assertTupleEqual": "==", "assertSetEqual": "==", "assertSequenceEqual": "==", "assertNotEqual": "!=",
    "assertIs": "is", "assertIsNot": "is not", "assertIn": "in", "assertNotIn": "not in", "assertLess": "<",
    "assertLessEqual": "<=", "assertGreater": ">", "assertGreaterEqual": ">=",
}  # fmt: skip


def snippet_of(
    text: str, path: str, *, function: str, line: int, params: Mapping[str, str], root: str = ".", public: str = ""
) -> str | None:
    """The program that fails like the test. With `public`, the package's name, imports from its modules become imports
    from the package itself."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    test = _find(module, function, line)
    if test is None:
        return None
    try:
        given = _parameters(test, params)
        lines = _needed(_leading(test, line))
        body = [_PlainAsserts().visit(one) for one in lines]
        uses = _names(body) - set(given)
        if "self" in uses or "cls" in uses:
            return None
        given = {name: value for name, value in given.items() if name in _names(body)}
        head = _definitions(module, uses, _FileImports(path, root, public))
    except _NotSelfContained:
        return None
    parts = [*(ast.unparse(one) for one in head), *(f"{name} = {value}" for name, value in given.items())]
    parts += [ast.unparse(one) for one in body]
    made = "\n".join(parts)
    if len(made) > MAX_CHARS or made.count("\n") >= MAX_LINES or function in made:
        return None
    return made


def lines_of(text: str, *, function: str, line: int) -> str | None:
    """The lines of the test that lead to the failure, without imports and definitions."""
    try:
        test = _find(ast.parse(text), function, line)
        if test is None:
            return None
        made = "\n".join(ast.unparse(one) for one in _needed(_leading(test, line)))
    except (SyntaxError, ValueError, _NotSelfContained):
        return None
    return None if len(made) > MAX_CHARS or made.count("\n") >= MAX_LINES or function in made else made


def with_imports(lines: str, text: str, *, known: Container[str]) -> str | None:
    """Lines of a test after the imports of its file that they need; None if they need anything else from around them,
    apart from names that are `known`."""
    try:
        missing = [name for name in undefined_names(lines) if name not in known]
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return None
    made: list[str] = []
    for name in missing:
        found = next((line for node in body if (line := _import_of(node, name))), "")
        if not found:
            return None
        made.append(found)
    return "\n".join([*dict.fromkeys(made), *([""] if made else []), lines])


def _import_of(node: ast.stmt, name: str) -> str:
    """The import that gives a name; empty if the statement is none, or imports from beside the tests."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            if (alias.asname or alias.name.partition(".")[0]) != name:
                continue
            if isinstance(node, ast.Import):
                return ast.unparse(ast.Import(names=[alias]))
            parts = (node.module or "").split(".")
            if not node.level and parts[0] not in (*TEST_FOLDERS, "conftest"):
                return ast.unparse(ast.ImportFrom(module=node.module, names=[alias], level=0))
    return ""


class _NotSelfContained(Exception):
    """The test depends on something outside it that cannot be included."""


def _find(module: ast.Module, function: str, line: int) -> ast.FunctionDef | None:
    for node in ast.walk(module):
        if (
            isinstance(node, ast.FunctionDef)
            and node.name == function
            and node.lineno <= line <= (node.end_lineno or 0)
        ):
            return node
    return None


def _parameters(test: ast.FunctionDef, params: Mapping[str, str]) -> dict[str, str]:
    names = [one.arg for one in (*test.args.posonlyargs, *test.args.args, *test.args.kwonlyargs)]
    if test.args.vararg or test.args.kwarg:
        raise _NotSelfContained
    given: dict[str, str] = {}
    for name in names:
        if name in ("self", "cls"):
            continue
        try:
            ast.literal_eval(params[name])
        except (KeyError, ValueError, SyntaxError, MemoryError, RecursionError):
            raise _NotSelfContained from None
        given[name] = params[name]
    return given


def _leading(test: ast.FunctionDef, line: int) -> list[ast.stmt]:
    """The test's statements up to the one that failed, without the checks that passed."""
    body = test.body[1:] if ast.get_docstring(test, clean=False) is not None else test.body
    kept: list[ast.stmt] = []
    for statement in body:
        if statement.lineno > line:
            break
        is_last = statement.lineno <= line <= (statement.end_lineno or 0)
        if is_last or not _is_check(statement):
            kept.append(statement)
        if is_last:
            return kept
    raise _NotSelfContained


def _is_check(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assert):
        return True
    if isinstance(statement, ast.With):
        return any("aises" in ast.unparse(one.context_expr) for one in statement.items)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        return "assert" in (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", ""))
    return False


def _needed(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The last statement, and those before it that affect its names."""
    kept = [statements[-1]]
    wanted = _names(kept)
    for statement in reversed(statements[:-1]):
        bound = _bound(statement)
        mentioned = _names([statement])
        acts_on = isinstance(statement, ast.Expr | ast.Delete | ast.AugAssign | ast.For | ast.With | ast.While | ast.If)
        acts_on = acts_on or isinstance(statement, ast.Assign)
        if bound & wanted or (acts_on and mentioned & wanted - _builtins()) or isinstance(statement, ast.Global):
            kept.insert(0, statement)
            wanted |= mentioned
    return kept


def _builtins() -> set[str]:
    return set(dir(builtins))


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement binds, outside functions and comprehensions in it."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    found: set[str] = set()
    rest: list[ast.AST] = [node]
    while rest:
        one = rest.pop()
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            found.add(one.id)
        if isinstance(one, ast.stmt) and one is not node:
            found |= _bound(one)
        elif not isinstance(one, ast.comprehension | ast.Lambda):
            rest += ast.iter_child_nodes(one)
    return found


class _PlainAsserts(ast.NodeTransformer):
    """Rewrites unittest's assertions: `self.assertEqual(a, b)` becomes `assert a == b`."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        if not (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
            and call.func.value.id == "self"
        ):
            return node
        name, args = call.func.attr, [ast.unparse(one) for one in call.args]
        if name in _ASSERTIONS and len(args) >= 2:
            made = f"assert {_parenthesised(call.args[0])} {_ASSERTIONS[name]} {_parenthesised(call.args[1])}"
        elif name in ("assertTrue", "assert_") and args:
            made = f"assert {args[0]}"
        elif name == "assertFalse" and args:
            made = f"assert not ({args[0]})"
        elif name in ("assertIsNone", "assertIsNotNone") and args:
            made = f"assert {_parenthesised(call.args[0])} is {'not ' if 'Not' in name else ''}None"
        elif name == "assertRaises" and len(args) >= 2:
            rest = ", ".join([*args[2:], *(f"{one.arg}={ast.unparse(one.value)}" for one in call.keywords)])
            made = f"try:\n    {args[1]}({rest})\nexcept {args[0]}:\n    pass\nelse:\n    assert False, 'no {args[0]}'"
        else:
            return node
        return ast.parse(made).body[0]

    def visit_With(self, node: ast.With) -> ast.AST:
        self.generic_visit(node)
        called = node.items[0].context_expr
        if len(node.items) == 1 and isinstance(called, ast.Call) and ast.unparse(called.func) == "self.assertRaises":
            made = ast.parse(
                f"try:\n    pass\nexcept {ast.unparse(called.args[0])}:\n    pass\nelse:\n    assert False"
            ).body[0]
            assert isinstance(made, ast.Try)
            made.body = node.body
            return made
        return node


def _parenthesised(node: ast.expr) -> str:
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, ast.Compare | ast.BoolOp | ast.IfExp | ast.Lambda | ast.UnaryOp) else text


# ---------------------------------------------------------------- what the lines need


class _FileImports:
    """Makes the imports of a test file absolute."""

    def __init__(self, path: str, root: str, public: str) -> None:
        parts = PurePosixPath(path).with_suffix("").parts
        lead = () if root == "." else PurePosixPath(root).parts
        self._parts = parts[len(lead) :] if parts[: len(lead)] == lead else parts
        self._public = public

    def absolute(self, node: ast.ImportFrom) -> ast.ImportFrom:
        module = node.module or ""
        if node.level:
            base = self._parts[: -node.level]
            if not base:
                raise _NotSelfContained
            module = ".".join([*base, *([module] if module else [])])
        if "test" in module.rpartition(".")[2] or module == "__future__":
            raise _NotSelfContained
        if self._public and module.startswith(f"{self._public}."):
            module = self._public
        return ast.ImportFrom(module=module, names=node.names, level=0)


def _definitions(module: ast.Module, uses: set[str], place: _FileImports) -> list[ast.stmt]:
    """The file's statements that bind the names, and those that they need in turn, in the file's order."""
    wanted, kept = set(uses), dict[int, ast.stmt]()
    stars = [one for one in module.body if isinstance(one, ast.ImportFrom) and one.names[0].name == "*"]
    found: set[str] = set()
    while True:
        more = False
        for number, statement in enumerate(module.body):
            bound = _bound(statement) & wanted
            if not bound or number in kept:
                continue
            if isinstance(statement, ast.Import):
                names = [one for one in statement.names if (one.asname or one.name.partition(".")[0]) in wanted]
                kept[number] = ast.Import(names=names)
            elif isinstance(statement, ast.ImportFrom):
                names = [one for one in statement.names if (one.asname or one.name) in wanted]
                kept[number] = place.absolute(
                    ast.ImportFrom(module=statement.module, names=names, level=statement.level)
                )
            elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.FunctionDef | ast.ClassDef):
                if isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.decorator_list:
                    raise _NotSelfContained
                kept[number] = statement
                wanted |= _names([statement])
            else:
                raise _NotSelfContained
            found |= bound
            more = True
        if not more:
            break
    made = [kept[number] for number in sorted(kept)]
    missing = uses - found - _builtins()
    if stars and missing:
        made = [*(place.absolute(one) for one in stars), *made]
    return made
