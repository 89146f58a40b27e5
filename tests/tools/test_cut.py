from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from slipstream.tools.cut import cut, cut_middle

MARKER = re.compile(r"\[\.\.\. (\d+) characters, (\d+) lines? left out \.\.\.\]\n")


def test_a_short_text_is_kept() -> None:
    assert cut_middle("abc\n", 4) == "abc\n"


def test_lines_are_kept_whole() -> None:
    text = "".join(f"line {i}\n" for i in range(100))
    assert cut_middle(text, 75) == ("line 0\nline 1\n[... 768 characters, 97 lines left out ...]\nline 99\n")


def test_one_long_line_is_cut_anywhere() -> None:
    assert cut_middle("a" * 500 + "b" * 500, 60) == ("aaaaaa\n[... 988 characters, 0 lines left out ...]\nbbbbbb")


def test_a_tail_that_starts_with_a_line_is_kept_whole() -> None:
    text = "a" * 200 + "\n" + "b" * 9 + "\n" + "c" * 9 + "\n"
    # 46 for the longest marker and two line breaks, 20 for the head, 20 for the tail
    assert cut_middle(text, 86) == (
        "a" * 20 + "\n[... 181 characters, 1 line left out ...]\n" + "b" * 9 + "\n" + "c" * 9 + "\n"
    )
    assert cut_middle(text, 46) == "[... 221 characters, 3 lines left out ...]\n"


def test_one_line_is_singular() -> None:
    shown = cut("a" * 100 + "\n" + "b" * 100, 60)
    assert "characters, 1 line left out" in shown.text
    assert shown.num_lines_left_out == 1


def test_too_little_room_keeps_the_head_and_still_counts() -> None:
    shown = cut("ab\ncd\nef" * 10, 4)
    assert (shown.text, shown.num_chars_left_out, shown.num_lines_left_out) == ("ab\nc", 76, 19)
    assert cut_middle("abc", 0) == ""


@given(st.text(alphabet="ab\n", max_size=2000) | st.text(max_size=500), st.integers(0, 600))
def test_never_longer_and_counts_are_exact(text: str, max_chars: int) -> None:
    shown = cut(text, max_chars)
    assert len(shown.text) <= max_chars
    if len(text) <= max_chars:
        assert shown.text == text
        return
    found = MARKER.search(shown.text)
    if found is None:
        assert shown.text == text[:max_chars]
        assert shown.num_chars_left_out == len(text) - max_chars
        return
    tail = shown.text[found.end() :]
    head = text[: len(text) - len(tail) - shown.num_chars_left_out]
    left_out = text[len(head) : len(text) - len(tail)]
    assert text.endswith(tail)
    assert shown.text[: found.start()] in (head, head + "\n")
    assert (int(found[1]), int(found[2])) == (len(left_out), left_out.count("\n"))
    assert (int(found[1]), int(found[2])) == (shown.num_chars_left_out, shown.num_lines_left_out)


@given(st.lists(st.text(alphabet="abc", max_size=8), min_size=100), st.integers(100, 400))
def test_cuts_fall_between_short_lines(lines: list[str], max_chars: int) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if len(text) <= max_chars:
        return
    head, tail = MARKER.split(cut_middle(text, max_chars))[::3]
    assert head.endswith("\n")
    assert text.endswith("\n" + tail)
