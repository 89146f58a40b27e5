"""Rewrites test files so that calls, operators, attributes and loops go through `recorder.py`. Standard library only.

Input: a syntax tree. Output: an equivalent tree that calls `_slip_call`, `_slip_op` and the like, which the recorder
adds to the builtins; and the source of functions and classes, by number.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

WITH_FRAMES = {"super", "locals", "globals", "vars", "dir", "eval", "exec", "open", "input", "print", "__import__"}
"""Builtins that depend on their caller's frame, or reach outside the process."""
OPERATORS: dict[type, str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.In: "contains",
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Pow: "pow", ast.LShift: "lshift", ast.RShift: "rshift", ast.BitOr: "or_", ast.BitXor: "xor",
    ast.BitAnd: "and_", ast.MatMult: "matmul", ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert",
}  # fmt: skip


class Instrument(ast.NodeTransformer):
    def __init__(self, texts: list[tuple[str, str, frozenset[str]]]) -> None:
        self.texts = texts
        self.in_class = False

    def number_of(self, node: ast.AST, text: str, name: str) -> int:
        used = frozenset(one.id for one in ast.walk(node) if isinstance(one, ast.Name))
        self.texts.append((text, name, used))
        return len(self.texts) - 1

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id in WITH_FRAMES:
            return self.generic_visit(node)
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
        else:
            node.func = self.visit(node.func)
        args = [self.visit(one) for one in node.args]
        keywords = [self.visit(one) for one in node.keywords]
        return _at(node, ast.Call(func=_name("_slip_call"), args=[node.func, *args], keywords=keywords))

    def visit_Starred(self, node: ast.Starred) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = _made("_slip_iter", node.value)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load) or (node.attr.startswith("__") and not node.attr.endswith("__")):
            return node
        return _at(node, _made("_slip_attr", node.value, ast.Constant(node.attr)))

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        name = OPERATORS.get(type(node.ops[0]))
        if len(node.ops) != 1 or name is None:
            return node
        return _at(node, _made("_slip_op", ast.Constant(name), node.left, node.comparators[0]))

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return _at(node, _made("_slip_op", ast.Constant(OPERATORS[type(node.op)]), node.left, node.right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        name = OPERATORS.get(type(node.op))
        if name is None or isinstance(node.operand, ast.Constant):
            return node
        return _at(node, _made("_slip_op", ast.Constant(name), node.operand))

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        key: ast.expr = node.slice
        if isinstance(key, ast.Slice):
            ends = (key.lower, key.upper, key.step)
            key = _made("slice", *(ast.Constant(None) if one is None else one for one in ends))
        elif _has_slice(key):
            return node
        if not isinstance(node.ctx, ast.Load):
            return node
        return _at(node, _made("_slip_op", ast.Constant("getitem"), node.value, key))

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if len(node.targets) != 1:
            return node
        target = node.targets[0]
        if isinstance(target, ast.Tuple | ast.List):
            node.value = _made("_slip_iter", node.value)
        elif isinstance(target, ast.Subscript) and not _has_slice(target.slice):
            return _at(node, ast.Expr(_made("_slip_setitem", node.value, target.value, target.slice)))
        elif isinstance(target, ast.Attribute) and not target.attr.startswith("__"):
            return _at(node, ast.Expr(_made("_slip_setattr", node.value, target.value, ast.Constant(target.attr))))
        return node

    def visit_Delete(self, node: ast.Delete) -> ast.AST:
        self.generic_visit(node)
        target = node.targets[0]
        if len(node.targets) != 1 or not isinstance(target, ast.Subscript) or _has_slice(target.slice):
            return node
        return _at(node, ast.Expr(_made("_slip_op", ast.Constant("delitem"), target.value, target.slice)))

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = _made("_slip_iter", node.iter)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        if not node.is_async:
            node.iter = _made("_slip_iter", node.iter)
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        node.defaults = [self.visit(one) for one in node.defaults]
        node.kw_defaults = [None if one is None else self.visit(one) for one in node.kw_defaults]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = None if node.value is None else self.visit(node.value)
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        node.body = [self.visit(one) for one in node.body]
        return node

    # ------------------------------------------------ definitions, identified by their source

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        number = self.number_of(node, ast.unparse(node), "")
        return _at(node, _known(number, self.generic_visit(node)))

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.AST:
        """Wrapped in a lambda, which can be sent as source text."""
        if self.in_class or any(isinstance(one, ast.NamedExpr | ast.Await | ast.Yield) for one in ast.walk(node)):
            return self.generic_visit(node)
        number = self.number_of(node, f"lambda: {ast.unparse(node)}", "")
        no_arguments = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        function = ast.Lambda(args=no_arguments, body=self.generic_visit(node))  # type: ignore[arg-type]
        return _at(node, _made("_slip_call", _known(number, function, "_slip_gen")))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self.definition(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self.definition(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self.definition(node)

    def definition(self, node: Any) -> ast.AST:
        bare = copy.copy(node)
        bare.decorator_list = []
        number = self.number_of(bare, ast.unparse(bare), node.name)
        around, self.in_class = self.in_class, isinstance(node, ast.ClassDef)
        decorators = [_made("_slip_dec", self.visit(one)) for one in node.decorator_list]
        node.decorator_list = []
        if not isinstance(node, ast.ClassDef):
            node.returns = None
        self.generic_visit(node)
        self.in_class = around
        node.decorator_list = [*decorators, _made("_slip_def", ast.Constant(number))]
        return node  # type: ignore[no-any-return]


def _name(name: str) -> ast.Name:
    return ast.Name(id=name, ctx=ast.Load())


def _made(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(func=_name(name), args=list(args), keywords=[])


def _known(number: int, node: Any, name: str = "_slip_def") -> ast.Call:
    return ast.Call(func=_made(name, ast.Constant(number)), args=[node], keywords=[])


def _has_slice(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Slice | ast.Starred) for one in ast.walk(node))


def _at(old: ast.AST, new: ast.AST) -> ast.AST:
    return ast.copy_location(new, old)
