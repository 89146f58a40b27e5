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
