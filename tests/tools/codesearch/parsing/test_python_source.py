from __future__ import annotations

import ast
import os
import subprocess
import sys
import sysconfig
import warnings
from collections import Counter
from pathlib import Path

import pytest

from slipstream.tools.codesearch.parsing import python_source
from slipstream.tools.codesearch.parsing.python_source import KINDS, SourceFacts, parse

from ..small_repository import FILES

MODELS = str(FILES["shop/models.py"]).encode()
STDLIB = Path(sysconfig.get_paths()["stdlib"])
WHOLE = "SLIPSTREAM_WHOLE_STDLIB"
"""Set it to look at every file of the standard library; without, at each twentieth."""


def definitions(said: SourceFacts) -> list[tuple[str, str, int, int, int]]:
    """(qualified name, kind, first line, line of the name, last line) of each."""
    found: list[tuple[str, str, int, int, int]] = []
    for at in range(0, len(said.defs), 6):
        name, kind, parent, first, line, last = said.defs[at : at + 6]
        above = f"{found[parent - 1][0]}." if parent else ""
        found.append((above + said.names[name], KINDS[kind], first, line, last))
    return found


def uses(said: SourceFacts, how: int) -> list[tuple[str, int]]:
    shift = python_source.USE_BITS + python_source.OWNER_BITS
    return [
        (said.names[ref >> (shift + python_source.LINE_BITS)], ref >> shift & (1 << python_source.LINE_BITS) - 1)
        for ref in said.refs
        if ref >> python_source.OWNER_BITS & 15 == how
    ]


def test_every_kind_of_definition_has_its_lines() -> None:
    assert definitions(parse(MODELS)) == [
        ("Base", "class", 10, 10, 19),
        ("Base.kind", "field", 13, 13, 13),
        ("Base.save", "method", 15, 15, 16),
        ("Base.validate", "method", 18, 18, 19),
        ("Order", "class", 22, 23, 55),
        ("Order.number", "field", 26, 26, 26),
        ("Order.lines", "field", 27, 27, 29),
        ("Order.total", "method", 31, 32, 33),
        ("Order.total", "method", 35, 36, 38),
        ("Order.cached", "attribute", 37, 37, 37),
        ("Order.forced", "attribute", 38, 38, 38),
        ("Order.find", "method", 40, 41, 41),
        ("Order.find", "method", 42, 43, 43),
        ("Order.find", "method", 44, 44, 52),
        ("Order.find.inner", "function", 45, 45, 50),
        ("Order.find.inner.Local", "class", 46, 46, 48),
        ("Order.find.inner.Local.deep", "method", 47, 47, 48),
        ("Order.fetch", "method", 54, 54, 55),
        ("chosen", "function", 60, 60, 61),
        ("chosen", "function", 65, 65, 66),
        ("fast", "variable", 72, 72, 72),
    ]


def test_calls_are_told_by_how_they_are_made() -> None:
    said = parse(MODELS)
    alone = [("dataclass", 22), ("inner", 52), ("setattr", 38), ("sum", 33), ("vat", 33)]
    assert sorted(uses(said, python_source.CALL)) == alone
    assert sorted(uses(said, python_source.SELF_CALL)) == [("save", 55), ("validate", 16)]
    assert sorted(uses(said, python_source.MEMBER_CALL)) == [("field", 27), ("tax", 33)]


def test_patterns_of_a_match_statement_use_names() -> None:
    said = parse(b"match x:\n    case Point(x=0, y=Limit.TOP) if ok(x):\n        pass\n")
    assert said.error == ""
    assert sorted(uses(said, python_source.NAME)) == [("Limit", 2), ("Point", 2), ("x", 1), ("x", 2)]
    assert uses(said, python_source.CALL) == [("ok", 2)]


def test_imports_keep_their_dots_and_other_names() -> None:
    assert parse(b"import a.b\nimport a.b as c\nfrom ..d import e as f, g\nfrom h import *\n").imports == [
        (1, 0, "a.b", "", "a"),
        (2, 0, "a.b", "", "c"),
        (3, 2, "d", "e", "f"),
        (3, 2, "d", "g", "g"),
        (4, 0, "h", "*", "*"),
    ]


def test_a_file_that_does_not_parse_is_scanned_by_indentation() -> None:
    said = parse(b"class A:\n    def f(self):\n        g(1)\n\n    x = = 2\n\ndef late():\n    pass\n")
    assert said.error == "line 5: invalid syntax"
    assert definitions(said) == [
        ("A", "class", 1, 1, 5),
        ("A.f", "method", 2, 2, 3),
        ("late", "function", 7, 7, 8),
    ]
    assert uses(said, python_source.CALL) == [("g", 3)]


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe", b"\0", b"x" * 10_000, b"(" * 5000, b"# coding: nonsense\n", b"\r\rdef f(): 0", b"a." * 9999],
)
def test_any_bytes_give_an_answer(data: bytes) -> None:
    said = parse(data)
    assert len(said.defs) % 6 == 0
    assert said.refs == sorted(said.refs)


def library_files() -> list[Path]:
    files = sorted(path for path in STDLIB.rglob("*.py") if "site-packages" not in path.parts)
    return files if os.environ.get(WHOLE) else files[::20]


def test_every_definition_of_the_standard_library_has_the_lines_that_ast_gives() -> None:
    num_compared = 0
    for path in library_files():
        data = path.read_bytes()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(data)
        except (SyntaxError, ValueError):
            continue
        expected = Counter(
            (
                node.name,
                min([node.lineno, *(each.lineno for each in node.decorator_list)]),
                node.lineno,
                node.end_lineno,
            )
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        )
        found = Counter(
            (name.rpartition(".")[2], first, line, last)
            for name, kind, first, line, last in definitions(parse(data))
            if kind in ("class", "function", "method")
        )
        assert found == expected, path
        num_compared += sum(expected.values())
    assert num_compared > 1000


def test_it_runs_on_old_pythons_without_anything_of_ours() -> None:
    """Its syntax is that of Python 3.8; as that may not be installed, its own grammar is used."""
    folder = Path(python_source.__file__).parent.parent
    for name in ("parsing/python_source.py", "sandbox_program.py"):
        source = (folder / name).read_text("utf-8")
        tree = ast.parse(source, feature_version=(3, 8))
        imported = {
            alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        } | {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert imported <= set(sys.stdlib_module_names)
    alone = subprocess.run([sys.executable, "-I", "-S", python_source.__file__], check=False, capture_output=True)
    assert (alone.returncode, alone.stderr) == (0, b"")
