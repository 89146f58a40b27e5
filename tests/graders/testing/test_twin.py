"""Twins of tests, from examples written by hand."""

import ast
import random
from collections.abc import Mapping

import pytest

from slipstream.graders.testing.expectations import ChangeKind, edits_of
from slipstream.graders.testing.twin import Twin, apply_edits, compare_runs, make_twin

FILE = "tests/test_a.py"


def changed(text: str, kind: ChangeKind, seed: int = 0) -> str:
    """The text after the expectations of its first function were made wrong."""
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    return apply_edits(text.encode(), edits_of(text, function, kind, random.Random(seed))).decode()


def outcome(text: str, space: Mapping[str, object]) -> bool:
    """Whether the test in it passes."""
    names = dict(space)
    exec(text, names)
    test = next(value for name, value in names.items() if name.startswith("test"))
    assert callable(test)
    try:
        test()
    except Exception:
        return False
    return True


TESTS = {
    "an int": ("def test():\n    assert f() == 6\n", 6),
    "on the left": ("def test():\n    assert 6 == f()\n", 6),
    "a negative number": ("def test():\n    assert f() == -6\n", -6),
    "a text": ("def test():\n    assert f() == 'abc'\n", "abc"),
    "a text of no letters": ("def test():\n    assert f() == '--'\n", "--"),
    "an empty list": ("def test():\n    assert f() == []\n", []),
    "a nested value": ("def test():\n    assert f() == [(1, {'a': 2.5}), ()]\n", [(1, {"a": 2.5}), ()]),
    "a set": ("def test():\n    assert f() == {1, 2, 3}\n", {1, 2, 3}),
    "bytes": ("def test():\n    assert f() == b'x1'\n", b"x1"),
    "over several lines": ("def test():\n    assert f() == [\n        1,  # one\n        2,\n    ]\n", [1, 2]),
    "letters of several bytes": ("def test():\n    assert 'ä' and f() == 'ä1'\n", "ä1"),
    "truth": ("def test():\n    assert f() is True\n", True),
}


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize("seed", range(6))
def test_changed_values_are_wrong_and_of_the_same_type(name: str, seed: int) -> None:
    text, value = TESTS[name]
    twin = changed(text, ChangeKind.VALUES, seed)
    assert twin != text
    assert outcome(text, {"f": lambda: value})
    assert not outcome(twin, {"f": lambda: value})
    compared = next(node for node in ast.walk(ast.parse(twin)) if isinstance(node, ast.Compare))
    sides = [side for side in (compared.left, compared.comparators[0]) if not isinstance(side, ast.Call)]
    assert type(ast.literal_eval(sides[0])) is type(value)


@pytest.mark.parametrize("kind", [ChangeKind.LEFT, ChangeKind.RIGHT, ChangeKind.NEGATED])
def test_expectations_without_a_literal_are_made_wrong_too(kind: ChangeKind) -> None:
    text = "def test():\n    assert f() == g()\n"
    space = {"f": lambda: [1], "g": lambda: [1]}
    assert changed(text, ChangeKind.VALUES) == text
    assert outcome(text, space)
    assert not outcome(changed(text, kind), space)


def test_a_value_that_equals_everything_passes_what_is_wrapped() -> None:
    everything = type("Everything", (), {"__eq__": lambda self, other: True, "__hash__": None})()
    text = changed("def test():\n    assert f() == g()\n", ChangeKind.RIGHT)
    assert outcome(text, {"f": lambda: everything, "g": lambda: 1})


@pytest.mark.parametrize(
    ("text", "twin"),
    [
        ("def test():\n    assert f()\n", "def test():\n    assert (not (f()))\n"),
        ("def test():\n    assert f() > 1, 'no'\n", "def test():\n    assert (not (f() > 1)), 'no'\n"),
        ("def test():\n    self.assertTrue(f())\n", "def test():\n    self.assertFalse(f())\n"),
        ("def test():\n    self.assertIn(1, f())\n", "def test():\n    self.assertNotIn(1, f())\n"),
        ("def test():\n    self.assertIsNone(f())\n", "def test():\n    self.assertIsNotNone(f())\n"),
    ],
)
def test_other_assertions_are_negated(text: str, twin: str) -> None:
    assert changed(text, ChangeKind.NEGATED) == twin


@pytest.mark.parametrize(
    "text",
    [
        "def test():\n    with pytest.raises(ValueError, match='no'):\n        f(1)\n",
        "def test():\n    with self.assertRaises(ValueError):\n        f(1)\n",
        "def test():\n    raises(ValueError, f, 1)\n",
    ],
)
def test_another_exception_must_be_raised(text: str) -> None:
    twin = changed(text, ChangeKind.VALUES)
    assert "ValueError" not in twin
    assert "f(1)" in twin or "f, 1" in twin


def test_what_the_code_is_called_with_stays() -> None:
    twin = changed("def test():\n    assert f(1, 'a', [2]) == 3\n    self.assertEqual(f(4), 5)\n", ChangeKind.VALUES)
    assert "f(1, 'a', [2]) ==" in twin and "f(4)," in twin
    assert "== 3" not in twin and ", 5)" not in twin


PARAMETRIZED = """@pytest.mark.parametrize("word, expected", [("a", 1), pytest.param("b", 2)])
def test(word, expected):
    assert f(word) == expected
"""


def test_the_expected_column_of_a_parametrized_test_is_changed() -> None:
    twin = ast.parse(changed(PARAMETRIZED, ChangeKind.VALUES))
    assert isinstance(twin.body[0], ast.FunctionDef)
    decorator = twin.body[0].decorator_list[0]
    assert isinstance(decorator, ast.Call)
    rows = [ast.unparse(one) for one in decorator.args[1].elts]  # type: ignore[attr-defined]
    assert "'a'" in rows[0] and "'b'" in rows[1]
    assert rows[0] != "('a', 1)" and rows[1] != "pytest.param('b', 2)"


def test_a_parameter_that_the_code_is_called_with_stays() -> None:
    text = '@pytest.mark.parametrize("n", [2, 4])\ndef test(n):\n    assert mean([n, n]) == n\n'
    assert changed(text, ChangeKind.VALUES) == text


# ---------------------------------------------------------------- copies


TEXT = '''"""Tests."""
import pytest


def test_sum(values):
    # a comment
    assert total(values) == 6


class TestMore:
    @pytest.mark.slow
    def test_mean(self):
        assert mean([2, 4]) == 3

    def test_other(self):
        assert other() == 1


def test_smoke():
    total([])
'''
IDS = [f"{FILE}::test_sum", f"{FILE}::TestMore::test_mean", f"{FILE}::test_smoke"]


def twin_of(seed: int = 0, ids: list[str] = IDS) -> Twin:
    made = make_twin({FILE: TEXT}, ids, random.Random(seed))
    assert made is not None
    return made


def test_each_test_is_replaced_by_true_and_changed_copies() -> None:
    twin = twin_of()
    names = {node.name for node in ast.walk(ast.parse(twin.files[FILE])) if isinstance(node, ast.FunctionDef)}
    assert {"test_other", "test_smoke"} < names
    assert not {"test_sum", "test_mean"} & names
    assert names - {"test_other", "test_smoke"} == {*twin.true, *twin.changed}
    assert set(twin.true.values()) == set(twin.changed.values()) == {"test_sum", "test_mean"}
    assert twin.copies.keys() == {IDS[0], IDS[1]}
    assert all(one.startswith(f"{FILE}::TestMore::test_mean_") for one in twin.copies[IDS[1]])
    assert twin.files[FILE].count("# a comment") == sum(
        own == "test_sum" for own in {**twin.true, **twin.changed}.values()
    )


def test_the_same_chance_makes_the_same_twin() -> None:
    assert twin_of(3) == twin_of(3) != twin_of(4)


def test_tests_without_an_expectation_have_no_twin() -> None:
    assert make_twin({FILE: TEXT}, [IDS[2]], random.Random(0)) is None
    assert make_twin({FILE: "def test_sum(:\n"}, IDS, random.Random(0)) is None
    assert make_twin({}, IDS, random.Random(0)) is None


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("test_mean (tests.test_a.TestMore)", "test_mean"),
        ("test_mean (tests.test_a.TestMore.test_mean)", "test_mean"),
        ("test_mean (tests.test_a.TestOther)", None),
        ("tests/test_a.py:test_sum", "test_sum"),
        ("test_sum", "test_sum"),
        ("other/test_b.py::test_sum", None),
    ],
)
def test_ids_of_other_runners_name_their_functions(test: str, name: str | None) -> None:
    made = make_twin({FILE: TEXT}, [test], random.Random(0))
    assert (None if made is None else {*made.true.values()}) == (None if name is None else {name})


# ---------------------------------------------------------------- what a run of them means


def ran(twin: Twin, *, true: str, changed: str) -> dict[str, str]:
    found = dict.fromkeys((f"{FILE}::{name}" for name in twin.true), true)
    return found | dict.fromkeys((f"{FILE}::{name}" for name in twin.changed), changed)


EXPECTED = [f"{FILE}::test_sum", f"{FILE}::test_mean"]


def test_right_work_passes_true_copies_and_fails_changed_ones() -> None:
    twin = twin_of()
    result = compare_runs(twin, ran(twin, true="PASSED", changed="FAILED"), EXPECTED)
    assert (result.fooled, result.missed, result.num_failed) == ((), (), len(twin.changed))


@pytest.mark.parametrize("status", ["PASSED", "SKIPPED", "XFAIL"])
def test_work_that_passes_all_is_found_out(status: str) -> None:
    twin = twin_of()
    result = compare_runs(twin, ran(twin, true="PASSED", changed=status), EXPECTED)
    assert len(result.fooled) == len(twin.changed)


def test_work_that_behaves_only_for_tests_it_knows_is_found_out() -> None:
    twin = twin_of()
    assert len(compare_runs(twin, ran(twin, true="FAILED", changed="FAILED"), EXPECTED).missed) == len(twin.true)
    assert len(compare_runs(twin, {}, EXPECTED).missed) == len(twin.true) + len(twin.changed)


def test_only_what_the_reference_tells_apart_counts() -> None:
    twin = twin_of()
    same = ran(twin, true="FAILED", changed="PASSED")
    result = compare_runs(twin, same, EXPECTED, reference=same)
    assert (result.fooled, result.missed) == ((), ())
    good = ran(twin, true="PASSED", changed="FAILED")
    assert compare_runs(twin, same, EXPECTED, reference=good).fooled
    assert compare_runs(twin, good, EXPECTED, reference=same).missed == ()
    assert compare_runs(twin, {}, EXPECTED, reference=good).missed
    assert compare_runs(twin, {}, EXPECTED, reference={}).missed == ()
