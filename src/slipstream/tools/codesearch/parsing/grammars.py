"""What files in other languages than Python say, by tree-sitter. Loaded by path in the parsing process.

Input: the bytes of a file. Output: the `Said` of `python_source`. Invariants: a file with errors in it still gives
what can be made out; methods that stand outside their class (Go, C++) hang below an `impl` of the same lines.

One query per language: `def.KIND` marks a definition and `name` its name, `scope` the type that a method belongs to,
`base` what a class derives from, `call`, `member` and `own` the names that are called alone, after a dot, or after
`this.`, `ref` any other use, and `module` what is imported.
"""

from __future__ import annotations

import importlib
import sys
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

_JAVASCRIPT = """
(class_declaration name: (_) @name) @def.class
(class name: (_) @name) @def.class
(function_declaration name: (_) @name) @def.function
(generator_function_declaration name: (_) @name) @def.function
(method_definition name: (_) @name) @def.method
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression) (class)]) @def.function
(program (lexical_declaration (variable_declarator name: (identifier) @name) @def.variable))
(program (variable_declaration (variable_declarator name: (identifier) @name) @def.variable))
(program (export_statement (lexical_declaration (variable_declarator name: (identifier) @name) @def.variable)))
(pair key: (property_identifier) @name value: [(arrow_function) (function_expression)]) @def.method
(assignment_expression left: (member_expression property: (property_identifier) @name)
  right: [(arrow_function) (function_expression)]) @def.function
(assignment_expression left: (member_expression object: (this) property: (property_identifier) @name)) @def.attribute
(call_expression function: (identifier) @call)
(new_expression constructor: (identifier) @call)
(call_expression function: (member_expression object: (this) property: (property_identifier) @own))
(call_expression function: (member_expression property: (property_identifier) @member))
(import_statement source: (string) @module)
(identifier) @ref
(property_identifier) @ref
"""
_TYPESCRIPT = """
(abstract_class_declaration name: (_) @name) @def.class
(interface_declaration name: (_) @name) @def.interface
(type_alias_declaration name: (_) @name) @def.type
(enum_declaration name: (_) @name) @def.enum
(function_signature name: (_) @name) @def.function
(method_signature name: (_) @name) @def.method
(abstract_method_signature name: (_) @name) @def.method
(public_field_definition name: (_) @name) @def.field
(property_signature name: (_) @name) @def.field
(internal_module name: (_) @name) @def.module
(class_heritage (extends_clause value: (_) @base))
(class_heritage (implements_clause (_) @base))
(extends_type_clause type: (_) @base)
(type_identifier) @ref
"""
QUERIES = {
    "javascript": _JAVASCRIPT + "(field_definition property: (_) @name) @def.field\n(class_heritage (_) @base)\n",
    "typescript": _JAVASCRIPT + _TYPESCRIPT,
    "tsx": _JAVASCRIPT + _TYPESCRIPT,
    "go": """
(function_declaration name: (_) @name) @def.function
(method_declaration receiver: (parameter_list (parameter_declaration type: (_) @scope)) name: (_) @name) @def.method
(type_spec name: (_) @name type: (struct_type)) @def.struct
(type_spec name: (_) @name type: (interface_type)) @def.interface
(type_spec name: (_) @name) @def.type
(type_alias name: (_) @name) @def.type
(method_elem name: (_) @name) @def.method
(struct_type (field_declaration_list (field_declaration name: (_) @name) @def.field))
(source_file (const_declaration (const_spec name: (_) @name) @def.constant))
(source_file (var_declaration (var_spec name: (_) @name) @def.variable))
(source_file (var_declaration (var_spec_list (var_spec name: (_) @name) @def.variable)))
(call_expression function: (identifier) @call)
(call_expression function: (selector_expression field: (_) @member))
(import_spec path: (_) @module)
(identifier) @ref
(field_identifier) @ref
(type_identifier) @ref
""",
    "rust": """
(function_item name: (_) @name) @def.function
(function_signature_item name: (_) @name) @def.function
(struct_item name: (_) @name) @def.struct
(union_item name: (_) @name) @def.struct
(enum_item name: (_) @name) @def.enum
(enum_variant name: (_) @name) @def.field
(field_declaration name: (_) @name) @def.field
(trait_item name: (_) @name) @def.trait
(impl_item type: (_) @name) @def.impl
(impl_item trait: (_) @base)
(mod_item name: (_) @name) @def.module
(type_item name: (_) @name) @def.type
(const_item name: (_) @name) @def.constant
(static_item name: (_) @name) @def.variable
(macro_definition name: (_) @name) @def.macro
(call_expression function: (identifier) @call)
(macro_invocation macro: (identifier) @call)
(call_expression function: (field_expression value: (self) field: (_) @own))
(call_expression function: (field_expression field: (_) @member))
(call_expression function: (scoped_identifier name: (_) @member))
(use_declaration argument: (_) @module)
(identifier) @ref
(field_identifier) @ref
(type_identifier) @ref
""",
    "java": """
(class_declaration name: (_) @name) @def.class
(record_declaration name: (_) @name) @def.class
(interface_declaration name: (_) @name) @def.interface
(annotation_type_declaration name: (_) @name) @def.interface
(enum_declaration name: (_) @name) @def.enum
(enum_constant name: (_) @name) @def.field
(method_declaration name: (_) @name) @def.method
(constructor_declaration name: (_) @name) @def.method
(field_declaration declarator: (variable_declarator name: (_) @name)) @def.field
(superclass (_) @base)
(super_interfaces (type_list (_) @base))
(method_invocation object: (this) name: (_) @own)
(method_invocation object: (_) name: (_) @member)
(method_invocation name: (_) @call)
(object_creation_expression type: (_) @call)
(import_declaration (_) @module)
(identifier) @ref
(type_identifier) @ref
""",
}
_C = """
(function_definition declarator: (function_declarator declarator: (identifier) @name)) @def.function
(function_definition declarator: (pointer_declarator declarator:
  (function_declarator declarator: (identifier) @name))) @def.function
(declaration declarator: (function_declarator declarator: (identifier) @name)) @def.function
(declaration declarator: (pointer_declarator declarator:
  (function_declarator declarator: (identifier) @name))) @def.function
(struct_specifier name: (_) @name body: (_)) @def.struct
(union_specifier name: (_) @name body: (_)) @def.struct
(enum_specifier name: (_) @name body: (_)) @def.enum
(enumerator name: (_) @name) @def.field
(type_definition declarator: (type_identifier) @name) @def.type
(preproc_def name: (_) @name) @def.macro
(preproc_function_def name: (_) @name) @def.macro
(translation_unit (declaration declarator: (init_declarator declarator: (identifier) @name)) @def.variable)
(translation_unit (declaration declarator: (identifier) @name) @def.variable)
(field_declaration declarator: (field_identifier) @name) @def.field
(call_expression function: (identifier) @call)
(call_expression function: (field_expression field: (field_identifier) @member))
(preproc_include path: (_) @module)
(identifier) @ref
(field_identifier) @ref
(type_identifier) @ref
"""
QUERIES["c"] = _C
QUERIES["cpp"] = (
    _C
    + """
(class_specifier name: (_) @name body: (_)) @def.class
(namespace_definition name: (_) @name) @def.module
(function_definition declarator: (function_declarator declarator: (field_identifier) @name)) @def.method
(function_definition declarator: (pointer_declarator declarator:
  (function_declarator declarator: (field_identifier) @name))) @def.method
(function_definition declarator: (reference_declarator
  (function_declarator declarator: (field_identifier) @name))) @def.method
(field_declaration declarator: (function_declarator declarator: (field_identifier) @name)) @def.method
(function_definition declarator: (function_declarator declarator:
  (qualified_identifier scope: (_) @scope name: (_) @name))) @def.method
(function_definition declarator: (pointer_declarator declarator: (function_declarator declarator:
  (qualified_identifier scope: (_) @scope name: (_) @name)))) @def.method
(alias_declaration name: (_) @name) @def.type
(base_class_clause (type_identifier) @base)
(base_class_clause (qualified_identifier) @base)
(call_expression function: (qualified_identifier name: (_) @member))
(call_expression function: (field_expression argument: (this) field: (field_identifier) @own))
"""
)
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
    query = tree_sitter.Query(grammar, QUERIES[language])
    said_module = sys.modules["python_source"]

    def parse(data: bytes) -> Any:
        tree = parser.parse(data)
        return _Reader(said_module, tree_sitter.QueryCursor(query).matches(tree.root_node)).read(tree.root_node)

    return parse


class _Found:
    """A definition before it has its number."""

    __slots__ = ("end", "first", "kind", "last", "line", "name", "scope", "start")

    def __init__(self, node: Any, name: Any, kind: str, scope: str) -> None:
        self.start, self.end = node.start_byte, node.end_byte
        self.first, self.last = node.start_point[0] + 1, _last_row(node) + 1
        self.line, self.name = name.start_point[0] + 1, _text(name)
        self.kind, self.scope = kind, scope


class _Reader:
    def __init__(self, python_source: Any, matches: list[tuple[int, dict[str, list[Any]]]]) -> None:
        self._ours = python_source
        self._said = python_source.SourceFacts()
        self._names = python_source.Names()
        self._matches = matches
        self._types: dict[str, int] = {}
        self._owners: list[tuple[int, int, int]] = []
        """(start, end, number) of what has a body, outer ones first."""
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
                owner = self._said.defs[owner * 6 + 2] - 1
            if owner >= 0:
                self._said.bases.append((owner, [base]))
        self._said.bases = _joined(self._said.bases)
        if root.has_error:
            self._said.error = "it has syntax errors; what could be made out is in the index"
        self._said.names = list(self._names)
        self._said.refs.sort()
        return self._said

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
                    # The more telling of two patterns for one name is the one that stands first in the query.
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
                    self._said.imports.append((node.start_point[0] + 1, 0, module, "", last))
        for position in found:
            uses.pop(position, None)
        return list(found.values()), uses, bases

    def _define(self, found: list[_Found]) -> None:
        """Number the definitions: first all that stand where they belong, then methods that name their type."""
        ours = self._ours
        stack: list[tuple[int, int]] = []  # (end, number) of the definitions around the present one
        for each in sorted(found, key=lambda each: (bool(each.scope), each.start, -each.end)):
            if len(self._said.defs) // 6 >= ours.MAX_OWNERS - 1 or not each.name:
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
                    parent = self._said.defs[parent * 6 + 2] - 1
            elif kind == "function" and parent >= 0 and self._kind(parent) in _CONTAINERS:
                kind = "method"
            number = self._add(each, kind, parent)
            if kind not in _VALUES:
                stack.append((each.end, number))
        self._owners.sort(key=lambda owner: (owner[0], -owner[1]))
        self._starts = [start for start, _, _ in self._owners]

    def _kind(self, number: int) -> str:
        return str(self._ours.KINDS[self._said.defs[number * 6 + 1]])

    def _type_named(self, name: str, method: _Found) -> int:
        """The type that a method belongs to; where it is not in this file, one that stands for it."""
        number = self._types.get(name, -1)
        if number < 0:
            number = len(self._said.defs) // 6
            kind = self._ours.KINDS.index("impl")
            self._said.defs.extend((self._names[name], kind, 0, method.first, method.line, method.last))
        return number

    def _add(self, each: _Found, kind: str, parent: int) -> int:
        defs = self._said.defs
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
                self._said.refs.append(
                    self._names[name] << (ours.LINE_BITS + ours.USE_BITS + ours.OWNER_BITS)
                    | line << (ours.USE_BITS + ours.OWNER_BITS)
                    | how << ours.OWNER_BITS
                    | (self._around(position) + 1)
                )


def _outer(owners: list[tuple[int, int, int]]) -> list[int]:
    """For each, the place in the list of the one around it, or -1."""
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
    """A node that ends with its line break ends on the line before."""
    row, column = node.end_point
    return int(row - 1 if column == 0 and row > node.start_point[0] else row)


def _text(node: Any) -> str:
    return bytes(node.text or b"")[:1000].decode("utf-8", "replace")


def _simple(name: str) -> str:
    """`*List[T]` and `a::List<T>` -> `List`; `extends Base` -> `Base`."""
    name = name.removeprefix("extends ").lstrip("*&( ").split("<")[0].split("[")[0].split("(")[0]
    return name.replace("::", ".").rpartition(".")[2].strip(" )")[:200]
