"""What any linter would say of a text: undefined names, results and variables that nothing uses, warnings of the
compiler. Pure; nothing is run.

A bug that a linter finds needs no thought, so mutants with a new finding are dropped.
"""

from __future__ import annotations

import ast
import builtins
import symtable
import warnings
from collections import Counter
from collections.abc import Iterator

_OF_MODULES = {
    "__file__", "__name__", "__doc__", "__path__", "__spec__", "__package__", "__loader__", "__dict__", "__module__",
    "__qualname__", "__class__", "__annotations__", "__builtins__", "WindowsError",
}  # fmt: skip
_IDLE = (
    ast.Compare, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.List,
    ast.Lambda, ast.IfExp,
)  # fmt: skip


def findings(text: str) -> Counter[str]:
    """The number of times that each thing is found; a text that does not compile is a finding of its own."""
    found: Counter[str] = Counter()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tree = ast.parse(text)
            compile(text, "<text>", "exec", dont_inherit=True)
            table = symtable.symtable(text, "<text>", "exec")
    except (SyntaxError, ValueError, RecursionError) as raised:
        return Counter([f"it does not compile: {type(raised).__name__}"])
    found.update(str(one.message) for one in caught)
    found.update(f"undefined name {name}" for name in _undefined(tree, table))
    found.update(f"{name} is set and never used" for name in _unused(table))
    found.update(_idle(tree))
    return found


def undefined_names(text: str) -> list[str]:
    """The names that a text reads and nothing in it defines, in order. Raises SyntaxError."""
    tree = ast.parse(text)
    missing = set(_undefined(tree, symtable.symtable(text, "<text>", "exec")))
    names = (node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return [name for name in dict.fromkeys(names) if name in missing]


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _undefined(tree: ast.Module, table: symtable.SymbolTable) -> Iterator[str]:
    stars = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    if any(alias.name == "*" for node in stars for alias in node.names):
        return
    known = {*dir(builtins), *_OF_MODULES}
    for one in _tables(table):
        for symbol in one.get_symbols():
            is_set = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
            if is_set and (one.get_type() == "module" or symbol.is_declared_global()):
                known.add(symbol.get_name())
    for one in _tables(table):
        for symbol in one.get_symbols():
            is_top = one.get_type() == "module"
            if symbol.is_referenced() and (is_top or symbol.is_global()) and symbol.get_name() not in known:
                yield symbol.get_name()


def _unused(table: symtable.SymbolTable) -> Iterator[str]:
    """Local variables, of functions alone."""
    for one in _tables(table):
        if one.get_type() != "function":
            continue
        inner = {
            symbol.get_name() for child in one.get_children() for below in _tables(child)
            for symbol in below.get_symbols() if symbol.is_free()
        }  # fmt: skip
        for symbol in one.get_symbols():
            is_set = symbol.is_local() and symbol.is_assigned() and not symbol.is_parameter()
            if is_set and not symbol.is_referenced() and symbol.get_name() not in inner:
                yield symbol.get_name()


def _idle(tree: ast.Module) -> Iterator[str]:
    """Statements without an effect, and things compared with or set to themselves."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=value) if isinstance(value, _IDLE):
                yield "a result that nothing uses"
            case ast.Assign(targets=[target], value=value) if _same(target, value):
                yield "something is set to itself"
            case ast.Compare(left=left, comparators=[right]) if _same(left, right):
                yield "something is compared with itself"


def _same(one: ast.expr, other: ast.expr) -> bool:
    return not isinstance(one, ast.Constant) and ast.unparse(one) == ast.unparse(other)
