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
            "indentation differs: line 6 begins with 1 tab, in old_str with 4 spaces",
        ),
        ('print("nothing at", path)\n        return None', (8, 9), "whitespace at the end of a line differs"),
        ("def  read(self,  path):", (5, 5), "whitespace inside a line differs"),
        ("print('nothing at', path)", (8, 8), "quotes differ"),
        ("print(“nothing at”, path)", (8, 8), "quotes differ"),
        ("self.\u200bfile.close()", (12, 12), "characters differ that look alike"),
        ("class reader:", (4, 4), "upper and lower case differ"),
        ("\n\nimport os\n", (1, 1), "line breaks at its beginning or end are not there"),
        (
            "    11\t    def close(self):\n    12\t        self.file.close()",
            (11, 12),
            "old_str has the line numbers of a view, which are not in the file",
        ),
    ],
)
def test_it_says_what_differs(wanted: str, lines: tuple[int, int], why: str) -> None:
    near = only(wanted)
    assert ((near.first, near.last), near.why) == (lines, why)


def test_a_missing_last_line_break_is_told() -> None:
    near = only("a\nb\n", "x\na\nb")
    assert (near.first, near.last) == (2, 3)


def test_words_that_differ_still_lead_to_the_place() -> None:
    near = only("    def close(self, now):\n        self.file.shutdown()")
    assert (near.first, near.last) == (11, 12)
    assert near.why == "line 11 differs from 'def close(self, now):' in old_str"


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
    assert "line 2 begins with nothing, in old_str with 2 spaces" in near.why


@given(st.text("ab \t\n'\"", max_size=60), st.text("ab \t\n'\"", max_size=20))
def test_places_are_lines_of_the_file(text: str, wanted: str) -> None:
    num_lines = len(text.split("\n"))
    for near in closest(text, wanted):
        assert 1 <= near.first <= near.last <= num_lines


def test_large_hostile_files_are_no_trouble() -> None:
    assert closest("aaaa bbbb cccc dddd\n" * 50_000, "aaaa bbbb xxxx\n" * 500)
    assert closest("a" * 1_000_000, "a" * 100_000 + "b")
