from slipstream.tasks.factory.hiding import command_of, cuts_of, without
from slipstream.tasks.factory.snippet import lines_of, snippet_of

TESTS = '''import os
import pytest
from pkg.inner import first, second as other

LIMIT = 3
HALF = LIMIT // 2


def helper(x):
    return x + HALF


def test_plain():
    """Says what."""
    unused = os.getcwd()
    x = helper(1)
    assert x
    y = first(x)
    assert other(y) == 4


@pytest.mark.parametrize("size", [1, 2])
def test_sizes(size):
    assert first(size) == 2


def test_fixture(tmp_path):
    assert first(tmp_path) == 1


class TestOld:
    def test_equal(self):
        x = first(1)
        self.assertEqual(x, LIMIT)

    def test_state(self):
        assert first(self.x) == 1
'''


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(TESTS.split("\n"), 1) if text in line)


def made(function: str, text: str, params: dict[str, str] | None = None, public: str = "") -> str | None:
    return snippet_of(
        TESTS, "tests/test_a.py", function=function, line=line_of(text), params=params or {}, public=public
    )


def test_a_snippet_is_the_failing_check_and_what_it_needs() -> None:
    assert made("test_plain", "other(y) == 4") == (
        "from pkg.inner import first, second as other\nLIMIT = 3\nHALF = LIMIT // 2\n"
        "def helper(x):\n    return x + HALF\nx = helper(1)\ny = first(x)\nassert other(y) == 4"
    )


def test_parameters_are_assigned() -> None:
    assert made("test_sizes", "first(size) == 2", {"size": "2"}) == (
        "from pkg.inner import first\nsize = 2\nassert first(size) == 2"
    )


def test_what_needs_a_fixture_or_its_class_has_no_snippet() -> None:
    assert made("test_fixture", "first(tmp_path)") is None
    assert made("test_state", "first(self.x)") is None
    assert made("test_sizes", "first(size) == 2", {"size": "<object>"}) is None


def test_an_assertion_of_unittest_becomes_a_plain_one() -> None:
    assert made("test_equal", "assertEqual") == (
        "from pkg.inner import first\nLIMIT = 3\nx = first(1)\nassert x == LIMIT"
    )


def test_imports_can_be_made_public() -> None:
    found = made("test_sizes", "first(size) == 2", {"size": "2"}, public="pkg")
    assert found is not None and found.startswith("from pkg import first\n")


def test_relative_imports_are_told_in_full() -> None:
    tests = "from ..core import f\n\n\ndef test_it():\n    assert f() == 1\n"
    found = snippet_of(tests, "src/pkg/tests/test_a.py", function="test_it", line=5, params={}, root="src")
    assert found == "from pkg.core import f\nassert f() == 1"


def test_lines_alone_can_be_had_where_a_snippet_cannot() -> None:
    assert lines_of(TESTS, function="test_fixture", line=line_of("first(tmp_path)")) == "assert first(tmp_path) == 1"


def test_hidden_tests_are_taken_out_and_the_rest_stays() -> None:
    cuts = cuts_of(TESTS, ["t.py::test_sizes[1]", "t.py::TestOld::test_equal"])
    assert cuts is not None
    left = without(TESTS, cuts)
    assert "test_sizes" not in left and "parametrize" not in left and "test_equal" not in left
    assert "test_state" in left and "test_plain" in left


def test_a_class_without_tests_keeps_a_body() -> None:
    cuts = cuts_of(TESTS, ["t.py::TestOld::test_equal", "t.py::TestOld::test_state"])
    assert cuts is not None
    assert without(TESTS, cuts).rstrip().endswith("class TestOld:\n\n    pass")
    assert command_of("a b.py", cuts).startswith("sed -i -e ") and command_of("a b.py", cuts).endswith("-- 'a b.py'")


def test_a_file_whose_tests_cannot_be_found_goes_whole() -> None:
    assert cuts_of(TESTS, ["t.py::test_elsewhere"]) is None
    assert command_of("t.py", None) == "rm -f -- t.py"
