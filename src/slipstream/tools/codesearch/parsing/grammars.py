"""Facts about files in languages other than Python, found by tree-sitter. Loaded by path in the parsing process.

Input: the bytes of a file. Output: the `SourceFacts` of `python_source`. Invariants: a file with syntax errors gives
what can be made out; methods written outside their class (Go, C++) belong to an `impl` of the same lines.

The queries are in `queries/`. `def.KIND` marks a definition and `name` its name, `scope` the type that a method belongs
to, `base` what a class derives from, `call`, `member` and `own` the names that are called alone, after a dot, or after
`this.`, `ref` any other use, and `module` what is imported. Of two patterns for one name the first counts.
"""

# ruff: noqa: PTH100, PTH118, PTH120, PTH123

from __future__ import annotations

import importlib
import os
import sys
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

_QUERIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "queries")
_PARTS = {
    "javascript": ("ecmascript", "javascript"),
    "typescript": ("ecmascript", "typescript"),
    "tsx": ("ecmascript", "typescript"),
    "cpp": ("c", "cpp"),
}
"""The files of a language's query, in order, if they are not just the one named after it."""
_PACKAGES = {"tsx": "tree_sitter_typescript"}
_FUNCTIONS = {"typescript": "language_typescript", "tsx": "language_tsx"}
_VALUES = ("variable", "field", "attribute", "constant")
_CONTAINERS = ("class", "interface", "struct", "enum", "trait", "impl")


def open_grammar(language: str) -> Callable[[bytes], Any]:
    """A parser for one language. Raises ImportError if its package is missing."""
    tree_sitter = importlib.import_module("tree_sitter")
    package = importlib.import_module(_PACKAGES.get(language, f"tree_sitter_{language}"))
    grammar = tree_sitter.Language(getattr(package, _FUNCTIONS.get(language, "language"))())
    parser = tree_sitter.Parser(grammar)
    query = tree_sitter.Query(grammar, read_query(language))
    python_source = sys.modules["python_source"]

    def parse(data: bytes) -> Any:
        tree = parser.parse(data)
        return _Reader(python_source, tree_sitter.QueryCursor(query).matches(tree.root_node)).read(tree.root_node)

    return parse


def read_query(language: str) -> str:
    parts = []
    for name in _PARTS.get(language, (language,)):
        with open(os.path.join(_QUERIES, f"{name}.scm"), encoding="utf-8") as file:
            parts.append(file.read())
    return "".join(parts)


class _Found:
    """A definition that has no number yet."""

    __slots__ = ("end", "first", "kind", "last", "line", "name", "scope", "start")

    def __init__(self, node: Any, name: Any, kind: str, scope: str) -> None:
        self.start, self.end = node.start_byte, node.end_byte
        self.first, self.last = node.start_point[0] + 1, _last_row(node) + 1
        self.line, self.name = name.start_point[0] + 1, _text(name)
        self.kind, self.scope = kind, scope


class _Reader:
    def __init__(self, python_source: Any, matches: list[tuple[int, dict[str, list[Any]]]]) -> None:
        self._ours = python_source
        self._facts = python_source.SourceFacts()
        self._names = python_source.Names()
        self._matches = matches
        self._types: dict[str, int] = {}
        self._owners: list[tuple[int, int, int]] = []
        """(start, end, number) of definitions with a body, outer ones first."""
        self._starts: list[int] = []
        self._outer: list[int] = []

    def read(self, root: Any) -> Any:
        found, uses, bases = self._sort_matches()
        self._define(found)
        self._outer = _outer(self._owners)
        self._use(uses)
        for position, base in bases:
            owner = self._around(position)
            while owner >= 0 and self._kind(owner) not in _CONTAINERS:
                owner = self._facts.defs[owner * 6 + 2] - 1
            if owner >= 0:
                self._facts.bases.append((owner, [base]))
        self._facts.bases = _joined(self._facts.bases)
        if root.has_error:
            self._facts.error = "it has syntax errors; what could be made out is in the index"
        self._facts.names = list(self._names)
        self._facts.refs.sort()
        return self._facts

    def _sort_matches(self) -> tuple[list[_Found], dict[int, tuple[int, int, str]], list[tuple[int, str]]]:
        """Definitions; uses by position: (how, line, name); what classes derive from, with its position."""
        ours = self._ours
        ways = {"ref": ours.NAME, "call": ours.CALL, "member": ours.MEMBER_CALL, "own": ours.SELF_CALL}
        found: dict[int, _Found] = {}
        ranks: dict[int, int] = {}
        uses: dict[int, tuple[int, int, str]] = {}
        bases: list[tuple[int, str]] = []
        for pattern, captures in self._matches:
            for capture, nodes in captures.items():
                node = nodes[0]
                if capture.startswith("def."):
                    name = captures["name"][0]
                    scope = _text(captures["scope"][0]) if "scope" in captures else ""
                    # Of two patterns for one name, the one that comes first in the query is more specific.
                    if pattern < ranks.get(name.start_byte, pattern + 1):
                        ranks[name.start_byte] = pattern
                        found[name.start_byte] = _Found(node, name, capture[4:], scope)
                elif capture in ways:
                    how = max(ways[capture], uses.get(node.start_byte, (0,))[0])
                    uses[node.start_byte] = (how, node.start_point[0] + 1, _text(node))
                elif capture == "base":
                    bases.append((node.start_byte, _simple(_text(node))))
                elif capture == "module":
                    module = _text(node).strip("\"'<>`")
                    last = module.replace("::", ".").replace("/", ".").rpartition(".")[2]
                    self._facts.imports.append((node.start_point[0] + 1, 0, module, "", last))
        for position in found:
            uses.pop(position, None)
        return list(found.values()), uses, bases

    def _define(self, found: list[_Found]) -> None:
        """Number the definitions: first those inside their parent, then methods that name their type."""
        ours = self._ours
        stack: list[tuple[int, int]] = []  # (end, number) of the definitions around the current one
        for each in sorted(found, key=lambda each: (bool(each.scope), each.start, -each.end)):
            if len(self._facts.defs) // 6 >= ours.MAX_OWNERS - 1 or not each.name:
                continue
            if len(each.name) > ours.MAX_NAME_CHARS:
                continue
            if each.scope:
                self._add(each, each.kind, self._type_named(_simple(each.scope), each))
                continue
            while stack and stack[-1][0] <= each.start:
                stack.pop()
            parent, kind = stack[-1][1] if stack else -1, each.kind
            if kind in _VALUES:
                while parent >= 0 and kind == "attribute" and self._kind(parent) not in _CONTAINERS:
                    parent = self._facts.defs[parent * 6 + 2] - 1
            elif kind == "function" and parent >= 0 and self._kind(parent) in _CONTAINERS:
                kind = "method"
            number = self._add(each, kind, parent)
            if kind not in _VALUES:
                stack.append((each.end, number))
        self._owners.sort(key=lambda owner: (owner[0], -owner[1]))
        self._starts = [start for start, _, _ in self._owners]

    def _kind(self, number: int) -> str:
        return str(self._ours.KINDS[self._facts.defs[number * 6 + 1]])

    def _type_named(self, name: str, method: _Found) -> int:
        """The type that a method belongs to; a placeholder if it is not in this file."""
        number = self._types.get(name, -1)
        if number < 0:
            number = len(self._facts.defs) // 6
            kind = self._ours.KINDS.index("impl")
            self._facts.defs.extend((self._names[name], kind, 0, method.first, method.line, method.last))
        return number

    def _add(self, each: _Found, kind: str, parent: int) -> int:
        defs = self._facts.defs
        number = len(defs) // 6
        name = _simple(each.name) if kind == "impl" else each.name
        defs.extend((self._names[name], self._ours.KINDS.index(kind), parent + 1, each.first, each.line, each.last))
        if kind in _CONTAINERS or kind == "type":
            self._types.setdefault(name, number)
        if kind not in _VALUES:
            self._owners.append((each.start, each.end, number))
        return number

    def _around(self, position: int) -> int:
        """The innermost definition around a position, or -1."""
        at = bisect_right(self._starts, position) - 1
        while at >= 0:
            _, end, number = self._owners[at]
            if position < end:
                return number
            at = self._outer[at]
        return -1

    def _use(self, uses: dict[int, tuple[int, int, str]]) -> None:
        ours = self._ours
        for position, (how, line, name) in uses.items():
            if name and len(name) <= ours.MAX_NAME_CHARS and line < 1 << ours.LINE_BITS:
                self._facts.refs.append(
                    self._names[name] << (ours.LINE_BITS + ours.USE_BITS + ours.OWNER_BITS)
                    | line << (ours.USE_BITS + ours.OWNER_BITS)
                    | how << ours.OWNER_BITS
                    | (self._around(position) + 1)
                )


def _outer(owners: list[tuple[int, int, int]]) -> list[int]:
    """For each, the index of the one around it, or -1."""
    found: list[int] = []
    stack: list[int] = []
    for at, (start, _, _) in enumerate(owners):
        while stack and owners[stack[-1]][1] <= start:
            stack.pop()
        found.append(stack[-1] if stack else -1)
        stack.append(at)
    return found


def _joined(bases: list[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    found: dict[int, list[str]] = {}
    for number, names in bases:
        found.setdefault(number, []).extend(names)
    return sorted((number, names[:50]) for number, names in found.items())


def _last_row(node: Any) -> int:
    """The last row of a node. One that ends with its line break ends on the row before."""
    row, column = node.end_point
    return int(row - 1 if column == 0 and row > node.start_point[0] else row)


def _text(node: Any) -> str:
    return bytes(node.text or b"")[:1000].decode("utf-8", "replace")


def _simple(name: str) -> str:
    """`*List[T]` and `a::List<T>` -> `List`; `extends Base` -> `Base`."""
    name = name.removeprefix("extends ").lstrip("*&( ").split("<")[0].split("[")[0].split("(")[0]
    return name.replace("::", ".").rpartition(".")[2].strip(" )")[:200]
