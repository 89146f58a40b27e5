"""A text that is not quite in the file: where it nearly is, and what differs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.tools.editor.closest import MAX_PLACES, Near, closest

FILE = """\
import os


class Reader:
    def read(self, path):
\tif os.path.exists(path):
\t    return open(path).read()
        print("nothing at", path)   \n        return None

    def close(self):
        self.file.close()
"""


def only(wanted: str, text: str = FILE) -> Near:
    (near,) = closest(text, wanted)
    return near


@pytest.mark.parametrize(
    ("wanted", "lines", "why"),
    [
        (
            "    if os.path.exists(path):",
            (6, 6),
            "indentation differs: old_str has 4 spaces instead of 1 tab in line 6",
        ),
        (
            'print("nothing at", path)\n        return None',
            (8, 9),
            "whitespace at the end of a line differs: old_str has nothing instead of 3 spaces in line 8",
        ),
        (
            "def  read(self,  path):",
            (5, 5),
            "whitespace inside a line differs: old_str has 2 spaces instead of 1 space in line 5",
        ),
        ("        print('nothing at', path)   ", (8, 8), "quotes differ: old_str has `'` instead of `\"` in line 8"),
        (
            '        print(“nothing at", path)   ',
            (8, 8),
            'quotes differ: old_str has `“` (U+201C) instead of `"` in line 8',
        ),
        (
            "        self.\u200bfile.close()",
            (12, 12),
            "characters differ that look alike: old_str has '\\u200b' (U+200B) instead of nothing in line 12",
        ),
        ("class reader:", (4, 4), "upper and lower case differ: old_str has `reader` instead of `Reader` in line 4"),
        ("\n\nimport os\n", (1, 1), "line breaks at the beginning or end of old_str are not there"),
        (
            "11|     def close(self):\n12|         self.file.Close()",
            (11, 12),
            "upper and lower case differ: old_str has `Close` instead of `close` in line 12",
        ),
        (
            "    def close(self, now):\n        self.file.shutdown()",
            (11, 12),
            "old_str has `, now` instead of nothing in line 11, `shutdown` instead of `close` in line 12",
        ),
    ],
)
def test_it_says_what_differs(wanted: str, lines: tuple[int, int], why: str) -> None:
    near = only(wanted)
    assert ((near.first, near.last), near.why) == (lines, why)


def test_a_missing_last_line_break_is_told() -> None:
    near = only("a\nb\n", "x\na\nb")
    assert (near.first, near.last) == (2, 3)


def test_places_are_best_first_and_few() -> None:
    text = "".join(f"total = add(first, second, {number})\n" for number in range(20)) + "total = add(first, third, 7)\n"
    assert closest(text, "total = add(first, third, 8)")[0].first == 21
    assert len(closest(text, "total = add(first, second, none)")) == MAX_PLACES


def test_nothing_alike_is_nothing() -> None:
    assert closest(FILE, "completely different words here") == []
    assert closest("", "x") == []
    assert closest(FILE, "  \n") == []


def test_blank_lines_before_what_is_looked_for_do_not_shift_the_explanation() -> None:
    (near,) = closest("x\na", " \n  a")
    assert (near.first, near.last) == (2, 2)
    assert "old_str has 2 spaces instead of nothing in line 2" in near.why


@given(st.text("ab \t\n'\"", max_size=60), st.text("ab \t\n'\"", max_size=20))
def test_places_are_lines_of_the_file(text: str, wanted: str) -> None:
    num_lines = len(text.split("\n"))
    for near in closest(text, wanted):
        assert 1 <= near.first <= near.last <= num_lines


def test_large_hostile_files_are_no_trouble() -> None:
    assert closest("aaaa bbbb cccc dddd\n" * 50_000, "aaaa bbbb xxxx\n" * 500)
    assert closest("a" * 1_000_000, "a" * 100_000 + "b")
