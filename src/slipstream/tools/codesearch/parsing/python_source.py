"""Facts about a Python file: definitions, references, calls and imports. Standard library only, Python 3.8 and newer.

Input: the bytes of a file. Output: a `SourceFacts`, plain lists and numbers that are sent between processes.
Invariants: any bytes give a result. A file that does not parse is scanned line by line for `def` and `class`, and
the reason is in `error`. Lines count from 1 and are split at \\n, \\r\\n and \\r, as Python does.

This file is loaded by path in the parsing process, beside `grammars.py`, and imports nothing of ours.
"""

from __future__ import annotations

import ast
import re
import warnings
from array import array

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KINDS = (
    "class",
    "function",
    "method",
    "variable",
    "field",
    "attribute",
    "interface",
    "struct",
    "enum",
    "trait",
    "type",
    "module",
    "macro",
    "constant",
    "impl",
)
CLASS, FUNCTION, METHOD, VARIABLE, FIELD, ATTRIBUTE = range(6)
NAME, CALL, MEMBER, MEMBER_CALL, SELF, SELF_CALL, IMPORTED = range(7)
"""How a name is used: alone, called; after a dot, called; after `self.` or `cls.`, called; in an import."""

RETURNED = "->"
MAX_NAME_CHARS = 200
MAX_DOC_CHARS = 100
MAX_BASES = 50
OWNER_BITS, USE_BITS, LINE_BITS, NAME_BITS = 18, 4, 21, 21
"""A reference is one number of 64 bits: name, line, use and owner plus one, from high to low."""
MAX_OWNERS = (1 << OWNER_BITS) - 2


class SourceFacts:
    """The facts about a file, ready to send."""

    __slots__ = ("bases", "defs", "docs", "error", "imports", "names", "refs", "types")

    def __init__(self) -> None:
        self.names: list[str] = []
        """Every name that is defined or used, once each."""
        self.defs = array("I")
        """Six numbers each: name, kind, parent plus one, first line (of a decorator, if any), line of the name, last
        line."""
        self.docs: list[tuple[int, str]] = []
        """(definition, the first line of its docstring)."""
        self.bases: list[tuple[int, list[str]]] = []
        """(class, the dotted names it derives from)."""
        self.refs: list[int] = []
        """Packed and sorted: so by name, then by line."""
        self.imports: list[tuple[int, int, str, str, str]] = []
        """(line, dots, module, name or "" for the module itself, the name it has here)."""
        self.types: list[tuple[int, str, str]] = []
        """(definition that it is in or -1, name, the dotted class that it is an instance of); what a function returns
        has the name RETURNED."""
        self.error = ""


class Names(dict):  # type: ignore[type-arg]  # subscripts of dict are Python 3.9
    """Name -> number; a new name gets the next one."""

    def __missing__(self, name: str) -> int:
        number = self[name] = len(self)
        return number


def parse(data: bytes) -> SourceFacts:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = compile(data, "file", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        return scan(data, f"line {error.lineno or '?'}: {error.msg}")
    except (ValueError, RecursionError, MemoryError, OverflowError, OSError, ImportError, LookupError) as error:
        return scan(data, str(error) or type(error).__name__)
    assert isinstance(tree, ast.Module)
    return Reader().read(tree)


_LEAVES = (ast.Constant, ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal)
_NOT_READ = (
    "ctx",
    "kwd_attrs",
    "op",
    "ops",
    "id",
    "attr",
    "arg",
    "lineno",
    "kind",
    "conversion",
    "simple",
    "is_async",
    "type_comment",
)
_FIELDS = {
    kind: tuple(field for field in kind._fields if field not in _NOT_READ)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
for _leaf in _LEAVES:
    _FIELDS[_leaf] = ()
_BODIES = ("body", "orelse", "handlers", "finalbody", "cases")
_HEADS = {kind: tuple(field for field in fields if field not in _BODIES) for kind, fields in _FIELDS.items()}
_NESTED = {kind: tuple(field for field in fields if field in _BODIES) for kind, fields in _FIELDS.items()}
_TYPE_ALIAS = getattr(ast, "TypeAlias", None)
"""`type X = int`, from Python 3.12 on."""


class Reader:
    """One walk over a tree: statements in the order of the source, scope by scope."""

    def __init__(self) -> None:
        self.facts = SourceFacts()
        self.names = Names()
        self.attributes: dict[tuple[int, str], bool] = {}
        self.arguments: dict[str, str] = {}
        """The classes in the annotations of the function that is read."""

    def read(self, tree: ast.Module) -> SourceFacts:
        facts = self.facts
        self.scope(tree.body, -1, -1, -1)
        facts.names = list(self.names)
        facts.refs.sort()
        return facts

    def define(self, name: str, kind: int, parent: int, first: int, line: int, last: int) -> int:
        defs = self.facts.defs
        number = len(defs) // 6
        if number < MAX_OWNERS and len(name) <= MAX_NAME_CHARS:
            defs.extend((self.names[name], kind, parent + 1, first, line, last))
            return number
        return parent

    def scope(self, body: list[ast.stmt], owner: int, in_class: int, class_of: int) -> None:
        """Read the statements of one scope. `owner` is its definition, or -1; `in_class` is the same if it is a class;
        `class_of` is the class whose method this is, or is in."""
        todo: list[Any] = body[::-1]
        exprs: list[Any] = []
        while todo:
            node = todo.pop()
            kind = node.__class__
            if kind is ast.Expr:
                exprs.append(node.value)
            elif kind is ast.Assign:
                exprs.append(node.value)
                if node.value.__class__ is ast.Call:
                    self.typed(node.targets[0], class_called(node.value), owner, class_of)
                elif node.value.__class__ is ast.Name:
                    self.typed(node.targets[0], self.arguments.get(node.value.id, ""), owner, class_of)
                for target in node.targets:
                    self.assigned(target, node, owner, in_class, class_of, exprs)
            elif kind is ast.FunctionDef or kind is ast.AsyncFunctionDef:
                self.function(node, owner, in_class, class_of, exprs)
            elif kind is ast.ClassDef:
                self.klass(node, owner, exprs)
            elif kind is ast.Import or kind is ast.ImportFrom:
                self.imported(node, owner)
            elif kind is ast.AnnAssign or kind is ast.AugAssign:
                if kind is ast.AnnAssign:
                    exprs.append(node.annotation)
                    self.typed(node.target, annotated(node.annotation), owner, class_of)
                if node.value is not None:
                    exprs.append(node.value)
                if kind is ast.AugAssign:
                    exprs.append(node.target)
                else:
                    self.assigned(node.target, node, owner, in_class, class_of, exprs)
            else:
                for field in _HEADS[kind]:
                    value = getattr(node, field, None)
                    if value.__class__ is list:
                        exprs.extend(value)
                    elif isinstance(value, ast.AST):
                        exprs.append(value)
                if kind is ast.With or kind is ast.AsyncWith:
                    for item in node.items:
                        self.typed(item.optional_vars, class_called(item.context_expr), owner, class_of)
                if kind is _TYPE_ALIAS:
                    self.assigned(node.name, node, owner, in_class, class_of, exprs)
                for field in reversed(_NESTED[kind]):
                    todo.extend(getattr(node, field)[::-1])
        self.expressions(exprs, owner, class_of)

    def function(self, node: Any, owner: int, in_class: int, class_of: int, exprs: list[Any]) -> None:
        decorators = node.decorator_list
        first = min([decorator.lineno for decorator in decorators] + [node.lineno]) if decorators else node.lineno
        kind = FUNCTION if in_class < 0 else METHOD
        number = self.define(node.name, kind, owner, first, node.lineno, node.end_lineno)
        self.document(node.body, number)
        exprs.extend(decorators)
        given = node.args
        exprs.extend(given.defaults)
        exprs.extend(given.kw_defaults)
        around, self.arguments = self.arguments, {}
        for arguments in (given.args, given.kwonlyargs, given.posonlyargs, (given.vararg, given.kwarg)):
            for argument in arguments:
                if argument is not None and argument.annotation is not None:
                    exprs.append(argument.annotation)
                    if kind_name := annotated(argument.annotation):
                        self.arguments[argument.arg] = kind_name
                        self.typed(argument, kind_name, number, -1)
        if node.returns is not None:
            exprs.append(node.returns)
            if kind_name := annotated(node.returns):
                self.facts.types.append((number, RETURNED, kind_name))
        self.scope(node.body, number, -1, in_class if in_class >= 0 else class_of)
        self.arguments = around

    def klass(self, node: Any, owner: int, exprs: list[Any]) -> None:
        decorators = node.decorator_list
        first = min([decorator.lineno for decorator in decorators] + [node.lineno]) if decorators else node.lineno
        number = self.define(node.name, CLASS, owner, first, node.lineno, node.end_lineno)
        self.document(node.body, number)
        exprs.extend(decorators)
        exprs.extend(node.bases)
        exprs.extend(node.keywords)
        bases = [name for name in map(dotted, node.bases) if name]
        if bases:
            self.facts.bases.append((number, bases[:MAX_BASES]))
        self.scope(node.body, number, number, number)

    def document(self, body: list[ast.stmt], number: int) -> None:
        first = body[0] if body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            text = first.value.value
            if isinstance(text, str):
                line = text[: 4 * MAX_DOC_CHARS].strip().split("\n", 1)[0].strip()[:MAX_DOC_CHARS]
                if line:
                    self.facts.docs.append((number, line))

    def assigned(self, target: Any, node: Any, owner: int, in_class: int, class_of: int, exprs: list[Any]) -> None:
        kind = target.__class__
        if kind is ast.Name:
            if owner < 0:
                self.define(target.id, VARIABLE, -1, node.lineno, target.lineno, node.end_lineno)
            elif in_class >= 0:
                self.define(target.id, FIELD, in_class, node.lineno, target.lineno, node.end_lineno)
        elif kind is ast.Attribute:
            value = target.value
            if class_of >= 0 and value.__class__ is ast.Name and value.id in ("self", "cls"):
                key = (class_of, target.attr)
                if key not in self.attributes:
                    self.attributes[key] = True
                    self.define(target.attr, ATTRIBUTE, class_of, node.lineno, target.lineno, node.end_lineno)
            exprs.append(target)
        elif kind is ast.Tuple or kind is ast.List:
            for element in target.elts:
                self.assigned(element, node, owner, in_class, class_of, exprs)
        else:
            exprs.append(target)

    def typed(self, target: Any, kind_name: str, owner: int, class_of: int) -> None:
        """What a name or an attribute of `self` is an instance of."""
        if not kind_name:
            return
        kind = target.__class__
        if kind is ast.Name or kind is ast.arg:
            name = target.id if kind is ast.Name else target.arg
        elif kind is ast.Attribute and class_of >= 0 and getattr(target.value, "id", "") == "self":
            name, owner = target.attr, class_of
        else:
            return
        if len(name) <= MAX_NAME_CHARS:
            self.facts.types.append((owner, name, kind_name))

    def imported(self, node: Any, owner: int) -> None:
        imports, use = self.facts.imports, (IMPORTED << OWNER_BITS) | (owner + 1)
        from_module = node.__class__ is ast.ImportFrom
        module = (node.module or "") if from_module else ""
        for alias in node.names:
            if from_module:
                imports.append((node.lineno, node.level, module, alias.name, alias.asname or alias.name))
            else:
                imports.append((node.lineno, 0, alias.name, "", alias.asname or alias.name.split(".")[0]))
            last = alias.name.rpartition(".")[2]
            if last != "*" and len(last) <= MAX_NAME_CHARS:
                self.facts.refs.append(
                    self.names[last] << (LINE_BITS + USE_BITS + OWNER_BITS)
                    | node.lineno << (USE_BITS + OWNER_BITS)
                    | use
                )

    def expressions(self, todo: list[Any], owner: int, class_of: int) -> None:
        """The names that expressions use. The hot loop of the index, hence its length and local variables."""
        names, add, pop, push = self.names, self.facts.refs.append, todo.pop, todo.append
        to_name, to_line = LINE_BITS + USE_BITS + OWNER_BITS, USE_BITS + OWNER_BITS
        alone, call, member, member_call, own, own_call = (
            (use << OWNER_BITS) | (owner + 1) for use in (NAME, CALL, MEMBER, MEMBER_CALL, SELF, SELF_CALL)
        )
        name_kind, attribute_kind, constant_kind, call_kind = ast.Name, ast.Attribute, ast.Constant, ast.Call
        store, fields = ast.Store, _FIELDS
        while todo:
            node = pop()
            kind = node.__class__
            if kind is name_kind:
                if node.ctx.__class__ is not store:
                    add(names[node.id] << to_name | node.lineno << to_line | alone)
            elif kind is constant_kind:
                pass
            elif kind is attribute_kind:
                value = node.value
                if value.__class__ is name_kind and value.id in ("self", "cls"):
                    add(names[node.attr] << to_name | node.end_lineno << to_line | own)
                else:
                    add(names[node.attr] << to_name | node.end_lineno << to_line | member)
                    push(value)
            elif kind is call_kind:
                called: Any = node.func
                if called.__class__ is name_kind:
                    add(names[called.id] << to_name | called.lineno << to_line | call)
                    if called.id == "setattr":
                        self.set_by_name(node, class_of)
                elif called.__class__ is attribute_kind:
                    value = called.value
                    if value.__class__ is name_kind and value.id in ("self", "cls"):
                        add(names[called.attr] << to_name | called.end_lineno << to_line | own_call)  # type: ignore[operator]
                    else:
                        add(names[called.attr] << to_name | called.end_lineno << to_line | member_call)  # type: ignore[operator]
                        push(value)
                else:
                    push(called)
                if node.args:
                    todo.extend(node.args)
                for keyword in node.keywords:
                    push(keyword.value)
            elif node is not None:
                for field in fields[kind]:
                    value = getattr(node, field, None)
                    if value.__class__ is list:
                        todo.extend(value)
                    elif isinstance(value, ast.AST):
                        push(value)

    def set_by_name(self, node: Any, class_of: int) -> None:
        """`setattr(self, "name", ...)` defines an attribute too."""
        args = node.args
        if class_of < 0 or len(args) != 3 or getattr(args[0], "id", "") not in ("self", "cls"):
            return
        name = getattr(args[1], "value", None)
        if isinstance(name, str) and name.isidentifier() and (class_of, name) not in self.attributes:
            self.attributes[(class_of, name)] = True
            self.define(name, ATTRIBUTE, class_of, node.lineno, node.lineno, node.end_lineno)


def dotted(node: Any) -> str:
    """`a.b.C` of an expression, else ""; of a subscript such as `Generic[T]`, what is subscripted."""
    parts: list[str] = []
    while node.__class__ is ast.Subscript:
        node = node.value
    while node.__class__ is ast.Attribute and len(parts) < 20:
        parts.append(node.attr)
        node = node.value
    if node.__class__ is not ast.Name:
        return ""
    parts.append(node.id)
    name = ".".join(reversed(parts))
    return name if len(name) <= MAX_NAME_CHARS else ""


def class_called(node: Any) -> str:
    """The class that an expression makes an instance of, judging by its name; else ""."""
    if node.__class__ is not ast.Call:
        return ""
    return class_name(dotted(node.func) if node.func.__class__ in (ast.Name, ast.Attribute) else "")


def annotated(node: Any) -> str:
    """The class in an annotation such as `a.B`, `"B"`, `B | None` and `Optional[B]`; else ""."""
    kind = node.__class__
    if kind is ast.Constant and isinstance(node.value, str):
        found = _CLASS_NAME.match(node.value)
        return class_name(found.group(1)) if found else ""
    if kind is ast.BinOp:
        return annotated(node.left) or annotated(node.right)
    if kind is ast.Subscript:
        name = dotted(node.value).rpartition(".")[2]
        if name in ("Optional", "Union", "Annotated", "Final", "ClassVar"):
            inner = getattr(node.slice, "value", node.slice) if node.slice.__class__.__name__ == "Index" else node.slice
            parts = inner.elts if inner.__class__ is ast.Tuple else [inner]
            return next((name for name in map(annotated, parts) if name), "")
    return class_name(dotted(node))


def class_name(name: str) -> str:
    last = name.rpartition(".")[2].lstrip("_")
    return name if last[:1].isupper() and last not in ("Any", "None", "Optional", "Union", "Self") else ""


# ---------------------------------------------------------------- files that do not parse

_CLASS_NAME = re.compile(r"\s*(?:\w+\.)*?(?:Optional\[\s*)?((?:\w+\.)*\w+)")
_HEAD = re.compile(r"([ \t]*)(?:async[ \t]+)?(def|class)[ \t]+([^\W\d]\w{0,199})")
_LINE = re.compile("\r\n|\r|\n")
_CALLED = re.compile(r"([^\W\d]\w{0,199})\(")


def scan(data: bytes, error: str) -> SourceFacts:
    """Definitions by `def` and `class` lines; each ends before a line that is not indented deeper."""
    facts, names = SourceFacts(), Names()
    facts.error = error[:MAX_NAME_CHARS]
    lines = _LINE.split(data.decode("utf-8", "replace"))
    open_defs: list[tuple[int, int, bool]] = []  # (indent, definition, is a class)
    last_code = 0
    for number, line in enumerate(lines, 1):
        stripped = line.lstrip(" \t")
        if not stripped or stripped[0] in "#)]}":
            continue
        indent = len(line[: len(line) - len(stripped)].expandtabs())
        while open_defs and indent <= open_defs[-1][0]:
            facts.defs[open_defs.pop()[1] * 6 + 5] = last_code
        last_code = number
        head = _HEAD.match(line)
        if head is not None and len(facts.defs) // 6 < MAX_OWNERS:
            in_class = bool(open_defs) and open_defs[-1][2]
            kind = CLASS if head.group(2) == "class" else METHOD if in_class else FUNCTION
            parent = open_defs[-1][1] if open_defs else -1
            open_defs.append((indent, len(facts.defs) // 6, kind == CLASS))
            facts.defs.extend((names[head.group(3)], kind, parent + 1, number, number, number))
            continue
        owner = open_defs[-1][1] if open_defs else -1
        for found in _CALLED.finditer(line[:1000]):
            facts.refs.append(
                names[found.group(1)] << (LINE_BITS + USE_BITS + OWNER_BITS)
                | number << (USE_BITS + OWNER_BITS)
                | CALL << OWNER_BITS
                | (owner + 1)
            )
    for _, number, _ in open_defs:
        facts.defs[number * 6 + 5] = last_code
    facts.names = list(names)
    facts.refs.sort()
    return facts
