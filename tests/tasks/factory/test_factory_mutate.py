import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.tasks.factory.mistakes import Edit, Mistake
from slipstream.tasks.factory.mutate import apply, edits_of
from slipstream.tasks.factory.package.suite import functions_of


def texts_of(source: str) -> dict[str, set[Mistake]]:
    """Every mutant of the first function, with the kinds of mistakes that make it."""
    function = functions_of("m.py", source)[0]
    made: dict[str, set[Mistake]] = {}
    for edit in edits_of(source, function.body_line, function.last_line):
        made.setdefault(apply(source, [edit]), set()).add(edit.mistake)
    return made


def body(*lines: str) -> str:
    return "def f(a, b, c):\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("line", "becomes", "mistake"),
    [
        ("return a < b", "return a <= b", Mistake.BOUNDARY),
        ("return a is not b", "return a is b", Mistake.OPERATOR),
        ("return a + b", "return a - b", Mistake.OPERATOR),
        ("return (a) and (b)", "return (a) or (b)", Mistake.OPERATOR),
        ("return a or b", "return a", Mistake.REMOVED_HANDLING),
        ("return not a", "return a", Mistake.OPERATOR),
        ("return a[1]", "return a[2]", Mistake.OFF_BY_ONE),
        ("return a - 1", "return a", Mistake.OFF_BY_ONE),
        ("return list(range(a))", "return list(range(a - 1))", Mistake.OFF_BY_ONE),
        ("return a", "return b", Mistake.WRONG_VARIABLE),
        ("return sorted(a)", "return a", Mistake.DROPPED_CALL),
        ("return a.strip()", "return a", Mistake.DROPPED_CALL),
        ("return g(a, b)", "return g(b, a)", Mistake.SWAPPED_ARGUMENTS),
        ("return a, b", "return b, a", Mistake.SWAPPED_ARGUMENTS),
        ("return a.get(b, c)", "return a.get(b)", Mistake.REMOVED_HANDLING),
        ("return g(a, key=b)", "return g(a)", Mistake.REMOVED_HANDLING),
        ("return True", "return False", Mistake.WRONG_CONSTANT),
        ("a += b", "a -= b", Mistake.OPERATOR),
        ("return b if a else c", "return c if a else b", Mistake.SWAPPED_ARGUMENTS),
    ],
)
def test_each_kind_of_mistake_is_made_in_its_place(line: str, becomes: str, mistake: Mistake) -> None:
    assert mistake in texts_of(body(line)).get(body(becomes), set())


def test_a_branch_is_dropped_with_its_lines() -> None:
    source = body("if a:", "    b = c", "return b")
    assert texts_of(source)[body("return b")] == {Mistake.DROPPED_BRANCH}


def test_a_guard_that_raises_counts_as_removed_handling() -> None:
    source = body("if a:", "    raise ValueError(b)", "return b")
    assert texts_of(source)[body("return b")] == {Mistake.REMOVED_HANDLING}


def test_a_call_that_is_all_of_a_block_becomes_pass() -> None:
    source = body("if a:", "    b.append(c)", "else:", "    c = 1", "return b")
    assert body("if a:", "    pass", "else:", "    c = 1", "return b") in texts_of(source)


def test_one_of_several_handlers_is_removed() -> None:
    source = body("try:", "    return a", "except KeyError:", "    return b", "except ValueError:", "    return c")
    assert body("try:", "    return a", "except ValueError:", "    return c") in texts_of(source)


def test_break_becomes_continue() -> None:
    source = body("for b in a:", "    break")
    assert Mistake.CONTROL_FLOW in texts_of(source)[body("for b in a:", "    continue")]


def test_docstrings_annotations_and_raised_errors_stay() -> None:
    source = 'def f(a: int = None) -> "1 + 1":\n    """1 + 1."""\n    x: "1 + 1" = a\n    raise ValueError(1)\n'
    for made in texts_of(source):
        assert '"""1 + 1."""' in made and '-> "1 + 1"' in made and "raise ValueError(1)" in made


def test_inner_functions_are_not_the_outer_ones_business() -> None:
    source = "def f(a):\n    def g(b):\n        return b + 1\n    return g\n"
    assert all("return b + 1" in made for made in texts_of(source))


def test_what_is_outside_of_an_edit_stays_byte_for_byte() -> None:
    source = "# \u00fc\t\r\nx = '\u4e16\u754c'\r\ndef f(a, b):\r\n    return  a   <  b  # \u00e9\r\n"
    function = functions_of("m.py", source)[0]
    data = source.encode()
    for edit in edits_of(source, function.body_line, function.last_line):
        made = apply(source, [edit]).encode()
        assert made.startswith(data[: edit.start]) and made.endswith(data[edit.end :])
    assert "return  a   <=  b  # \u00e9\r\n" in "".join(texts_of(source))


def test_several_edits_are_made_at_once_and_overlapping_ones_refused() -> None:
    source = body("return a < b + 1")
    edits = edits_of(source, 1, 2)
    first = next(edit for edit in edits if edit.text == "<=")
    second = next(edit for edit in edits if edit.text == "2")
    assert apply(source, [second, first]) == body("return a <= b + 2")
    with pytest.raises(ValueError, match="overlap"):
        apply(source, [first, Edit(start=first.start - 1, end=first.end, text="", mistake=Mistake.OPERATOR)])


def test_a_function_that_is_not_there_has_no_edits() -> None:
    assert edits_of("x = 1\n", 1, 1) == [] and edits_of("def f(:\n", 1, 1) == []


NAMES = st.sampled_from(
    ["a", "b", "c", "self.x", "f(a, b)", "a[1:]", "len(c)", "-1", "'t'", "(a, b)", "[i for i in c]"]
)
OPERATORS = st.sampled_from(["+", "<", "and", "or", "==", "in", "//", "is not", "%"])
EXPRESSIONS = st.tuples(NAMES, OPERATORS, NAMES).map(" ".join)
STATEMENTS = st.one_of(
    EXPRESSIONS.map("x = {}".format),
    EXPRESSIONS.map("if {}:\n        a = b".format),
    EXPRESSIONS.map("for i in c:\n        b.append({})".format),
    EXPRESSIONS.map("while {}:\n        break".format),
)


@settings(deadline=None, max_examples=50)
@given(st.lists(STATEMENTS, min_size=1, max_size=5))
def test_every_mutant_parses_and_differs(statements: list[str]) -> None:
    source = "class A:\n  def f(self, a, b, c):\n" + "".join(f"    {one}\n" for one in statements)
    function = functions_of("m.py", source)[0]
    edits = edits_of(source, function.body_line, function.last_line)
    assert edits == edits_of(source, function.body_line, function.last_line)
    for edit in edits:
        made = apply(source, [edit])
        ast.parse(made)
        assert made != source
