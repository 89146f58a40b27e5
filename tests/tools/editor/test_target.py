"""Which change a call means: line numbers that were copied, and what is said where the text is not there once."""

import pytest

from slipstream.errors import ToolError
from slipstream.tools.editor.target import EditWords, inserted, replaced

TEXT = b"""def one(a):
    return a


def two(a):
    return a
"""
WORDS = EditWords()


@pytest.mark.parametrize(
    ("old", "new", "after"),
    [
        ("2|     return a", "2|     return 1", TEXT.replace(b"return a", b"return 1", 1)),
        ("6|     return a", "    return 2", TEXT[: TEXT.rfind(b"a")] + b"2\n"),
        ("2|    return a\n3|\n", "2|    return 1\n3|\n", TEXT.replace(b"return a", b"return 1", 1)),
        ("     1\tdef one(a):\n     2\t    return a", "x", TEXT.replace(b"def one(a):\n    return a", b"x")),
        ("1:def one(a):", "1:def three(a):", TEXT.replace(b"one", b"three")),
        (
            "5:def two(a):\n6-    return a",
            "5:def two(b):\n6-    return b",
            TEXT.replace(b"two(a):\n    return a", b"two(b):\n    return b"),
        ),
        ("def two(a):", "5| def four(a):", TEXT.replace(b"two", b"four")),
        ("def two(a):", "50| def four(a):", TEXT.replace(b"def two(a):", b"50| def four(a):")),
    ],
)
def test_numbers_that_were_copied_are_not_part_of_the_text(old: str, new: str, after: bytes) -> None:
    assert replaced("a.py", TEXT, old, new, WORDS).data == after


def test_numbers_that_are_in_the_file_are_text() -> None:
    table = b"1| one\n2| two\n"
    assert replaced("t", table, "one", "1| three", WORDS).data == b"1| three\n2| two\n"
    assert replaced("t", table, "2| two", "7| two", WORDS).data == b"1| one\n7| two\n"


def test_inserted_lines_lose_their_numbers_only_where_they_fit() -> None:
    assert inserted("a", b"x\n", 1, "2| y", WORDS).data == b"x\ny\n"
    assert inserted("a", b"x\n", 1, "9| y", WORDS).data == b"x\n9| y\n"
    assert inserted("a", b"", 0, "1| y\n2|   z", WORDS).data == b"y\n  z\n"


def test_a_miss_speaks_the_words_of_its_tool_and_keeps_to_its_room() -> None:
    words = EditWords(prefix="", old="before", new="after", max_chars=200, max_row_chars=30, max_places=2)
    with pytest.raises(ToolError) as missed:
        replaced("a.py", TEXT, "return b", "x", words)
    assert str(missed.value).startswith(
        "before was not found in a.py, so nothing was changed. Closest:\n"
        "line 2 (before has `b` instead of `a` in line 2):\n2|     return a"
    )
    long = b"value = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n" * 30
    for old in ("value = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11]", "value"):
        with pytest.raises(ToolError) as raised:
            replaced("a.py", long, old, "x", words)
        assert len(str(raised.value)) <= 300 and "10]" not in str(raised.value).split("Closest:")[-1].split("\n", 2)[-1]


NESTED = b"""class One:
    def a(self):
        if self.x:
            return 1

        return 2
\tdef b(self):
\t\treturn 3
"""


SWAPPED = b"        if not self.x:\n            return 2\n        return 1\n"


@pytest.mark.parametrize(
    ("old", "new", "after"),
    [
        ("if self.x:\n    return 1\n\nreturn 2", "if not self.x:\n    return 2\nreturn 1", SWAPPED),
        (
            "          if self.x:  \n              return 1\n\n          return 2\n",
            "          pass\n",
            b"        pass\n",
        ),
        ("  if self.x:\n      return 1\n\n  return 2\n\n", "", b""),
    ],
)
def test_lines_that_are_indented_otherwise_are_found_and_written_as_the_file_is(
    old: str, new: str, after: bytes
) -> None:
    edited = replaced("a.py", NESTED, old, new, WORDS)
    assert edited.data == NESTED[: NESTED.find(b"        if")] + after + NESTED[NESTED.find(b"\tdef b") :]
    assert edited.notes == ("[new_str was indented as the file is]",)


def test_tabs_are_kept() -> None:
    edited = replaced("a.py", NESTED, "def b(self):\n\treturn 3", "def b(self):\n\treturn 4", WORDS)
    assert edited.data == NESTED.replace(b"return 3", b"return 4")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if self.x:\n  return 1", "x"),  # not all lines by as much
        ("  if self.x:\n      return 1", "if self.x:\n    return 2"),  # the new lines have less than the old ones
        ("if self.y:\n    return 1", "x"),
        ("    return 1\n\n    return 2", "x"),
    ],
)
def test_what_differs_in_more_than_its_indent_is_not_there(old: str, new: str) -> None:
    with pytest.raises(ToolError, match="was not found in"):
        replaced("a.py", NESTED, old, new, WORDS)


def test_lines_that_are_there_twice_under_another_indent_are_not_replaced() -> None:
    twice = b"if a:\n    b()\n    c()\nelse:\n        b()\n        c()\n"
    with pytest.raises(ToolError, match="was not found in"):
        replaced("a.py", twice, "  b()\n  c()", "  d()", WORDS)
