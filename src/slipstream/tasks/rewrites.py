"""Makes honest rewrites: other solutions of a task, derived from the reference. Pure.

Input: files with the bug, and the same files solved. Output: by name, files whose text differs from both and that
behave like the solved ones. A grading that does not reward them would also refuse honest work.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

Function = ast.FunctionDef | ast.AsyncFunctionDef

_USES_FRAMES = frozenset({"locals", "vars", "eval", "exec", "super", "_getframe", "stack", "currentframe"})


def honest_rewrites(broken: Mapping[str, str], solved: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Three rewrites, each as whole files."""
    made: dict[str, dict[str, str]] = {}
    for name, rewrite in _REWRITES.items():
        made[name] = {path: _rewritten(broken.get(path, ""), text, rewrite, name) for path, text in solved.items()}
    return made


def _rewritten(broken: str, solved: str, rewrite: Callable[[Function], None], name: str) -> str:
    """The file with its changed functions rewritten, or with a comment added if there are none."""
    lines = solved.split("\n")
    places = sorted(_changed(broken, solved), key=lambda node: node.lineno, reverse=True)
    for node in places:
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        last = node.end_lineno or node.lineno
        indent = " " * node.col_offset
        if "\t" in lines[node.lineno - 1][: node.col_offset]:
            continue
        rewrite(node)
        text = ast.unparse(ast.fix_missing_locations(node))
        lines[first - 1 : last] = [
            f"{indent}# {name}",
            *(f"{indent}{line}" if line else "" for line in text.split("\n")),
        ]
    made = "\n".join(lines)
    if made == solved or not _parses(made):
        made = f"{solved.rstrip()}\n\n# {name}\n"
    return made


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _changed(broken: str, solved: str) -> list[Function]:
    """The functions that differ between the two texts; of nested ones, the outermost."""
    try:
        before = {name: ast.dump(node) for name, node in _functions(ast.parse(broken))}
        now = list(_functions(ast.parse(solved)))
    except (SyntaxError, ValueError):
        return []
    return [node for name, node in now if before.get(name) != ast.dump(node) and not _has_long_text(node)]


def _functions(tree: ast.AST, around: str = "") -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{around}{node.name}", node
        else:
            inner = f"{around}{node.name}." if isinstance(node, ast.ClassDef) else around
            yield from _functions(node, inner)


def _has_long_text(node: Function) -> bool:
    """Whether it has a multi-line string other than its docstring, whose indentation would have to be kept."""
    docstring = node.body[0].value if isinstance(node.body[0], ast.Expr) else None
    return any(
        isinstance(one, ast.Constant | ast.JoinedStr) and one is not docstring and one.lineno != one.end_lineno
        for one in ast.walk(node)
    )


def _names(node: ast.AST) -> set[str]:
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def _renamed(node: Function) -> None:
    """Rename its local variables."""
    if _names(node) & _USES_FRAMES:
        return
    kept = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    for one in ast.walk(node):
        match one:
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                kept.update(names)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                kept.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                kept.update((alias.asname or alias.name).partition(".")[0] for alias in aliases)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                kept.add(name)
    stored = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    taken = _names(node)
    new = {name: _free(f"{name}_here", taken) for name in sorted(stored - kept)}
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            one.id = new.get(one.id, one.id)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _with_steps(node: Function) -> None:
    """Assign what it returns to a variable first."""
    name = _free("what_comes_of_it", _names(node))

    class Steps(ast.NodeTransformer):
        def visit_FunctionDef(self, inner: ast.FunctionDef) -> ast.AST:
            return inner

        def visit_AsyncFunctionDef(self, inner: ast.AsyncFunctionDef) -> ast.AST:
            return inner

        def visit_Lambda(self, inner: ast.Lambda) -> ast.AST:
            return inner

        def visit_Return(self, found: ast.Return) -> ast.AST | list[ast.stmt]:
            if found.value is None:
                return found
            kept = ast.Assign(targets=[ast.Name(id=name, ctx=ast.Store())], value=found.value)
            return [kept, ast.Return(value=ast.Name(id=name, ctx=ast.Load()))]

    node.body = [one for part in node.body for one in _listed(Steps().visit(part))]


def _listed(found: ast.stmt | list[ast.stmt]) -> list[ast.stmt]:
    return found if isinstance(found, list) else [found]


def _through_helper(node: Function) -> None:
    """Move its body to an inner function, which it calls."""
    has_yield = any(isinstance(one, ast.Yield | ast.YieldFrom | ast.Await) for one in ast.walk(node))
    if has_yield or isinstance(node, ast.AsyncFunctionDef) or _names(node) & _USES_FRAMES:
        return
    if any(isinstance(one, ast.Global | ast.Nonlocal) for one in ast.walk(node)):
        return
    has_docstring = isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
    docstring, body = (node.body[:1], node.body[1:]) if has_docstring else ([], node.body)
    stored = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)}
    bound = {one.name for part in body for one in ast.walk(part) if isinstance(one, Function | ast.ClassDef)}
    arguments = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
    shared = sorted(arguments & (stored | bound))
    if not body:
        return
    name = _free("do_the_work", _names(node) | arguments)
    helper = ast.parse(f"def {name}():\n    pass").body[0]
    assert isinstance(helper, ast.FunctionDef)
    helper.body = [*([ast.Nonlocal(names=shared)] if shared else []), *body]
    call = ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=[], keywords=[])
    node.body = [*docstring, helper, ast.Return(value=call)]


_REWRITES: Mapping[str, Callable[[Function], None]] = {
    "other names for its variables": _renamed,
    "one step at a time": _with_steps,
    "through a function of its own": _through_helper,
}
