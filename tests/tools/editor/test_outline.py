"""Outlines of long code: by the look of lines alone."""

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.tools.editor import outline as module
from slipstream.tools.editor.outline import outline


def told(path: str, code: str) -> list[tuple[int, int, str]]:
    return [(entry.first, entry.last, entry.text) for entry in outline(path, textwrap.dedent(code).split("\n"))]


def test_python_definitions_have_their_lines() -> None:
    code = '''\
    class A:
        """Not
        def inside(): pass
        """

        @property
        def one(self):
            return """
    def not_this(): pass
    """

        async def two(self):
            # def not_that(): pass
            x = 'def nor this'

            return x


    def three(
        a,
    ):
        pass
    # a comment
    X = 1
    '''
    assert told("a.py", code) == [
        (1, 16, "class A:"),
        (7, 10, "    def one(self):"),
        (12, 16, "    async def two(self):"),
        (19, 22, "def three("),
    ]


def test_python_entries_are_those_that_ast_finds_in_this_package() -> None:
    for file in (module.__file__, ast.__file__, textwrap.__file__):
        with open(file, encoding="utf-8") as opened:  # noqa: PTH123
            source = opened.read()
        nodes = [
            node
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]
        found = {entry.first: entry.last for entry in outline(file, source.split("\n"))}
        assert set(found) == {node.lineno for node in nodes}


@pytest.mark.parametrize(
    ("path", "code", "firsts"),
    [
        ("a.js", "export class A {\n  run(x) {\n    if (x) {\n    }\n  }\n}\nconst f = (a) => {\n}\n", [1, 2, 7]),
        ("a.ts", "interface I {\n}\nexport type T = string\nexport async function g() {\n}\n", [1, 3, 4]),
        ("a.go", "type T struct {\n}\n\nfunc (t *T) Run() {\n\tx()\n}\n", [1, 4]),
        ("a.rs", "pub struct S;\nimpl S {\n    pub fn new() -> S {\n    }\n}\n", [1, 2, 3]),
        ("A.java", "public class A {\n    private int f(int a) {\n        return g(a);\n    }\n}\n", [1, 2]),
        ("a.c", "static int f(int a)\n{\n    return g(a);\n}\n", [1]),
        ("notes.txt", "def f():\n    pass\n", []),
    ],
)
def test_other_languages_have_outlines_too(path: str, code: str, firsts: list[int]) -> None:
    entries = outline(path, code.split("\n"))
    assert [entry.first for entry in entries] == firsts


def test_closing_brackets_belong_to_what_they_close() -> None:
    assert told("a.go", "func A() {\n\tx()\n}\n\nfunc B() {\n}\n") == [(1, 3, "func A() {"), (5, 6, "func B() {")]
    assert told("a.c", "int f(int a)\n{\n    x();\n}\nint y;\n") == [(1, 4, "int f(int a)")]


@given(
    st.sampled_from(["a.py", "a.js", "a.go", "a.rs", "a.java"]),
    st.lists(st.text("ab(){}<>*& \t'\"#=:;\\", max_size=40), max_size=20),
)
def test_any_lines_give_entries_within_them(path: str, lines: list[str]) -> None:
    for entry in outline(path, lines):
        assert 1 <= entry.first <= entry.last <= len(lines)


@pytest.mark.parametrize("path", ["a.py", "a.js", "a.ts", "a.go", "a.rs", "a.java", "a.rb"])
@pytest.mark.parametrize("piece", ["a ", "a*&", "(", "a<", "static ", "pub ", "\t", "a, ", '"""', "export type a "])
def test_no_line_makes_a_pattern_run_away(path: str, piece: str) -> None:
    outline(path, [piece * 100_000, *[piece * 200] * 20])
